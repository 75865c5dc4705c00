"""The real Debian archive: its signatures verify, and locking it twice gives the same lock."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from imagefactory.build.layers.base_layer import base_entries
from imagefactory.build.layers.debian.accounts import GROUPS, USERS
from imagefactory.build.layers.debian.file_tree import read_content
from imagefactory.resolve.base_locks import deb_locations, lock_base
from imagefactory.resolve.mirrors import DebianMirrors, local_path
from imagefactory.store.digests import Sha256, sha256_of

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


def test_the_declared_accounts_are_those_of_base_passwd(tmp_path: Path) -> None:
    mirrors = DebianMirrors.discover("bookworm")
    lock = lock_base(
        base="bookworm",
        debian="bookworm",
        packages=["base-passwd"],
        platform="linux/arm64",
        made_from={"bases": Sha256("0" * 64)},
        mirrors=mirrors,
        say=lambda _line: None,
    )
    debs = []
    for deb in lock.debs:
        location = deb_locations(deb, lock.suites, mirrors)[0]
        local = local_path(location)
        data = local.read_bytes() if local else requests.get(location, timeout=60).content
        assert sha256_of(data) == deb.sha256
        (tmp_path / deb.name).write_bytes(data)
        debs.append((deb, tmp_path / deb.name))
    image = {
        entry.path: read_content(entry.content) for _, entry in base_entries(debs=debs, scratch=tmp_path)
    }

    masters = {name: image[f"usr/share/base-passwd/{name}.master"].decode() for name in ("passwd", "group")}  # type: ignore[index]
    declared = [f"{u.name}:*:{u.uid}:{u.gid}:{u.gecos}:{u.home}:{u.shell}" for u in USERS]
    assert masters["passwd"].splitlines() == declared[:-1], "all but vllm"
    groups = [f"{name}:*:{gid}:" for name, gid in GROUPS.items() if name not in {"rdma", "vllm"}]
    assert masters["group"].splitlines() == groups
