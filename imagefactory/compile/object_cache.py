"""Shares compiled objects through a registry: ccache's entries, one artifact per toolchain.

An entry is named by a hash of what was compiled: the toolchain, the command and the preprocessed source. ccache looks
up that name, and checks the entry's checksum when it reads it. What an entry contains cannot be derived from its name,
so objects are as trustworthy as those who may write to the registry; nothing is pulled unless somebody asks for it.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from imagefactory.compile.capacity import GB
from imagefactory.errors.objects import NoObjectsError, ObjectCacheError
from imagefactory.oci.registry.artifacts import Payload, contents, push_artifact
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.store.atomic import translating_disk_full, writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import checksum

ARTIFACT_TYPE: Final = "application/vnd.imagefactory.objects.v1"
MEDIA_TYPE: Final = "application/x-tar"
TOOLCHAIN: Final = "imagefactory.toolchain"
ENTRIES: Final = "imagefactory.entries"
_ENTRY: Final = re.compile(r"[0-9a-f]/[0-9a-f]/[0-9a-v]{24,64}[RM]")
"""Results and manifests, in the two levels of folders that ccache uses; its statistics stay here."""
_MAGIC: Final = b"\xcc\xac"
_IN_NAME: Final = 16


@dataclass(frozen=True)
class Shared:
    """What was pushed or pulled."""

    reference: str
    entries: int
    size: int
    new: int
    """Entries that were not there before."""


def cache_folder(store: Store, toolchain: str) -> Path:
    """Return ccache's folder of a toolchain; no toolchain sees the objects of another."""
    return store.root / "ccache" / toolchain.removeprefix("sha256:")[:_IN_NAME]


def tag_of(toolchain: str) -> str:
    """Return the tag of a toolchain's objects."""
    return f"objects-{toolchain.removeprefix('sha256:')[:_IN_NAME]}"


def push(repository: Repository, store: Store, toolchain: str, most_gb: float) -> Shared:
    """Push the objects of a toolchain that were used last, together with those that the registry has."""
    folder, tag = cache_folder(store, toolchain), tag_of(toolchain)
    there = repository.manifest(tag)
    before = _pull(repository, there, store, toolchain) if there else None
    chosen = _newest(folder, most_gb * GB)
    reference = f"{repository.reference.name}:{tag}"
    if not chosen:
        raise NoObjectsError(
            "There are no compiled objects to push.",
            where=folder,
            why="Nothing was compiled here with this toolchain, or no object fits into the limit.",
            fix="Run `invoke compile` first, or allow more (`--most-gb`).",
        )
    size = sum(path.stat().st_size for path in chosen)
    named = sorted(path.relative_to(folder).as_posix() for path in chosen)
    entries = checksum(named)
    if there is not None and there.document().get("annotations", {}).get(ENTRIES) == entries:
        return Shared(reference, len(chosen), size, 0)
    with store.scratch() as scratch:
        archive = scratch / "objects.tar"
        with translating_disk_full(archive), tarfile.open(archive, "w") as tar:
            for name in named:
                tar.add(folder / name, name, recursive=False, filter=_anonymous)
        payload = Payload.file(archive, MEDIA_TYPE)
        annotations = {TOOLCHAIN: toolchain, ENTRIES: entries}
        push_artifact(repository, ARTIFACT_TYPE, [payload], annotations=annotations, tag=tag)
    return Shared(reference, len(chosen), size, max(0, len(chosen) - (before.entries if before else 0)))


def pull(repository: Repository, store: Store, toolchain: str) -> Shared:
    """Add the objects in the registry to those here; an object that is here stays as it is."""
    tag = tag_of(toolchain)
    there = repository.manifest(tag)
    if there is None:
        raise NoObjectsError(
            "The registry has no compiled objects of this toolchain.",
            where=f"{repository.reference.name}:{tag}",
            why="Objects can only be used with exactly the compilers that made them.",
            fix="Run `invoke objects.push` on a machine that has compiled with it.",
        )
    return _pull(repository, there, store, toolchain)


def _pull(repository: Repository, there: StoredManifest, store: Store, toolchain: str) -> Shared:
    reference = f"{repository.reference.name}:{tag_of(toolchain)}"
    document, found = there.document(), contents(repository, there)
    if document.get("artifactType") != ARTIFACT_TYPE or len(found) != 1:
        raise _wrong(reference, "It is another kind of artifact.")
    if document.get("annotations", {}).get(TOOLCHAIN) != toolchain:
        raise _wrong(reference, "Its objects are those of another toolchain.")
    [layer] = found
    folder, new = cache_folder(store, toolchain), 0
    with store.scratch() as scratch:
        archive = scratch / "objects.tar"
        repository.download(layer.digest, layer.size, archive)
        entries = sum(1 for _ in _members(archive, reference))  # all are checked before the first is used
        for member, content in _members(archive, reference):
            new += _add(folder / member.name, member, content)
    return Shared(reference, entries, layer.size, new)


def _members(archive: Path, reference: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Read an archive, and raise an error for anything that is not an entry of ccache."""
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or not _ENTRY.fullmatch(member.name):
                    raise _wrong(reference, f"It contains {member.name[:80]!r}, which no ccache has.")
                if content.read(len(_MAGIC)) != _MAGIC:
                    raise _wrong(reference, f"{member.name} does not begin like an entry of ccache.")
                content.seek(0)
                yield member, content
    except tarfile.TarError as error:
        raise _wrong(reference, f"It cannot be unpacked: {error}.") from None


def _add(target: Path, member: tarfile.TarInfo, content: IO[bytes]) -> bool:
    if target.exists():
        return False
    with writing(target) as file:
        shutil.copyfileobj(content, file)
    os.utime(target, (member.mtime, member.mtime))  # ccache drops what was not used for longest
    return True


def _newest(folder: Path, most: float) -> list[Path]:
    """Return the entries that were used last, as many as fit."""
    found = [path for path in folder.glob("?/?/*") if _ENTRY.fullmatch(path.relative_to(folder).as_posix())]
    chosen: list[Path] = []
    total = 0
    for path in sorted(found, key=lambda path: (-path.stat().st_mtime_ns, path.name)):
        total += path.stat().st_size
        if total > most:
            break
        chosen.append(path)
    return chosen


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def _wrong(reference: str, why: str) -> ObjectCacheError:
    return ObjectCacheError(
        "That is not a cache of compiled objects.",
        where=reference,
        why=why,
        fix="Do not use it. Find out who wrote it, delete the tag, and push your own objects.",
    )
