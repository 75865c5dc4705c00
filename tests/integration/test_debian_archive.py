"""The real Debian archive: its signatures verify, and locking it twice gives the same lock."""

from __future__ import annotations

import pytest

from imagefactory.content import Sha256
from imagefactory.resolve.debs import deb_locations, lock_base
from imagefactory.resolve.mirrors import DebianMirrors

pytestmark = pytest.mark.network


@pytest.mark.parametrize("platform", ["linux/arm64", "linux/amd64"])
def test_the_real_archive_can_be_locked_and_gives_the_same_twice(platform: str) -> None:
    mirrors = DebianMirrors.discover("bookworm")
    first, second = (
        lock_base(
            base="bookworm",
            debian="bookworm",
            packages=["python3", "gcc", "ca-certificates"],
            platform=platform,
            made_from={"bases": Sha256("0" * 64)},
            mirrors=mirrors,
            say=lambda _line: None,
        )
        for _ in range(2)
    )
    assert first == second
    names = {deb.name for deb in first.debs}
    assert {"libc6", "libpython3.11-stdlib", "gcc-12", "openssl"} <= names
    assert {deb.architecture for deb in first.debs} == {platform.removeprefix("linux/"), "all"}
    assert deb_locations(first.debs[0], first.suites, mirrors)[0].endswith(first.debs[0].file)
