"""Leaves out of a lock what `leave_out` in matrix.yaml names: whole distributions, or files of some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from imagefactory.errors import ConfigError
from imagefactory.lock.wheel_contents import WheelContents
from imagefactory.project.leave_out import LeaveOut
from imagefactory.project.locks.files import LeftOutFiles, LeftOutWheel, LockedWheel, WheelLock
from imagefactory.project.matrix import load_matrix
from images.shipped.yamlfile import read_yaml

Found = tuple[LockedWheel, WheelContents]


def leave_out(
    found: Sequence[Found], entries: Iterable[LeaveOut], matrix: Path
) -> tuple[list[Found], tuple[LeftOutWheel, ...]]:
    """Return the wheels to install, with what is left out of them, and the wheels that are left out.

    Raises:
        LeaveOutError: a pattern matches no file of its distribution, or `matrix` itself asks for it.
    """
    names = {wheel.name for wheel, _ in found}
    entries = [entry for entry in entries if entry.beside is None or entry.beside in names]
    whole = {entry.distribution: entry for entry in entries if not entry.files}
    for wheel, _ in found:
        if wheel.name in whole and "matrix.yaml" in wheel.needed_by:
            why = f"{wheel.name} is not there because another distribution requires it: matrix.yaml names it"
            raise _cannot(matrix, whole[wheel.name], "distribution", why)
    left = _with_requirements({name: whole[name].reason for name in names if name in whole}, found)
    kept = [_without_files(item, entries, matrix) for item in found if item[0].name not in left]
    wheels = [
        LeftOutWheel(**dict(wheel), reason=left[wheel.name]) for wheel, _ in found if wheel.name in left
    ]
    return kept, tuple(sorted(wheels, key=lambda wheel: wheel.name))


def refuse_unmatched(matrix: Path, locks: Iterable[WheelLock]) -> None:
    """Raise LeaveOutError if an entry of matrix.yaml has left nothing out of any of these locks."""
    left: set[tuple[str, str]] = set()
    for lock in locks:
        left |= {(wheel.name, wheel.reason) for wheel in lock.left_out}
        left |= {(wheel.name, files.reason) for wheel in lock.wheels for files in wheel.left_out}
    for entry in load_matrix(matrix).leave_out:
        if (entry.distribution, entry.reason) not in left:
            raise _cannot(matrix, entry, "distribution", "It leaves nothing out of any lock")


def _with_requirements(left: dict[str, str], found: Sequence[Found]) -> dict[str, str]:
    """Add the distributions that nothing but left ones requires, each with its reason."""
    for wheel, _ in found:
        if wheel.name not in left and wheel.needed_by and left.keys() >= {*wheel.needed_by}:
            reason = (
                f"only {' and '.join(wheel.needed_by)} {'needs' if len(wheel.needed_by) == 1 else 'need'} it"
            )
            return _with_requirements({**left, wheel.name: reason}, found)
    return left


def _without_files(item: Found, entries: Iterable[LeaveOut], matrix: Path) -> Found:
    wheel, contents = item
    paths = dict(contents.paths)
    groups: list[LeftOutFiles] = []
    for entry in entries:
        if entry.distribution != wheel.name or not entry.files:
            continue
        gone: dict[str, str] = {}
        for number, pattern in enumerate(entry.files):
            matched = list(entry.matching(pattern, contents.paths))
            if not matched:
                why = f"{wheel.file} has no file {pattern}"
                raise _cannot(matrix, entry, "files", why, number)
            gone |= {path: paths.pop(path) for path in matched if path in paths}
        if gone:
            size = sum(_size(content) for content in gone.values())
            groups.append(LeftOutFiles(reason=entry.reason, unpacked=size, paths=tuple(sorted(gone))))
    return wheel.model_copy(update={"left_out": tuple(groups)}), replace(contents, paths=paths)


def _size(content: str) -> int:
    """Return the size of a file from its description; the script of an entry point has next to none."""
    size = content.partition(":")[2]
    return int(size) if size.isdecimal() else 0


def _cannot(matrix: Path, entry: LeaveOut, key: str, why: str, number: int = 0) -> ConfigError:
    index = load_matrix(matrix).leave_out.index(entry)
    return ConfigError(
        "bad-leave-out",
        f"{entry.distribution} cannot be left out as matrix.yaml says.",
        where=read_yaml(matrix).location(("leave_out", index, key, number)),
        why=f"{why}.",
        fix="Correct or remove the entry, or limit it with `archs`, `vllm` or `beside`; then run `./inv lock`.",
    )
