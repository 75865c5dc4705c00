"""Tests listing the paths that wheels install, and settling conflicts between them."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagefactory.lock.wheel_contents import (
    WheelContents,
    installed_path,
    settle,
    wheel_contents,
)
from imagefactory.project.locks.files import LockedWheel
from imagefactory.project.matrix import Conflict
from imagefactory.store.cache import Store
from imagefactory.store.digests import file_sha256
from imagefactory.store.indexes import WheelLocation
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import wheel_entry
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

SITE = "lib/python3.11/site-packages"


class Reader:
    """Reads wheels from an index, with a store that caches what was read."""

    def __init__(self, index: SimpleIndex, store: Store, session: requests.Session) -> None:
        self.index, self.store, self.session = index, store, session

    def __call__(self, wheel: Path) -> WheelContents:
        self.index.add(wheel)
        return self.read(wheel, f"{self.index.server.url}/files/{wheel.name}")

    def read(self, wheel: Path, url: str) -> WheelContents:
        location = WheelLocation(file=wheel.name, url=url, sha256=None)
        digest = file_sha256(wheel)
        return wheel_contents(location, digest, "3.11", self.store, self.session)


@pytest.fixture
def read(simple_index: SimpleIndex, tmp_path: Path) -> Iterator[Reader]:
    with requests.Session() as session:
        yield Reader(simple_index, Store(tmp_path / "store"), session)


def test_only_the_directory_and_entry_points_of_a_wheel_are_downloaded(
    read: Reader, wheel_factory: WheelFactory
) -> None:
    files = {f"big/part{number}.bin": bytes([number]) * 400_000 for number in range(10)}
    wheel = wheel_factory("big", files=files, entry_points={"Serve": "big.cli:main"}, stored=True)
    contents = read(wheel)
    assert contents.size == wheel.stat().st_size > 4_000_000
    assert contents.unpacked > 4_000_000
    assert set(contents.paths) >= {f"{SITE}/{name}" for name in files}
    assert contents.paths["bin/Serve"] == "big.cli:main"
    assert read.index.bytes_served(wheel.name) < wheel.stat().st_size / 20


def test_directory_is_read_once(read: Reader, wheel_factory: WheelFactory) -> None:
    first = read(wheel_factory("one"))
    served = read.index.bytes_served("one-1.0-py3-none-any.whl")
    assert read(wheel_factory("one")) == first
    local = wheel_factory("two", files={"two.py": "x = 1\n"})
    assert read.read(local, local.as_uri()).paths[f"{SITE}/two.py"].endswith(":6"), "without a server"
    assert read.index.bytes_served("one-1.0-py3-none-any.whl") == served > 0


def test_data_folder_is_installed_by_scheme() -> None:
    def path(member: str) -> str:
        return installed_path(member, distribution="a", python="3.11")

    assert path("a/b.py") == f"{SITE}/a/b.py"
    assert path("a-1.data/purelib/b.py") == path("a-1.data/platlib/b.py") == f"{SITE}/b.py"
    assert path("a-1.data/scripts/tool") == "bin/tool"
    assert path("a-1.data/headers/a.h") == "include/site/python3.11/a/a.h"
    assert path("a-1.data/data/share/a/x") == "share/a/x"


def test_server_that_refuses_ranges_is_reported_with_a_remedy(read: Reader, wheel_factory: WheelFactory) -> None:
    read.index.ranges = False
    wheel = wheel_factory("big", files={"big.bin": bytes(3_000_000)}, stored=True)
    with raises("download-failed", match="PIP_FIND_LINKS") as failure:
        read(wheel)
    assert wheel.name in failure.value.where


@pytest.mark.parametrize("flaw", ["not a zip", "cut off", "gone", "bad entry points"])
def test_damaged_wheel_is_reported(read: Reader, wheel_factory: WheelFactory, flaw: str) -> None:
    entry_points = b"[console_scripts\n= x" if flaw == "bad entry points" else b""
    wheel = wheel_factory("one", files={"one-1.0.dist-info/entry_points.txt": entry_points})
    content = wheel.read_bytes()
    if flaw == "not a zip":
        wheel.write_bytes(b"<html>Not found</html>")
    elif flaw == "cut off":
        wheel.write_bytes(content[: len(content) // 2])
    if flaw != "gone":
        read.index.add(wheel)
    with raises("unreadable-wheel", match=wheel.name):
        read.read(wheel, f"{read.index.server.url}/files/{wheel.name}")


def wheel(name: str, **paths: str) -> tuple[LockedWheel, WheelContents]:
    return wheel_entry(f"{name}-1-py3-none-any.whl", b""), WheelContents(size=1, unpacked=1, paths=paths)


def rule(one: str, other: str, wins: str) -> Conflict:
    return Conflict(between=[one, other], wins=wins, reason="because the test says so")


def without(found: list[tuple[LockedWheel, WheelContents]], *rules: Conflict) -> dict[str, tuple[str, ...]]:
    return {locked.name: locked.without for locked in settle(found, rules)}


def test_undecided_conflict_is_refused_with_the_entry_to_add() -> None:
    with raises("path-conflict") as failure:
        without([wheel("b", x="1:1", y="1:1"), wheel("a", x="2:2", y="2:2")])
    assert "a and b both install x" in failure.value.what
    assert "2 such paths" in failure.value.why
    assert "between: [a, b]" in failure.value.fix


def test_decided_conflict_removes_the_paths_from_the_loser() -> None:
    assert without([wheel("a", x="1:1", y="2:2"), wheel("b", x="1:1")]) == {"a": (), "b": ()}, "equal content"
    found = [wheel("a", x="1:1", y="1:1", z="1:1"), wheel("b", x="2:2", y="1:1", z="2:2")]
    assert without(found, rule("a", "b", "a")) == {"a": (), "b": ("x", "z")}
    assert without(found, rule("b", "a", "b")) == {"a": ("x", "z"), "b": ()}


def test_conflict_of_three_wheels_needs_every_pair_decided() -> None:
    found = [wheel("a", x="1:1"), wheel("b", x="2:2"), wheel("c", x="3:3")]
    with raises("path-conflict", match="b and c"):
        without(found, rule("a", "b", "a"), rule("a", "c", "a"))
    settled = without(found, rule("a", "b", "a"), rule("a", "c", "a"), rule("b", "c", "c"))
    assert settled == {"a": (), "b": ("x",), "c": ("x",)}


def test_order_of_wheels_does_not_matter() -> None:
    found = [wheel(name, shared=f"{number}:1", own="1:1") for number, name in enumerate("abcd")]
    rules = [rule(one, other, min(one, other)) for one in "abcd" for other in "abcd" if one < other]
    expected = settle(found, rules)
    for seed in range(5):
        shuffled = random.Random(seed).sample(found, len(found))
        assert settle(shuffled, rules) == expected
