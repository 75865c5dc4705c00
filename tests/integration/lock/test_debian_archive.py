"""Tests locking packages from the real Debian archive."""

from pathlib import Path

import pytest
import requests

from imagefactory.assemble.layers.base_layer import base_entries
from imagefactory.assemble.layers.debian.policy import GROUPS, USERS
from imagefactory.lock.base_locks import deb_locations, lock_base
from imagefactory.lock.debian_index import read_index
from imagefactory.lock.mirrors import DebianMirrors, local_path
from imagefactory.oci.entry import read_content
from imagefactory.project.locks.files import BaseLock
from imagefactory.project.matrix import load_matrix
from imagefactory.store.digests import Sha256, sha256_of
from tests.fixtures.checkouts import REPOSITORY

pytestmark = [pytest.mark.network, pytest.mark.slow]


BASES = load_matrix(REPOSITORY / "matrix.yaml").bases


def lock(debian: str, platform: str, *packages: str) -> BaseLock:
    mirrors = DebianMirrors.discover(debian)
    index = read_index(debian=debian, platform=platform, mirrors=mirrors, say=lambda _line: None)
    return lock_base(
        index,
        base=debian,
        packages=packages,
        platform=platform,
        made_from={"bases": Sha256("0" * 64)},
        say=lambda _line: None,
    )


@pytest.mark.parametrize("platform", ["linux/arm64", "linux/amd64"])
def test_locking_the_archive_twice_gives_the_same_lock(platform: str) -> None:
    first, second = (lock("trixie", platform, "python3", "gcc", "ca-certificates") for _ in range(2))
    assert first == second
    names = {deb.name for deb in first.debs}
    assert {"libc6", f"libpython{BASES['trixie'].python}-stdlib", "gcc-14", "openssl"} <= names
    assert {deb.architecture for deb in first.debs} == {platform.removeprefix("linux/"), "all"}
    mirrors = DebianMirrors.discover("trixie")
    assert deb_locations(first.debs[0], first.suites, mirrors)[0].endswith(first.debs[0].file)


@pytest.mark.parametrize("debian", sorted({base.debian for base in BASES.values()}))
def test_declared_accounts_are_those_of_base_passwd(tmp_path: Path, debian: str) -> None:
    locked = lock(debian, "linux/arm64", "base-passwd")
    mirrors = DebianMirrors.discover(debian)
    debs = []
    for deb in locked.debs:
        location = deb_locations(deb, locked.suites, mirrors)[0]
        local = local_path(location)
        data = local.read_bytes() if local else requests.get(location, timeout=60).content
        assert sha256_of(data) == deb.sha256
        (tmp_path / deb.name).write_bytes(data)
        debs.append((deb, tmp_path / deb.name))
    image = {entry.path: read_content(entry.content) for _, entry in base_entries(debs=debs, scratch=tmp_path)}

    masters = {name: image[f"usr/share/base-passwd/{name}.master"].decode() for name in ("passwd", "group")}  # type: ignore[index]
    declared = USERS.replace(":x:", ":*:").splitlines()
    assert masters["passwd"].splitlines() == declared[:-1], "all but vllm"
    groups = [f"{name}:*:{gid}:" for name, gid in GROUPS.items() if name not in {"rdma", "vllm"}]
    assert masters["group"].splitlines() == groups
