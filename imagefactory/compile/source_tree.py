"""Prepares the source tree of a compile: fetches it, applies source-stage mods, leaves out unneeded parts."""

import os
import posixpath
import shutil
import tarfile
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from imagefactory.compile.git_sources import CompileSource, place
from imagefactory.compile.job import Job, Published
from imagefactory.compile.settings import FILE
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import InputError
from imagefactory.mods.source_files import FolderSource
from imagefactory.project.locks.indexed_files import indexed_file
from imagefactory.store.atomic import WRITING, translating_disk_full
from imagefactory.store.downloads import fetch
from imagefactory.store.http import new_session
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.manifest import Mod, Variant

PARTS = "cmake/external_projects"
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11 before 3.11.4, as in Debian 12, has no filters for extracting."""
LEFT_OUT = "# Left out by `./inv compile`: no target that is compiled needs it.\n"


def prepare(tree: Path, fill: Callable[[Path], None]) -> bool:
    """Fill a tree atomically unless an earlier run did, and return whether it was filled now."""
    if tree.exists():
        return False
    writing = tree.with_name(f"{WRITING}{tree.name}")
    with translating_disk_full(tree):
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        try:
            fill(writing)
            os.sync()  # a power failure must not leave a tree with empty files
            writing.rename(tree)
        except BaseException:
            shutil.rmtree(writing, ignore_errors=True)
            raise
    return True


def fill(project: CompileProject, job: Job, target: Path) -> None:
    sources, main = job.sources, target / job.request.what
    if isinstance(sources.main, CompileSource):
        place(sources.main, main, project.store)
    else:
        unpack_sdist(downloaded(project, sources.main), main)
    for source in sources.dependencies:
        place(source, target / source.name, project.store)
    if sources.carried_from is not None:
        carry(sources.carried, downloaded(project, sources.carried_from), main)
    change(main, sources.mods, sources.left_out)


def downloaded(project: CompileProject, locked: Published) -> Path:
    with new_session() as session:
        return fetch(indexed_file(locked), project.store, session, lambda _: None)


def carry(files: Sequence[str], wheel: Path, target: Path) -> None:
    """Copy files out of a wheel into a source tree, from where vLLM's setup.py packs them."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if any(fnmatchcase(name, file) for file in files)]
        for name in names:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
            path.chmod(0o755)
    if not names:
        raise InputError(
            "nothing-to-carry",
            f"{wheel.name} has none of the files that a compile takes over.",
            where=f"{FILE}, carried",
            why=f"It has neither {' nor '.join(files)}.",
            fix="Correct the range of versions there.",
        )


def unpack_sdist(archive: Path, target: Path) -> None:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                member.name = member.name.partition("/")[2]
                if member.islnk():
                    member.linkname = member.linkname.partition("/")[2]
                if member.name:
                    _refuse_outside(member)
                    tar.extract(member, target, **_SAFELY)
    except (tarfile.TarError, EOFError) as error:
        raise InputError(
            "damaged-file",
            "The sources cannot be unpacked.",
            where=archive,
            why=f"{type(error).__name__}: {error}",
            fix="Remove the file and try again.",
        ) from None


def _refuse_outside(member: tarfile.TarInfo) -> None:
    """Raise a TarError for a member that is, or points, outside of the folder that it is unpacked to."""
    paths = [member.name]
    if member.issym():
        paths.append(posixpath.join(posixpath.dirname(member.name), member.linkname))
    if member.islnk():
        paths.append(member.linkname)
    for path in paths:
        if posixpath.normpath(path).startswith(("/", "..")):
            raise tarfile.ExtractError(f"{member.name} leads out of the folder")


def change(tree: Path, mods: Sequence[tuple[Mod, Variant]], left_out: Iterable[str]) -> None:
    """Apply mods to a tree, and empty the parts of CMake that are left out."""
    for applied in apply_mods(mods, FolderSource(tree).read) if mods else ():
        for path, text in applied.files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text, encoding="utf-8", newline="")
    for part in left_out:
        (tree / PARTS / f"{part}.cmake").write_text(LEFT_OUT, encoding="utf-8")
