"""Finds what a pull request changes: mods, images, the inputs that caused it; and rebuilds the records that it edits.

A build skips a layer whose recorded digest the registry has. So a record is believed everywhere once it is committed,
and is checked before, from the lock and without the cache.
"""

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.watch import Watcher
from imagefactory.ci.jobs import RUNNERS
from imagefactory.ci.run_summary import folded, page
from imagefactory.errors import BuildError, FactoryError, TrustError
from imagefactory.mods.compatibility import check_mods, markdown, releases
from imagefactory.mods.conflicts import find_conflicts
from imagefactory.mods.source_files import Trees
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers, RecordedLayer, read_slimmed
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.plan.plan import Plan, WheelLayer
from imagefactory.plan.status import diff_plans
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.counterparts import has_gpu
from imagefactory.project.locks.kernels import SlimLock
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.progress import count

_SHOWN = 6


@dataclass(frozen=True)
class Affected:
    """A target whose image changes, or can no longer be built, and how."""

    cell: Cell
    how: tuple[str, ...]
    fault: bool = False

    @property
    def target(self) -> str:
        return self.cell.full_target


@dataclass(frozen=True)
class Changes:
    """The difference between two commits of the repository."""

    mods: tuple[str, ...]
    affected: tuple[Affected, ...]
    fits: str = ""  # the versions that these mods fit, as a table

    def jobs(self, project: Project) -> list[dict[str, str]]:
        """List the targets that a machine without a GPU builds and tests."""
        return [
            {"name": affected.target, "target": affected.target, "runner": RUNNERS[affected.cell.platform]}
            for affected in self.affected
            if not affected.fault and not has_gpu(project.matrix, affected.cell.arch)
        ]

    def markdown(self) -> str:
        """Format the changes as Markdown; targets that changed in the same way are grouped."""
        mods = f"{page('Mods', [self.fits])}\n" if self.fits else ""
        return mods + page("Images", self._images())

    def _images(self) -> list[str]:
        if not self.affected:
            return ["No image changes."]
        alike: dict[tuple[str, ...], list[str]] = {}
        for affected in self.affected:
            alike.setdefault(affected.how, []).append(affected.target)
        lines = [f"Affected: {count(len(self.affected), 'target')}.", ""]
        for what, targets in alike.items():
            more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
            listed = [f"- `{target}`" for target in targets]
            lines += folded(f"{targets[0]}{more}", [*listed, "", "```", *what, "```"])
        return lines


def find_changes(project: Project, base: str) -> Changes:
    """Compare a checkout with an earlier commit of it: every plan, before and after."""
    with worktree(project.root, base) as folder:
        try:
            before = _plans(Project(folder, project.store))
        except FactoryError:  # written for another version of the library: everything is new then
            before = {}
        after = _plans(project)
    for conflict in find_conflicts(project, Trees(project), releases(project.matrix)):
        after |= {cell: str(conflict) for cell in conflict.cells if cell in after}
    mods = changed_mods(project, base)
    return Changes(mods, tuple(_compare(before, after)), _fits(project, mods) if mods else "")


def _fits(project: Project, mods: Sequence[str]) -> str:
    """Return the table of versions that mods fit; `mods.check` fails where one does not, so here it is only shown."""
    try:
        return markdown(check_mods(project, mods))
    except FactoryError as error:
        return f"{error.what} {error.why}"


def changed_mods(project: Project, base: str) -> tuple[str, ...]:
    """List the mods of this checkout with files that differ from a commit."""
    # Without -z, Git quotes names that have unusual characters.
    names = git(project.root, "diff", "--name-only", "-z", base, "--", "mods").split("\0")
    names += git(project.root, "ls-files", "--others", "--exclude-standard", "-z", "--", "mods").split("\0")
    folders = {name.split("/")[1] for name in names if name.count("/") >= 2}  # noqa: PLR2004 - mods/NAME/file
    return tuple(sorted(folders & project.mods.keys()))


@contextmanager
def worktree(root: Path, commit: str, branch: str = "") -> Iterator[Path]:
    """Check a commit out into a temporary worktree; what is committed there moves `branch`, if it is named."""
    with TemporaryDirectory(prefix="imagefactory-base-") as scratch:
        folder = Path(scratch) / "base"
        # -B: an earlier run may have left the branch.
        place = ["-B", branch] if branch else ["--detach"]
        git(root, "worktree", "add", *place, "--quiet", str(folder), commit)
        try:
            yield folder
        finally:
            # Without --force, Git keeps a worktree that has changed files.
            git(root, "worktree", "remove", "--force", str(folder))


def _plans(project: Project) -> dict[Cell, Plan | str]:
    plans: dict[Cell, Plan | str] = {}
    for cell in buildable(project.matrix):
        if project.is_locked(cell):
            try:
                plans[cell] = make_plan(project, cell)
            except FactoryError as error:
                plans[cell] = f"{error.what} ({error.where}) {error.why}"
    return plans


