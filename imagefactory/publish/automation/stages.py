"""The stages of a night, for several cells: each is done by itself, and one that fails does not stop the others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors import FactoryError
from imagefactory.errors.ci import CellsFailedError, NoRoomError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.publish.promote import Promotion, promote
from imagefactory.publish.push import Staged, push
from imagefactory.publish.smoke_records import attach_record
from imagefactory.publish.tags import staging_tag
from imagefactory.smoke.levels import required_levels
from imagefactory.smoke.record import Level, SmokeRecord
from imagefactory.smoke.runner import RECORD

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Signer

MARGIN: Final = 0.5
"""GB for everything that is small."""
Test = Callable[[Project, Repository, Cell, Sequence[Level], Say], SmokeRecord]


@dataclass
class Done:
    """What became of the cells of a job."""

    finished: dict[Cell, str] = field(default_factory=dict)
    failed: dict[Cell, FactoryError] = field(default_factory=dict)

    def refuse_failures(self, doing: str) -> None:
        """Fail when any cell failed, and name all of them."""
        if not self.failed:
            return
        first = next(iter(self.failed.values()))
        raise CellsFailedError(
            f"{len(self.failed)} of {len(self.failed) + len(self.finished)} could not be {doing}.",
            where=", ".join(f"{cell}/{cell.machine}" for cell in self.failed),
            why="; ".join(f"{cell}: {error.what} {error.why}" for cell, error in self.failed.items()),
            fix=first.fix,
        )


def push_each(
    project: Project, repository: Repository, cells: Sequence[Cell], watch: Watcher, say: Say
) -> Done:
    """Assemble and upload the image of each cell, under its staging tag."""

    def one(cell: Cell) -> str:
        [staged] = push(project, repository, [cell], watch, say)
        return _pushed(staged)

    return _each(cells, one, say)


def smoke_each(
    project: Project,
    repository: Repository,
    cells: Sequence[Cell],
    say: Say,
    *,
    levels: Sequence[Level] = (),
    test: Test | None = None,
) -> Done:
    """Test what was pushed for each cell, pulled by its digest; records stay in build/smoke."""

    def one(cell: Cell) -> str:
        wanted = levels or required_levels(project.matrix, cell.arch)
        record = (test or smoke_pushed)(project, repository, cell, wanted, say)
        missing = record.missing(wanted)
        if missing:
            from imagefactory.errors.smoke import SmokeFailedError  # noqa: PLC0415

            raise SmokeFailedError(
                f"{record.target} did not pass its smoke tests.",
                where=record.image,
                why="; ".join(missing),
                fix="The log is in build/smoke; correct what it says, and nothing was tagged meanwhile.",
            )
        return ", ".join(f"{level}: {result.outcome}" for level, result in record.levels.items())

    return _each(cells, one, say)


def smoke_pushed(
    project: Project, repository: Repository, cell: Cell, levels: Sequence[Level], say: Say
) -> SmokeRecord:
    """Pull what was pushed for a cell, and test it."""
    from imagefactory.publish.pipeline import docker_login  # noqa: PLC0415 - with Docker's client
    from imagefactory.smoke.runner import smoke  # noqa: PLC0415
    from imagefactory.smoke.subject import subject_of_image  # noqa: PLC0415

    manifest = repository.require_manifest(staging_tag(make_plan(project, cell).key))
    reference = f"{repository.reference.name}@{manifest.digest}"
    return smoke(project, subject_of_image(project, reference, auth=docker_login(repository)), levels, say)


def promote_all(
    project: Project,
    repository: Repository,
    cells: Sequence[Cell],
    say: Say,
    *,
    records: Sequence[Path] = (),
    signer: Signer | None = None,
    moment: datetime | None = None,
) -> Promotion:
    """Attach what was found and what is said about each image, and move the tags of those that passed.

    `records` are folders like build/smoke: several machines may have tested the same image.
    """
    from imagefactory.publish.attest.attachments import attach_all  # noqa: PLC0415 - with the signing of statements

    def one(cell: Cell) -> str:
        plan = make_plan(project, cell)
        manifest = repository.manifest(staging_tag(plan.key))
        if manifest is None:  # promote says so
            return "not pushed"
        found = [folder / manifest.digest.removeprefix("sha256:") / RECORD for folder in records]
        handed_on = [SmokeRecord.read(path) for path in found if path.exists()]
        if not handed_on:
            say(f"{cell}: no smoke record was handed on")
        for record in handed_on:
            attach_record(repository, record)
        attach_all(repository, project, plan, manifest, signer)
        return str(manifest.digest)

    attached = _each(cells, one, say)
    outcome = promote(project, repository, list(attached.finished), moment=moment)
    return Promotion(outcome.promoted, [*attached.failed.values(), *outcome.refused])


def room_needed(project: Project, cells: Sequence[Cell], *, pulled: bool = False) -> float:
    """Reckon how many GB a job takes at most: to assemble images, or (`pulled`) to have an engine pull them."""
    layers = {layer.key: layer for cell in cells for layer in make_plan(project, cell).layers}.values()
    packed = sum(layer.download for layer in layers)
    # Assembling keeps the files and the layers made of them; an engine keeps layers until they are unpacked.
    return (packed + (sum(layer.unpacked for layer in layers) if pulled else packed)) / 1e9 + MARGIN


def refuse_full(folder: Path, need_gb: float) -> float:
    """Fail when a disk has less room than is needed, before hours of work; give what is free, in GB."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    if free < need_gb:
        raise NoRoomError(
            f"There are {free:.1f} GB free; {need_gb:.1f} GB are needed.",
            where=folder,
            why="GitHub promises 14 GB on its machines, and most have more.",
            fix="Run the job again: another machine may have more. On your own, `invoke clean` frees the cache.",
        )
    return free


def _each(cells: Sequence[Cell], work: Callable[[Cell], str], say: Say) -> Done:
    done = Done()
    for cell in cells:
        try:
            done.finished[cell] = work(cell)
        except FactoryError as error:
            done.failed[cell] = error
            say(f"{cell}/{cell.machine}: {error.what} {error.why}")
    return done


def _pushed(staged: Staged) -> str:
    return f"{staged.image.digest}"


def subjects(outcome: Promotion, name: str) -> str:
    """List what was promoted as checksums: what `actions/attest` takes to speak of several images at once."""
    lines: Mapping[str, str] = {
        promoted.image.digest.removeprefix("sha256:"): name for promoted in outcome.promoted
    }
    return "".join(f"{digest}  {named}\n" for digest, named in lines.items())
