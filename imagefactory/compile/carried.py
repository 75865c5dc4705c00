"""Takes over from a release's published wheel what the toolchain has no compiler for."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from zipfile import ZipFile

from imagefactory.compile.published import find_published
from imagefactory.compile.settings import FILE
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors.kernels import NothingToCarryError
from imagefactory.locks.files import LockedSource, LockedWheel
from imagefactory.matrix.server_versions import ServerVersion
from imagefactory.resolve.wheelhouse.graft_record import published_source


@dataclass(frozen=True)
class Carried:
    """Files of a published wheel that a whole compile contains unchanged."""

    files: tuple[str, ...]
    wheel: LockedWheel | LockedSource | None
    """None for a git reference, which nobody published a wheel of: the compiled one then lacks the files."""

    @property
    def sources(self) -> dict[str, str]:
        """What the key of a compile and its record say of them."""
        return published_source(self.wheel.sha256) if self.wheel else {}

    @property
    def environment(self) -> dict[str, str]:
        """Make vLLM's setup.py fail if one of them is missing; it would go on without a word."""
        return {"VLLM_REQUIRE_RUST_FRONTEND": "1"} if self.wheel else {}

    def __str__(self) -> str:
        names = " and ".join(self.files)
        if self.wheel is None:
            return f"left out, since there is no published wheel to take them from: {names}"
        return f"taken over from {self.wheel.file}, unchanged: {names}"


def find_carried(
    project: CompileProject, vllm: str, version: ServerVersion, platform: str, targets: Sequence[str]
) -> Carried | None:
    """Return what a compile takes over: nothing if it makes no whole wheel, or if everything is compiled."""
    files = project.settings.carried_by(version)
    if targets or not files:
        return None
    if version.release is None:
        return Carried(files, None)
    published = find_published(project, version.release, platform)
    if published is not None:
        return Carried(files, published)
    raise NothingToCarryError(
        f"The published wheel of vLLM {version.release} for {platform} is not locked.",
        where=f"{FILE}, carried",
        why=f"A whole compile takes {' and '.join(files)} from it, which the toolchain has no compiler for.",
        fix=f"Run `invoke lock --target '*@{vllm}'` for an arch on {platform} that uses the published wheel.",
    )


def carry(carried: Carried, wheel: Path, target: Path) -> None:
    """Copy the files out of a wheel into a source tree, from where vLLM's setup.py packs them."""
    with ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if any(fnmatchcase(name, pattern) for pattern in carried.files)
        ]
        for name in names:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file)
            path.chmod(0o755)
    if not names:
        raise NothingToCarryError(
            f"{wheel.name} has none of the files that a compile takes over.",
            where=f"{FILE}, carried",
            why=f"It has neither {' nor '.join(carried.files)}.",
            fix="Correct the range of versions there.",
        )
