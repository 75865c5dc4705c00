"""The record of licences: locks/licences.toml, read from packages once and committed.

An SBOM or a licence summary then needs no packages, and comes out the same everywhere.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname
from zipfile import BadZipFile, ZipFile

import requests

from imagefactory.assemble.inputs import LayerInputs
from imagefactory.errors import LockError, NetworkError
from imagefactory.project.locks.files import BaseLock, LicenceLock, LicensedFile, LockedDeb, LockedWheel
from imagefactory.project.project import Project, locked_cells
from imagefactory.publish.attest.spdx import UNDECLARED, DeclaredLicence, deb_licence, is_known, wheel_licence
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Downloader, Wanted
from imagefactory.store.http import RangeFile, new_session
from imagefactory.store.index_config import redact
from imagefactory.store.progress import Say, count

PARALLEL = 8
_Package = TypeVar("_Package", LockedWheel, LockedDeb)


class Licences:
    """The licences of locked files, by sha256."""

    def __init__(self, project: Project) -> None:
        self.path = LicenceLock.path(project.locks)
        self.files = {entry.sha256: entry for entry in project.licence_lock.files}

    def of(self, package: LockedWheel | LockedDeb) -> LicensedFile:
        self.refuse_missing([package])
        return self.files[package.sha256]

    def refuse_missing(self, packages: Iterable[LockedWheel | LockedDeb]) -> None:
        """Raise an error if the licence of a locked file is not on record."""
        missing = sorted({_file_name(package) for package in packages if package.sha256 not in self.files})
        if missing:
            more = f" (and of {count(len(missing) - 1, 'more file')})" if len(missing) > 1 else ""
            raise LockError(
                "no-licence-record",
                f"The licence of {missing[0]}{more} is not on record.",
                where=self.path,
                why="Files were locked after the licences were last recorded.",
                fix="Run `./inv licences --update` and commit the result.",
            )


def update_licences(project: Project, say: Say) -> tuple[Path, bool]:
    """Read the licences of locked files that are not on record, and drop those that no lock names any more.

    Wheels are read by range request; Debian packages have to be downloaded. Where a package's files name no licence of
    SPDX's list, the record of another release of it holds, if somebody found out there.
    """
    path = LicenceLock.path(project.locks)
    recorded = Licences(project).files
    sources = LayerInputs(project, locked_cells(project))
    locked_wheels, base_locks = _locked(project)
    wheels = _unknown(locked_wheels, recorded)
    if wheels:
        say(f"Reading the licences of {count(len(wheels), 'wheel')}")
        recorded |= _carried_over(_read_wheels(project, sources, wheels), recorded)
    for lock in base_locks:
        debs = _unknown(lock.debs, recorded)
        if debs:
            say(f"Reading the licences of {len(debs)} Debian packages for {lock.platform}")
            recorded |= _carried_over(_read_debs(project, sources, lock, recorded), recorded)
    needed = {wheel.sha256 for wheel in locked_wheels}
    needed |= {deb.sha256 for lock in base_locks for deb in lock.debs}
    kept = sorted((recorded[sha256] for sha256 in needed), key=lambda entry: (entry.file, entry.sha256))
    return path, LicenceLock(made_from={}, files=tuple(kept)).write(path)


def _carried_over(
    entries: Iterable[LicensedFile], recorded: Mapping[Sha256, LicensedFile]
) -> dict[Sha256, LicensedFile]:
    by_package = {
        _package_name(old.file): {"licence": old.licence, "says": old.says}
        for old in recorded.values()
        if old.says in ("text", "elsewhere") and is_known(old.licence)
    }
    return {
        entry.sha256: entry
        if entry.says != "text" and is_known(entry.licence)
        else entry.model_copy(update=by_package.get(_package_name(entry.file), {}))
        for entry in entries
    }


def check_licences(project: Project) -> None:
    wheels, base_locks = _locked(project)
    debs = [deb for lock in base_locks for deb in lock.debs]
    Licences(project).refuse_missing([*wheels, *debs])


def _locked(project: Project) -> tuple[list[LockedWheel], list[BaseLock]]:
    """Read every lock once: cells share them."""
    cells = locked_cells(project)
    wheel_locks = {project.wheel_lock_path(cell): cell for cell in cells}
    base_locks = {project.base_lock_path(cell): cell for cell in cells}
    wheels = [wheel for cell in wheel_locks.values() for wheel in project.wheel_lock(cell).wheels]
    return wheels, [project.base_lock(cell) for path, cell in base_locks.items() if path.exists()]


def _read_wheels(project: Project, sources: LayerInputs, wheels: Sequence[LockedWheel]) -> list[LicensedFile]:
    with new_session() as session, ThreadPoolExecutor(PARALLEL) as pool:

        def read(wheel: LockedWheel) -> LicensedFile:
            download = project.store.whole_download(wheel.sha256)
            if download is not None:
                with ZipFile(download) as archive:
                    return _entry(wheel, wheel_licence(archive))
            return _entry(wheel, _licence_from_afar(sources.wheel(wheel), session))

        return list(pool.map(read, wheels))


def _licence_from_afar(wheel: Wanted, session: requests.Session) -> DeclaredLicence:
    """Read a wheel's metadata where the wheel is. Its hash is checked when the wheel itself is used."""
    failures: list[str] = []
    for location in wheel.locations():
        parts = urlsplit(location)
        local = url2pathname(parts.path) if parts.scheme == "file" else "" if parts.scheme else location
        try:
            with ZipFile(local or RangeFile(location, session)) as archive:
                return wheel_licence(archive)
        except (OSError, BadZipFile, EOFError, KeyError, StopIteration, ValueError, zlib.error) as error:
            failures.append(f"{redact(location)}: {type(error).__name__}")
    raise NetworkError(
        "download-failed",
        f"The licence of {wheel.file} cannot be read.",
        where=wheel.file,
        why="; ".join(failures) or "No configured index or folder has the file.",
        fix=wheel.remedy,
    )


