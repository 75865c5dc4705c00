"""Finds wheels that install different content at the same path; matrix.yaml decides which of them wins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from imagefactory.errors.locks import PathConflictError
from imagefactory.locks.files import LockedWheel
from imagefactory.matrix.matrix import Conflict
from imagefactory.resolve.wheel_contents import WheelContents


def settle(
    found: Sequence[tuple[LockedWheel, WheelContents]], conflicts: Sequence[Conflict]
) -> list[LockedWheel]:
    """Record for every wheel the paths that it yields to another one; raise an error for undecided conflicts."""
    owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for wheel, contents in found:
        for path, content in contents.paths.items():
            owners[path].append((wheel.name, content))
    winner = {frozenset(conflict.between): conflict.wins for conflict in conflicts}
    given_up: dict[str, set[str]] = defaultdict(set)
    unsettled: dict[frozenset[str], list[str]] = defaultdict(list)
    for path, claims in owners.items():
        for index, (one, content) in enumerate(claims):
            for other, other_content in claims[index + 1 :]:
                if content == other_content:
                    continue  # the same bytes from both: nothing to decide
                pair = frozenset((one, other))
                if pair in winner:
                    given_up[other if winner[pair] == one else one].add(path)
                else:
                    unsettled[pair].append(path)
    if unsettled:
        raise _refuse(unsettled)
    return [
        wheel.model_copy(update={"without": tuple(sorted(given_up[wheel.name]))})
        for wheel, _ in sorted(found, key=lambda item: item[0].name)
    ]


def _refuse(unsettled: dict[frozenset[str], list[str]]) -> PathConflictError:
    pair, paths = min(unsettled.items(), key=lambda item: sorted(item[0]))
    one, other = sorted(pair)
    more = "" if len(unsettled) == 1 else f" {len(unsettled) - 1} more pairs conflict."
    return PathConflictError(
        f"{one} and {other} both install {min(paths)}, with different content.",
        where="matrix.yaml, `conflicts`",
        why=f"They share {len(paths)} such path{'s' if len(paths) > 1 else ''}; "
        f"the order of installation would decide which one the image gets.{more}",
        fix=f"Add an entry to `conflicts`: between: [{one}, {other}], wins: one of them, and the reason.",
    )
