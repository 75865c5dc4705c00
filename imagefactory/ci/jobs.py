"""The jobs of a night, as GitHub's job matrices.

Cells of one lock share nearly all of their layers, so one machine assembles and tests them together and downloads
each layer once. A cell that fails does not stop the others of its job.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal, get_args

from imagefactory.project.cells import Cell

MOST_JOBS: Final = 256
"""GitHub's limit for one run."""
CELLS_PER_JOB: Final = 8
RUNNERS: Final[Mapping[str, str]] = {"linux/amd64": "ubuntu-24.04", "linux/arm64": "ubuntu-24.04-arm"}
"""GitHub's runners, by platform."""
ASSEMBLER: Final = "ubuntu-24.04"
"""Images are assembled on any machine, whatever their platform."""

Need = Literal["image", "smoke", "gpu", "promote"]
NEEDS: Final[tuple[Need, ...]] = get_args(Need)


@dataclass(frozen=True)
class Trouble:
    """A cell that has no tags, and why."""

    target: str
    what: str
    why: str
    fix: str = ""
    image: str = ""
    """The digest, where it is on record."""
    decided: bool = False
    """Whether somebody decided so, by a rollback: nothing needs to be mended."""


@dataclass(frozen=True)
class Work:
    """A cell, what must be done to its image, and why."""

    cell: Cell
    key: str
    needs: tuple[Need, ...]
    reason: str
    levels: str = ""
    """The smoke levels that machines of its own platform can run; empty means all required ones."""
    serve_on: str = ""
    """The platform whose machines run the level `serve`, if its own cannot."""
    refused: Trouble | None = None
    """Why an image that was pushed has no tags yet."""

    @property
    def target(self) -> str:
        return self.cell.full_target


@dataclass(frozen=True)
class Compile:
    """A package that must be compiled before cells can be locked."""

    what: str
    vllm: str
    arch: str
    platform: str
    reason: str


@dataclass(frozen=True)
class Night:
    """Everything that a run is going to do, and what it leaves alone."""

    registry: str
    works: tuple[Work, ...] = ()
    compiles: tuple[Compile, ...] = ()
    unlocked: tuple[str, ...] = ()
    """Targets whose wheels are compiled but not locked yet."""
    broken: tuple[Trouble, ...] = ()
    """Cells that cannot be planned, or are not on record."""
    held: tuple[Trouble, ...] = ()
    """Images left alone: they failed their tests, or were rolled back."""
    waiting: tuple[Trouble, ...] = ()
    """Cells whose lock names a wheel that somebody has to compile first."""
    current: int = 0
    """Cells whose image is published and up to date."""
    later: int = 0
    """Cells that did not fit into one run."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, and nothing that a person has to look at."""
        return not (self.works or self.compiles or self.unlocked or self.broken or self.held)

    def matrix(self, need: Need) -> list[dict[str, str]]:
        """Return the jobs of one kind. Promotion is a single job; each other job has the cells of one lock."""
        works = [work for work in self.works if need in work.needs]
        if need == "promote":
            return [{"name": "tags", **_named(works)}] if works else []
        if need == "smoke":
            return [job for group in _groups(works) for job in _smoke_jobs(group)]
        return [_job(need, group) for group in _groups(works)]

    def jobs(self) -> dict[str, list[dict[str, str]]]:
        compiles = [
            {"name": f"{job.what} {job.vllm} for {job.arch}", "runner": RUNNERS[job.platform], **vars(job)}
            for job in self.compiles
        ]
        return {"compile": compiles, **{need: self.matrix(need) for need in NEEDS}}

    def as_json(self) -> dict[str, Any]:
        cells = [{"target": work.target, **asdict(work)} for work in self.works]
        return asdict(self) | {"jobs": self.jobs(), "cells": cells}

    def outputs(self) -> dict[str, str]:
        """Format the job lists as outputs for later jobs of the workflow."""
        lists = {name: json.dumps(jobs) for name, jobs in self.jobs().items()}
        targets = _named([work for work in self.works if "promote" in work.needs])["targets"]
        return lists | {"targets": targets, "unlocked": str(len(self.unlocked))}


def fitted(night: Night) -> Night:
    """Leave out what does not fit into one run; the next run finds it missing again."""
    fits = night
    while fits.works and sum(map(len, fits.jobs().values())) > MOST_JOBS:
        last = _groups(fits.works)[-1]
        kept = tuple(work for work in fits.works if work not in last)
        fits = replace(night, works=kept, later=len(night.works) - len(kept))
    return fits


def _groups(works: Iterable[Work]) -> list[tuple[Work, ...]]:
    def lock(work: Work) -> tuple[str, str, str]:
        return work.cell.version, work.cell.arch, work.cell.platform

    groups: list[tuple[Work, ...]] = []
    for _, group in groupby(sorted(works, key=lambda work: (lock(work), work.cell)), lock):
        members = tuple(group)
        groups += [members[begin : begin + CELLS_PER_JOB] for begin in range(0, len(members), CELLS_PER_JOB)]
    return groups


def _job(need: Need, works: Sequence[Work]) -> dict[str, str]:
    cell = works[0].cell
    models = works[0].cell.model if len(works) == 1 else f"{len(works)} models"
    return {
        "name": f"{models} on {cell.version} for {cell.arch} ({cell.machine})",
        "runner": ASSEMBLER if need == "image" else RUNNERS[cell.platform],
        "arch": cell.arch,
        "platform": cell.platform,
        # Part of the name of the job's artifact, so it must be unique.
        "id": f"{cell.version}-{cell.arch}-{cell.machine}-{works[0].key[:12]}",
        **_named(works),
    }


def _smoke_jobs(works: Sequence[Work]) -> list[dict[str, str]]:
    """Test on a machine of the image's own platform, and on another one what that cannot test."""
    first = works[0]
    job = _job("smoke", works) | {"levels": first.levels}
    if not first.serve_on:
        return [job]
    serving = job | {"name": f"{job['name']}, serving", "runner": RUNNERS[first.serve_on], "levels": "serve"}
    return [*([job] if first.levels else []), serving | {"id": f"{job['id']}-serve"}]


def _named(works: Sequence[Work]) -> dict[str, str]:
    reasons = dict.fromkeys(work.reason for work in works)
    return {"targets": " ".join(work.target for work in works), "reason": "; ".join(reasons)}