def _read_debs(
    project: Project, sources: LayerInputs, lock: BaseLock, recorded: Mapping[Sha256, LicensedFile]
) -> list[LicensedFile]:
    """Read the copyright files of a base; a package may share the documentation of another one."""
    unknown = _unknown(lock.debs, recorded)
    with Downloader(project.store) as downloader:
        futures = [downloader.submit(sources.deb(lock, deb), lambda _: None) for deb in unknown]
        files = [future.result() for future in futures]
    declared: dict[str, DeclaredLicence | str] = {
        deb.name: DeclaredLicence(entry.licence, entry.says, entry.notices)
        for deb in lock.debs
        if (entry := recorded.get(deb.sha256))
    }
    declared |= {deb.name: deb_licence(deb, file) for deb, file in zip(unknown, files, strict=True)}
    return [_entry(deb, _followed(deb.name, declared)) for deb in unknown]


def _followed(name: str, declared: Mapping[str, DeclaredLicence | str]) -> DeclaredLicence:
    """Find the package whose documentation a package shares."""
    for _ in range(len(declared)):  # two may point at each other
        entry = declared.get(name)
        if isinstance(entry, DeclaredLicence):
            return entry
        name = entry or name
    return DeclaredLicence(UNDECLARED, "nothing")


def _unknown(packages: Iterable[_Package], recorded: Mapping[Sha256, LicensedFile]) -> list[_Package]:
    return list({package.sha256: package for package in packages if package.sha256 not in recorded}.values())


def _entry(package: LockedWheel | LockedDeb, declared: DeclaredLicence) -> LicensedFile:
    return LicensedFile(file=_file_name(package), sha256=package.sha256, **vars(declared))


def _file_name(package: LockedWheel | LockedDeb) -> str:
    return package.file.rpartition("/")[2]


def _package_name(file: str) -> str:
    return file.partition("_" if file.endswith(".deb") else "-")[0]
