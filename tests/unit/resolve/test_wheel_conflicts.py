"""Tests conflicts between wheels that install the same path."""

from __future__ import annotations

import random

import pytest

from imagefactory.errors.locks import PathConflictError
from imagefactory.locks.files import LockedWheel
from imagefactory.matrix.matrix import Conflict
from imagefactory.resolve.wheel_conflicts import settle
from imagefactory.resolve.wheel_contents import WheelContents
from imagefactory.store.digests import Sha256

Found = tuple[LockedWheel, WheelContents]


def wheel(name: str, **paths: str) -> Found:
    locked = LockedWheel(
        name=name,
        version="1",
        file=f"{name}-1-py3-none-any.whl",
        sha256=Sha256("0" * 64),
        size=1,
        unpacked=1,
        needed_by=("matrix.yaml",),
    )
    return locked, WheelContents(size=1, unpacked=1, paths=paths)


def rule(one: str, other: str, wins: str) -> Conflict:
    return Conflict(between=[one, other], wins=wins, reason="because the test says so")


def without(found: list[Found], *rules: Conflict) -> dict[str, tuple[str, ...]]:
    return {locked.name: locked.without for locked in settle(found, rules)}


def test_equal_content_is_no_conflict() -> None:
    assert without([wheel("a", x="1:1", y="2:2"), wheel("b", x="1:1", z="3:3")]) == {"a": (), "b": ()}


def test_undecided_conflict_is_refused_with_the_entry_to_add() -> None:
    with pytest.raises(PathConflictError) as failure:
        without([wheel("b", x="1:1", y="1:1"), wheel("a", x="2:2", y="2:2")])
    assert "a and b both install x" in failure.value.what
    assert "2 such paths" in failure.value.why
    assert "between: [a, b]" in failure.value.fix


def test_decided_conflict_removes_the_paths_from_the_loser() -> None:
    found = [wheel("a", x="1:1", y="1:1", z="1:1"), wheel("b", x="2:2", y="1:1", z="2:2")]
    assert without(found, rule("a", "b", "a")) == {"a": (), "b": ("x", "z")}
    assert without(found, rule("b", "a", "b")) == {"a": ("x", "z"), "b": ()}


def test_conflict_of_three_wheels_needs_every_pair_decided() -> None:
    found = [wheel("a", x="1:1"), wheel("b", x="2:2"), wheel("c", x="3:3")]
    with pytest.raises(PathConflictError, match="b and c"):
        without(found, rule("a", "b", "a"), rule("a", "c", "a"))
    settled = without(found, rule("a", "b", "a"), rule("a", "c", "a"), rule("b", "c", "c"))
    assert settled == {"a": (), "b": ("x",), "c": ("x",)}


def test_commands_of_one_name_conflict_unless_equal() -> None:
    assert without([wheel("a", tool="m:main"), wheel("b", tool="m:main")]) == {"a": (), "b": ()}
    with pytest.raises(PathConflictError):
        without([wheel("a", tool="m:main"), wheel("b", tool="n:main")])


def test_order_of_wheels_does_not_matter() -> None:
    found = [wheel(name, shared=f"{number}:1", own="1:1") for number, name in enumerate("abcd")]
    rules = [rule(one, other, min(one, other)) for one in "abcd" for other in "abcd" if one < other]
    expected = settle(found, rules)
    for seed in range(5):
        shuffled = random.Random(seed).sample(found, len(found))
        assert settle(shuffled, rules) == expected
