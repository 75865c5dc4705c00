"""What a wheel installs, read from its zip directory without downloading it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagefactory.environment.index_config import IndexConfig
from imagefactory.errors.store import DownloadError
from imagefactory.resolve.wheel_contents import WheelContents, console_scripts, installed_path, wheel_contents
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.indexes import Indexes, WheelLocation
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory, sha256_of_file

SITE = "lib/python3.11/site-packages"


class Reader:
    """Reads wheels from an index, with a store that remembers."""

    def __init__(self, index: SimpleIndex, store: Store, session: requests.Session) -> None:
        self.index, self.store, self.session = index, store, session

    def __call__(self, wheel: Path) -> WheelContents:
        self.index.add(wheel)
        project = wheel.name.split("-")[0]
        (location,) = Indexes(IndexConfig(indexes=(self.index.url,))).files(project)
        return self.read(location, Sha256(sha256_of_file(wheel)))

    def read(self, location: WheelLocation, sha256: Sha256) -> WheelContents:
        return wheel_contents(location, sha256, python="3.11", store=self.store, session=self.session)


@pytest.fixture
def read(simple_index: SimpleIndex, tmp_path: Path) -> Iterator[Reader]:
    with requests.Session() as session:
        yield Reader(simple_index, Store(tmp_path / "store"), session)


def test_the_directory_of_a_large_wheel_costs_a_small_part_of_it(
    read: Reader, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    files = {f"big/part{number}.bin": bytes([number]) * 400_000 for number in range(10)}
    wheel = wheel_factory("big", files=files, stored=True)
    contents = read(wheel)
    assert contents.size == wheel.stat().st_size > 4_000_000
    assert contents.unpacked > 4_000_000
    assert set(contents.paths) >= {f"{SITE}/{name}" for name in files}
    assert simple_index.bytes_served(wheel.name) < wheel.stat().st_size / 20


def test_entry_points_are_read_by_range_too(
    read: Reader, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    files = {"big.bin": bytes(3_000_000)}
    wheel = wheel_factory("big", files=files, entry_points={"Serve": "big.cli:main"}, stored=True)
    assert read(wheel).paths["bin/Serve"] == "big.cli:main"
    assert simple_index.bytes_served(wheel.name) < wheel.stat().st_size / 10


def test_a_directory_is_read_once_and_remembered_by_the_wheels_hash(
    read: Reader, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    first = read(wheel_factory("one"))
    asked = len([entry for entry in simple_index.log if entry.path.startswith("/files/")])
    assert read(wheel_factory("one")) == first
    assert len([entry for entry in simple_index.log if entry.path.startswith("/files/")]) == asked


def test_a_wheel_on_this_machine_needs_no_server(read: Reader, wheel_factory: WheelFactory) -> None:
    wheel = wheel_factory("one", files={"one.py": "x = 1\n"})
    location = WheelLocation(file=wheel.name, url=wheel.as_uri(), sha256=None)
    contents = read.read(location, Sha256(sha256_of_file(wheel)))
    assert contents.size == wheel.stat().st_size
    assert contents.paths[f"{SITE}/one.py"].endswith(":6")


def test_the_data_folder_of_a_wheel_is_spread_over_the_environment() -> None:
    def path(member: str) -> str:
        return installed_path(member, distribution="a", python="3.11")

    assert path("a/b.py") == f"{SITE}/a/b.py"
    assert path("a-1.data/purelib/b.py") == path("a-1.data/platlib/b.py") == f"{SITE}/b.py"
    assert path("a-1.data/scripts/tool") == "bin/tool"
    assert path("a-1.data/headers/a.h") == "include/site/python3.11/a/a.h"
    assert path("a-1.data/data/share/a/x") == "share/a/x"


def test_console_and_gui_scripts_keep_their_case() -> None:
    text = b"[console_scripts]\nServe = a:b\n[gui_scripts]\nw = c:d [extra]\n[other]\nx = y\n"
    assert console_scripts(text) == {"Serve": "a:b", "w": "c:d [extra]"}


def test_a_server_that_refuses_ranges_is_named_with_a_remedy(
    read: Reader, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    simple_index.ranges = False
    wheel = wheel_factory("big", files={"big.bin": bytes(3_000_000)}, stored=True)
    with pytest.raises(DownloadError, match="PIP_FIND_LINKS") as failure:
        read(wheel)
    assert wheel.name in failure.value.where


@pytest.mark.parametrize("flaw", ["not a zip", "cut off", "gone", "bad entry points", "bad encoding"])
def test_a_damaged_wheel_is_an_error_that_names_it(
    read: Reader, simple_index: SimpleIndex, wheel_factory: WheelFactory, flaw: str
) -> None:
    info = "one-1.0.dist-info/entry_points.txt"
    files: dict[str, bytes] = {"one.py": b"x = 1"}
    if flaw.startswith("bad"):
        files[info] = b"[console_scripts\n= x" if flaw == "bad entry points" else b"\xff\xfe"
    wheel = wheel_factory("one", files=files)
    content = wheel.read_bytes()
    if flaw == "not a zip":
        wheel.write_bytes(b"<html>Not found</html>")
    elif flaw == "cut off":
        wheel.write_bytes(content[: len(content) // 2])
    location = WheelLocation(
        file=wheel.name, url=f"{simple_index.server.url}/files/{wheel.name}", sha256=None
    )
    if flaw != "gone":
        simple_index.add(wheel)
    with pytest.raises(DownloadError, match=wheel.name.replace("+", r"\+")):
        read.read(location, Sha256("0" * 64))
