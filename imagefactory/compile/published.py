"""What a compile takes from the published wheel of a release: a graft nearly everything, a whole compile some files."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import ZipFile

from imagefactory.compile.settings import FILE
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import InputError
from imagefactory.lock.wheelhouse.keep import MACHINES
from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.project.project import Project, locked_cells

Published = LockedWheel | LockedSource


def find_published(project: Project, release: str, platform: str) -> Published | None:
    """Return the published wheel of a vLLM release for a platform, if it is locked."""
    for cell in locked_cells(project):
        if cell.platform == platform and project.matrix.versions[cell.version].release == release:
            for wheel in project.wheel_lock(cell).wheels:
                if wheel.name == "vllm" and wheel.compiled is None:
                    return wheel
    machine, _ = MACHINES[platform]
    return project.source_lock.find(release, f"_{machine}.whl")


def published_wheel(project: CompileProject, release: str, platform: str) -> Published:
    """Return the published wheel that a graft replaces libraries of."""
    found = find_published(project, release, platform)
    if found is None:
        raise InputError(
            "bad-graft-base",
            f"No published wheel of vLLM {release} for {platform} is locked.",
            where="locks/",
            why="A graft replaces some libraries of the published wheel, which has to be pinned.",
            fix=f"Run `./inv lock` for a target that uses the published vLLM {release} on {platform}.",
        )
    return found


@dataclass(frozen=True)
class Carried:
    """Files of a published wheel that a whole compile contains unchanged: the toolchain cannot compile them."""

    files: tuple[str, ...]
    wheel: Published | None
    """None for a git reference, which nobody published a wheel of: the compiled one then lacks the files."""

    def __str__(self) -> str:
        names = " and ".join(self.files)
        if self.wheel is None:
            return f"left out, since there is no published wheel to take them from: {names}"
        return f"taken over from {self.wheel.file}, unchanged: {names}"


def find_carried(project: CompileProject, vllm: str, platform: str, targets: Sequence[str]) -> Carried | None:
    """Return what a compile takes over: nothing if it makes no whole wheel, or if everything is compiled."""
    version = project.matrix.vllm[vllm]
    files = project.settings.carried_by(version)
    if targets or not files:
        return None
    if version.release is None:
        return Carried(files, None)
    published = find_published(project, version.release, platform)
    if published is None:
        raise InputError(
            "nothing-to-carry",
            f"The published wheel of vLLM {version.release} for {platform} is not locked.",
            where=f"{FILE}, carried",
            why=f"A whole compile takes {' and '.join(files)} from it, which the toolchain has no compiler for.",
            fix=f"Run `./inv lock --target '*@{vllm}'` for an arch on {platform} that uses the published wheel.",
        )
    return Carried(files, published)


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