def _compare(before: dict[Cell, Plan | str], after: dict[Cell, Plan | str]) -> Iterator[Affected]:
    for cell, plan in after.items():
        old = before.get(cell)
        if isinstance(plan, str):
            if plan != old:
                yield Affected(cell, (f"cannot be built: {plan}",), fault=True)
        elif not isinstance(old, Plan):
            yield Affected(cell, ("new",))
        elif old.key != plan.key:
            lines = [f"{change.name}: {change.what}" for change in diff_plans(old, plan)]
            more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
            yield Affected(cell, (*lines[:_SHOWN], *more))


def git(root: Path, *arguments: str) -> str:
    try:
        completed = subprocess.run(  # noqa: S603 - our own arguments
            ["git", "-C", str(root), *arguments],  # noqa: S607 - as the user's shell finds it
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", "") or str(error)
        raise BuildError(
            "run-failed",
            "Git cannot do what is needed here.",
            where=f"git {' '.join(arguments)}",
            why=message.strip().splitlines()[-1] if message.strip() else "",
            fix="A commit has to be in this clone; in a workflow, check out with `fetch-depth: 0`. A branch must be "
            "checked out nowhere, and to commit, Git needs `user.name` and `user.email`.",
        ) from None
    return completed.stdout


def changed_records(project: Project, base: str) -> dict[Sha256, RecordedLayer]:
    """List the layers whose record, or that of their slimmed libraries, is new or different since a commit."""
    now = KnownLayers(project.known_layers)
    with worktree(project.root, base) as folder:
        older = Project(folder, project.store)
        try:
            before, slimmed = KnownLayers(older.known_layers).layers, older.slim_lock.wheels
        except FactoryError:  # written for another version of the library: everything is new then
            return dict(now.layers)
    layers = {key: record for key, record in now.layers.items() if before.get(key) != record}
    changed = {wheel.sha256 for wheel in project.slim_lock.wheels if wheel not in slimmed}
    for layer in (layer for plan in locked_plans(project) for layer in plan.layers) if changed else ():
        if isinstance(layer, WheelLayer) and not changed.isdisjoint(wheel.sha256 for wheel in layer.inputs):
            layers |= {layer.key: now.layers[layer.key]} if layer.key in now.layers else {}
    return layers


def check_records(project: Project, changed: Mapping[Sha256, RecordedLayer], watch: Watcher) -> None:
    """Rebuild what changed; raise an error with every record that something else comes out for."""
    refuted = list(_refuted_layers(project, changed, watch))
    if refuted:
        raise TrustError(
            "record-refuted",
            f"{len(refuted)} changed record{'s do' if len(refuted) > 1 else ' does'} not hold.",
            where=project.known_layers,
            why="; ".join(refuted),
            fix="Do not merge this. Restore the file from the base commit, run `./inv build --target` with each "
            "changed target, and commit what it records.",
        )


def _parts(project: Project, layers: Collection[Sha256]) -> Iterator[Plan]:
    left = set(layers)
    for plan in locked_plans(project):
        matching = {layer.key: layer for layer in plan.layers if layer.key in left}
        left -= matching.keys()
        if matching:
            yield plan.model_copy(update={"layers": tuple(matching.values())})


def _refuted_layers(project: Project, layers: Mapping[Sha256, RecordedLayer], watch: Watcher) -> Iterator[str]:
    left = dict(layers)
    for part in _parts(project, layers):
        with project.store.scratch() as scratch:
            # An empty store: a cached layer proves nothing about its record.
            fresh = replace(project, store=Store(scratch / "store"))
            built = make_layers(BuildRun(fresh, [part], watch))
            slimmed = {wheel.sha256: wheel for key in built for wheel in read_slimmed(key, fresh.store)}
        for layer in part.layers:
            if not isinstance(layer, WheelLayer) or layer.settings.slim is None:
                continue
            chip, rule = layer.settings.slim.chip, layer.settings.slim.rule
            for wheel in layer.inputs:
                if project.slim_lock.find(wheel.sha256, chip, rule) != slimmed.get(wheel.sha256):
                    yield f"{wheel.name}: {SlimLock.file} has something else about it than a rebuild gives"
        for key, blob in built.items():
            record = left.pop(key)
            if record.blob != blob:
                yield f"{record.name} (key {key}): recorded {_blob(record.blob)}, a rebuild gives {_blob(blob)}"
    yield from (f"{record.name} (key {key}): no locked target has it" for key, record in left.items())


def _blob(blob: Blob) -> str:
    return f"{blob.digest} (diff_id {blob.diff_id}, {blob.size} bytes, {blob.unpacked} unpacked)"
