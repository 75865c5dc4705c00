"""Compiled objects in a registry: one artifact per toolchain, bounded, and nothing but entries of ccache."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.compile.object_cache import (
    ARTIFACT_TYPE,
    ENTRIES,
    MEDIA_TYPE,
    TOOLCHAIN,
    cache_folder,
    pull,
    push,
    tag_of,
)
from imagefactory.errors.objects import NoObjectsError, ObjectCacheError
from imagefactory.oci.registry.artifacts import Payload, push_artifact
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.cache import Store
from tests.fixtures.registries import GuardedRegistry

GCC, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
MAGIC = b"\xcc\xac"
NAMES = [f"{number:x}/0/{number:x}{'k' * 30}R" for number in range(4)]


@pytest.fixture
def repository(guarded_registry: GuardedRegistry) -> Repository:
    return guarded_registry.repository()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Store:
    return Store(tmp_path / "elsewhere")


def fill(store: Store, *names: str, text: bytes = b"object", toolchain: str = GCC) -> None:
    """Write entries, each used a minute after the one before."""
    for number, name in enumerate(names):
        file = cache_folder(store, toolchain) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(MAGIC + text)
        os.utime(file, (60 * number, 60 * number))


def entries(store: Store, toolchain: str = GCC) -> dict[str, bytes]:
    folder = cache_folder(store, toolchain)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_objects_of_one_machine_are_pulled_by_another(
    repository: Repository, store: Store, elsewhere: Store
) -> None:
    fill(store, *NAMES, "0/stats", "0/CACHEDIR.TAG")
    pushed = push(repository, store, GCC, 1)
    assert (pushed.entries, pushed.new) == (4, 4)
    pulled = pull(repository, elsewhere, GCC)
    assert (pulled.entries, pulled.new) == (4, 4)
    assert sorted(entries(elsewhere)) == NAMES, "statistics stay where they were made"
    times = [(cache_folder(elsewhere, GCC) / name).stat().st_mtime for name in NAMES]
    assert times == [0, 60, 120, 180], "what was not used for longest is dropped first there, too"
    assert pull(repository, elsewhere, GCC).new == 0


def test_pull_never_replaces_an_object(repository: Repository, store: Store, elsewhere: Store) -> None:
    fill(store, NAMES[0], text=b"theirs")
    push(repository, store, GCC, 1)
    fill(elsewhere, NAMES[0], text=b"mine")
    pull(repository, elsewhere, GCC)
    assert entries(elsewhere) == {NAMES[0]: MAGIC + b"mine"}


def test_push_keeps_what_others_pushed(repository: Repository, store: Store, elsewhere: Store) -> None:
    fill(store, *NAMES[:2])
    push(repository, store, GCC, 1)
    fill(elsewhere, *NAMES[2:])
    assert push(repository, elsewhere, GCC, 1).new == 2
    assert pull(repository, store, GCC).new == 2
    assert push(repository, store, GCC, 1).new == 0


def test_objects_used_last_are_pushed_when_not_all_fit(
    repository: Repository, store: Store, elsewhere: Store
) -> None:
    fill(store, *NAMES, text=b"x" * 998)
    assert push(repository, store, GCC, 2.5e-6).entries == 2
    pull(repository, elsewhere, GCC)
    assert sorted(entries(elsewhere)) == NAMES[2:]


def test_toolchains_do_not_see_each_others_objects(repository: Repository, store: Store) -> None:
    fill(store, *NAMES)
    push(repository, store, GCC, 1)
    with pytest.raises(NoObjectsError, match="no compiled objects of this toolchain"):
        pull(repository, store, OTHER)
    assert entries(store, OTHER) == {}


def test_nothing_to_push_is_an_error(repository: Repository, store: Store) -> None:
    with pytest.raises(NoObjectsError, match="no compiled objects to push"):
        push(repository, store, GCC, 1)


def plain(name: str, data: bytes) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))

    return add


def link(tar: tarfile.TarFile) -> None:
    member = tarfile.TarInfo(NAMES[1])
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    tar.addfile(member)


def offer(repository: Repository, data: bytes, toolchain: str = GCC, kind: str = ARTIFACT_TYPE) -> None:
    payload, annotations = Payload(MEDIA_TYPE, data), {TOOLCHAIN: toolchain, ENTRIES: "0"}
    push_artifact(repository, kind, [payload], annotations=annotations, tag=tag_of(GCC))


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (plain("../../outside", MAGIC), "which no ccache has"),
        (plain("ccache.conf", b"remote_storage = x"), "which no ccache has"),
        (link, "which no ccache has"),
        (plain(NAMES[1], b"\x7fELF"), "does not begin like"),
    ],
    ids=["a path that leads out", "a configuration", "a link", "another kind of file"],
)
def test_archive_with_anything_else_is_refused_as_a_whole(
    repository: Repository, store: Store, add: Callable[[tarfile.TarFile], None], says: str
) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        plain(NAMES[0], MAGIC + b"good")(tar)
        add(tar)
    offer(repository, file.getvalue())
    with pytest.raises(ObjectCacheError) as caught:
        pull(repository, store, GCC)
    assert says in caught.value.why
    assert entries(store) == {}


def test_artifact_of_another_toolchain_or_kind_is_refused(repository: Repository, store: Store) -> None:
    offer(repository, b"", OTHER)
    with pytest.raises(ObjectCacheError, match="not a cache"):
        pull(repository, store, GCC)
    offer(repository, b"", kind="application/vnd.example")
    with pytest.raises(ObjectCacheError, match="not a cache"):
        pull(repository, store, GCC)


def test_archive_that_ends_early_is_refused(repository: Repository, store: Store) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        plain(NAMES[0], MAGIC + b"x" * 5000)(tar)
    offer(repository, file.getvalue()[:3000])
    with pytest.raises(ObjectCacheError, match="not a cache"):
        pull(repository, store, GCC)
    assert entries(store) == {}
