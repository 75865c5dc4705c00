"""Pushes every locked file of a target to the registry: an index may drop a wheel that a lock names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from imagefactory.assemble.inputs import LayerInputs
from imagefactory.errors import NetworkError
from imagefactory.lock.wheelhouse.share import registry_of
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, artifact_manifest
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, checksum
from imagefactory.store.downloads import Downloader, Wanted
from imagefactory.store.progress import Say

ARTIFACT_TYPE: Final = "application/vnd.imagefactory.archive.v1"
MEDIA_TYPE: Final = "application/octet-stream"
_KEY_IN_TAG: Final = 16


@dataclass(frozen=True)
class Archived:
    """The locked files of a target in the registry."""

    reference: str
    files: int
    size: int
    pushed: int
    """The bytes that the registry did not have."""


def archive(project: Project, cells: Iterable[Cell], say: Say) -> list[Archived]:
    """Push the locked files of cells; those that share their locks share an archive."""
    by_locks = {(project.wheel_lock_path(cell), project.base_lock_path(cell)): cell for cell in cells}
    with Repository.open(registry_of(project)) as repository:
        return [_archive(project, cell, repository, say) for cell in by_locks.values()]


def archive_tag(project: Project, cell: Cell) -> str:
    """Return the tag of the archive of a cell, which depends on what is locked."""
    key = checksum([project.wheel_lock(cell).integrity, project.base_lock(cell).integrity])
    return f"archive-{cell.version}-{cell.arch}-{cell.machine}-{key[:_KEY_IN_TAG]}"


def _archive(project: Project, cell: Cell, repository: Repository, say: Say) -> Archived:
    inputs, base = LayerInputs(project, [cell]), project.base_lock(cell)
    wanted = [
        *(inputs.wheel(wheel) for wheel in project.wheel_lock(cell).wheels),
        *(inputs.deb(base, deb) for deb in base.debs),
    ]
    absent = [file for file in wanted if not repository.has_blob(_digest(file))]
    say(f"{cell}: {len(wanted)} locked files, {len(absent)} of them not in the registry yet")
    _upload(project, cell, repository, absent)
    described = [
        Descriptor(MEDIA_TYPE, _digest(file), file.size, annotations={TITLE: file.file.rpartition("/")[2]})
        for file in wanted
    ]
    annotations = {"imagefactory.project.locks": f"{cell.version} {cell.arch} {cell.platform}"}
    manifest = artifact_manifest(repository, ARTIFACT_TYPE, described, annotations=annotations)
    tag = archive_tag(project, cell)
    repository.put_manifest(manifest, MANIFEST_TYPE, tag)
    return Archived(
        reference=f"{repository.reference.name}:{tag}",
        files=len(wanted),
        size=sum(file.size for file in wanted),
        pushed=sum(file.size for file in absent),
    )


def _upload(project: Project, cell: Cell, repository: Repository, absent: Iterable[Wanted]) -> None:
    """Upload files; those that can be found go up even if others have vanished."""
    lost: list[str] = []
    with Downloader(project.store) as downloader:
        futures = [(file, downloader.submit(file, lambda _: None)) for file in absent]
        for file, future in futures:
            try:
                path = future.result()
            except NetworkError:
                lost.append(file.file)
            else:
                repository.upload(_digest(file), file.size, Payload(MEDIA_TYPE, path).open)
    if lost:
        raise NetworkError(
            "archive-incomplete",
            f"{len(lost)} locked file{'s' if len(lost) > 1 else ''} of {cell} cannot be archived.",
            where=", ".join(lost[:5]) + (" and more" if lost[5:] else ""),
            why="No configured index, folder or mirror has them any more; the others are in the registry now.",
            fix="Put them into a folder in PIP_FIND_LINKS and run this again, or lock other versions.",
        )


def _digest(file: Wanted) -> Digest:
    return Digest(f"sha256:{file.sha256}")
