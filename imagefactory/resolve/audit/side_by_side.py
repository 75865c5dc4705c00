"""Compares the kernels of several wheels or targets, such as those of the published and the grafted vLLM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile, is_zipfile

from pydantic import ValidationError

from imagefactory.locks.files import Graft
from imagefactory.locks.kernels import KernelVerdict
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select_one
from imagefactory.resolve.audit.auditing import audit
from imagefactory.resolve.wheelhouse.graft_record import RECORD


@dataclass(frozen=True)
class Audited:
    """A subject, how its libraries fare, and which of them were compiled in place of published ones."""

    subject: str
    verdicts: tuple[KernelVerdict, ...]
    grafted: frozenset[str]

    @property
    def title(self) -> str:
        """The subject, or the name of its file."""
        return Path(self.subject).name if Path(self.subject).exists() else self.subject

    def about(self, library: str) -> str:
        """Return what there is to say about a library, or nothing if the subject has no GPU code in it."""
        for verdict in self.verdicts:
            if verdict.library == library:
                whose = "compiled, " if library in self.grafted else ""
                return f"{whose}{verdict.outcome}: {verdict.why}"
        return ""


def audit_all(project: Project, subjects: Sequence[str], arch: str) -> list[Audited]:
    """Audit several subjects for one arch."""
    return [
        Audited(subject, tuple(audit(project, subject, arch)), grafted_libraries(project, subject))
        for subject in subjects
    ]


def grafted_libraries(project: Project, subject: str) -> frozenset[str]:
    """List the files of a wheel or target that were compiled in place of published ones."""
    path = Path(subject)
    grafts: list[Graft] = []
    if subject in project.matrix.vllm or (path / "index.json").exists():
        return frozenset()
    if path.is_file():
        grafts = _of_wheel(path) if is_zipfile(path) else []
    else:
        wheels = project.wheel_lock(select_one(project.matrix, subject)).wheels
        grafts = [wheel.graft for wheel in wheels if wheel.graft is not None]
    return frozenset(file.path for graft in grafts for file in graft.replaced)


def _of_wheel(path: Path) -> list[Graft]:
    with ZipFile(path) as archive:
        places = [name for name in archive.namelist() if name.endswith(f".dist-info/{RECORD}")]
        try:
            return [Graft.model_validate(json.loads(archive.read(place))["graft"]) for place in places]
        except (KeyError, TypeError, ValueError, ValidationError):
            return []  # what it says about itself is checked when it is adopted
