"""Plans a night: which images are not pushed yet, not tested yet, or not tagged yet.

All state between two nights is in the registry and in the record of layers. So a run continues where an earlier one was
interrupted, or had more to do than fits into one run.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.layer_records import remember
from imagefactory.assemble.watch import Watcher
from imagefactory.check.smoke.record import has_gpu, required_levels, serving_elsewhere
from imagefactory.ci.jobs import Compile, Need, Night, Trouble, Work
from imagefactory.compile.settings import FILE
from imagefactory.compile.source_tree import head_of
from imagefactory.errors import FactoryError, NetworkError, RegistryError
from imagefactory.lock.making import make_locks
from imagefactory.lock.wheelhouse.adopt import mods_of_sources, offers_for
from imagefactory.lock.wheelhouse.keep import CompiledWheel
from imagefactory.lock.wheelhouse.share import remote_wheels
from imagefactory.oci.image import Image
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, buildable, compiled_distributions
from imagefactory.project.project import Project
from imagefactory.project.server_versions import choice_for
from imagefactory.project.servers.known import server_of
from imagefactory.publish.answers import unaccepted
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.publish.catalog import Catalog, ImagePart, Published
from imagefactory.publish.gate import made_of
from imagefactory.publish.history import change_of, misplaced_tags
from imagefactory.publish.records import read_records
from imagefactory.publish.staging import require_record
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tags import NIGHTLY_VERSION, is_home, moving_tags, staging_tag
from imagefactory.store.digests import checksum, file_sha256
from imagefactory.store.progress import Say


@dataclass(frozen=True)
class NightVerdict:
    """What is missing for a cell, or why nothing can be done."""

    needs: tuple[Need, ...] = ()
    reason: str = ""
    held: str = ""


def nightly_cells(project: Project) -> list[Cell]:
    """List the cells of a night: everything locked, and what the night itself compiles and locks.

    That is every model on its own arch, on the version `nightly` and on grafts. A whole compile of a release takes many
    hours, and starts by hand.
    """
    matrix, found = project.matrix, []
    for cell in buildable(matrix):
        choice, _ = choice_for(matrix.versions[cell.version].compile, cell.arch)
        compiled_here = cell.version == NIGHTLY_VERSION or choice == "graft"
        if project.is_locked(cell) or (compiled_here and is_home(matrix, cell)):
            found.append(cell)
    return found


def plan_night(
    project: Project,
    repository: Repository,
    cells: Iterable[Cell],
    *,
    retry: bool = False,
    gpu: bool = False,
    first: bool = False,
) -> Night:
    """Compare the plans of locked cells with the registry. A cell that cannot be planned does not stop the others.

    `retry` tests images again that failed; `gpu` adds tests on a machine with a GPU. `first` asks the registry nothing:
    some deny access to a repository that does not exist yet.
    """
    catalog = Catalog() if first else read_catalog(repository).catalog
    known = KnownLayers(project.known_layers)
    works: list[Work] = []
    broken: list[Trouble] = []
    held: list[Trouble] = []
    current = 0
    for cell in filter(project.is_locked, cells):
        target = f"{cell}/{cell.machine}"
        try:
            plan = make_plan(project, cell)
            recorded = require_record(known, plan)
            place = None if first else repository
            verdict = judge(project, place, catalog, plan, recorded, retry=retry, gpu=gpu)
        except RegistryError:  # concerns every cell
            raise
        except FactoryError as error:
            broken.append(Trouble(target, error.what, f"{error.where}: {error.why}"))
            continue
        if verdict.held:
            held.append(Trouble(target, verdict.held, verdict.reason))
        elif verdict.needs:
            works.append(Work(cell, plan.key, verdict.needs, verdict.reason, *_machines(project, cell)))
        else:
            current += 1
    name = repository.reference.name
    return Night(name, works=tuple(works), broken=tuple(broken), held=tuple(held), current=current)


def judge(
    project: Project,
    repository: Repository | None,
    catalog: Catalog,
    plan: Plan,
    recorded: Image,
    *,
    retry: bool = False,
    gpu: bool = False,
) -> NightVerdict:
    """Return what is missing between a plan and its tags; without a repository to ask, everything is."""
    tags = moving_tags(project.matrix, plan.cell)
    settled = _settled(repository, catalog, plan, tags) if repository else None
    if settled is not None:
        return settled
    # Continue where an earlier run stopped: before the push, the tests or the promotion.
    tested: tuple[Need, ...] = ("smoke", "gpu") if gpu and has_gpu(project.matrix, plan.arch) else ("smoke",)
    everything: tuple[Need, ...] = ("image", *tested, "promote")
    why = reason(catalog.current(tags, plan.platform), plan)
    staged = repository.resolve(staging_tag(plan.key)) if repository else None
    if repository is None or staged is None:
        return NightVerdict(everything, why)
    if recorded.digest != staged:
        return NightVerdict(everything, f"{why}; another image is in its place")
    record = read_records(repository, staged, plan.key)
    levels = record.levels.items() if record else ()
    failed = [f"{level}: {result.why}" for level, result in levels if result.outcome == "failed"]
    if failed and not retry:
        return NightVerdict(reason="; ".join(failed), held="failed its smoke tests")
    if not retry and (changed := unaccepted(repository, staged, plan.key)):
        return NightVerdict(reason=changed, held="gives other answers")
    if record is None or record.missing(required_levels(project.matrix, plan.arch)):
        needs, state = (*tested, "promote"), "pushed, but not tested yet"
    else:
        needs, state = ("promote",), "tested, but not promoted yet"
    return NightVerdict(needs, f"{why}; {state}")


def _settled(repository: Repository, catalog: Catalog, plan: Plan, tags: Sequence[str]) -> NightVerdict | None:
    """Judge an image that is published, or that a rollback holds back; None if it is neither."""
    current = catalog.current(tags, plan.platform)
    is_current = current is not None and current.plan_key == plan.key
    holds = catalog.holds(tags).items()
    rollback = next((event for digest, event in holds if catalog.made_from(digest, plan.key)), None)
    if not is_current and rollback is None:
        return None
    wrong = ", ".join(misplaced_tags(repository, catalog, tags))
    if wrong:  # if a rollback was interrupted, `promote` moves the tags, and refuses the image
        place = "the catalog has it" if is_current else "the rollback puts it"
        return NightVerdict(("promote",), f"{wrong}: not where {place}")
    if is_current or rollback is None:
        return NightVerdict()
    return NightVerdict(reason=f"on {rollback.time:%Y-%m-%d}, to {rollback.image}", held="rolled back")


def reason(before: Published | None, plan: Plan) -> str:
    """Return why an image must be made: the server changed, or else the first layer that differs.

    The layer of a mod is made on top of those before it, so a change also changes what follows: the first difference
    is the cause.
    """
    if before is None:
        return "never published"
    old, new = before.parts, {part.name: part for part in made_of(plan)}
    found = differences(old, new)
    if not found:
        return "the image's configuration changed"
    distribution = server_of(plan.cell).distribution
    server = {f"wheel {distribution}", f"wheel {distribution}-cpu"}
    first = next((name for name in found if name in server), found[0])
    kind, _, name = first.partition(" ")
    before_part, after = old.get(first), new.get(first)
    moved = before_part and after and before_part.version != after.version
    thing = f"{name} wheel" if kind == "wheel" else {"serve": "serve program"}.get(kind, first)
    return change_of(name if moved else thing, before_part, after)


def differences(old: dict[str, ImagePart], new: dict[str, ImagePart]) -> list[str]:
    """List the layers that differ, in order; one that is gone stands where it was."""
    places = {name: place for layers in (new, old) for place, name in enumerate(layers)}
    return sorted((name for name in places if old.get(name) != new.get(name)), key=places.__getitem__)


def _machines(project: Project, cell: Cell) -> tuple[str, str]:
    """Return the levels for machines of a cell's own platform, and the platform for `serve` if that is another one."""
    required = required_levels(project.matrix, cell.arch)
    elsewhere = serving_elsewhere(project, cell) if "serve" in required else ""
    return ",".join(level for level in required if level != "serve") if elsewhere else "", elsewhere


class Compiles(NamedTuple):
    """Wheels that must be compiled, and wheels that were compiled but are not locked yet."""

    jobs: list[Compile]
    unlocked: dict[Cell, tuple[str, ...]]
    """The keys of the wheels that each cell's lock has to name."""


def find_compiles(project: Project, repository: Repository | None, cells: Iterable[Cell]) -> Compiles:
    """Compare the wheels that cells need compiled with those in the registry, if there is one."""
    wanted = {cell: names for cell in cells if (names := compiled_distributions(project.matrix, cell))}
    shared = remote_wheels(repository) if repository and wanted else []
    commits: dict[str, str | None] = {}
    jobs: dict[tuple[str, str, str, str], Compile] = {}
    unlocked: dict[Cell, tuple[str, ...]] = {}
    for cell, names in wanted.items():
        version = project.matrix.versions[cell.version]
        if version.git and cell.version not in commits:
            commits[cell.version] = None
            with suppress(NetworkError):
                commits[cell.version] = head_of(version.git, version.ref or "HEAD")
        keys: list[str] = []
        for name in names:
            wheel, why = _choose(project, cell, name, shared, commits.get(cell.version))
            if wheel is None:
                what = "flashinfer" if name.startswith("flashinfer") else name
                source = _source(project, cell, commits.get(cell.version))
                job = Compile(what, cell.version, cell.arch, cell.platform, why, source)
                jobs.setdefault((what, cell.version, cell.arch, cell.platform), job)
            else:
                keys.append(wheel.key)
        locked = project.wheel_lock(cell).wheels if project.is_locked(cell) else ()
        if len(keys) == len(names) and not {*keys} <= {wheel.compiled for wheel in locked}:
            unlocked[cell] = tuple(keys)
    return Compiles(list(jobs.values()), unlocked)


def _source(project: Project, cell: Cell, commit: str | None) -> str:
    """Hash what is compiled for a cell; a branch whose commit is unknown is like no other."""
    version = project.matrix.versions[cell.version]
    at = f"{version.git}@{commit or uuid4()}" if version.git else str(version.version)
    pins = project.root / FILE
    return checksum([at, mods_of_sources(project, cell), file_sha256(pins) if pins.exists() else ""])[:16]


def lock_compiled(project: Project, wheels: Mapping[Cell, tuple[str, ...]], watch: Watcher, say: Say) -> dict[str, str]:
    """Lock cells with the wheels that were compiled for them, and record their layers; return the files that changed.

    It is what a maintainer does by hand: `./inv lock --wheel KEY`, then `./inv build`.
    """
    before = _lock_files(project)
    for keys in dict.fromkeys(wheels.values()):
        cells = [cell for cell, chosen in wheels.items() if chosen == keys]
        for _ in make_locks(project, cells, wheels=keys, say=say):
            """Each lock is written as it is made."""
    locked = Project(project.root, project.store)  # a project reads each of its files once
    update_licences(locked, say)
    plans = [make_plan(locked, cell) for cell in wheels]
    known = KnownLayers(locked.known_layers)
    remember(locked, known, plans, make_layers(BuildRun(locked, plans, watch, known)))
    return {path: text for path, text in _lock_files(project).items() if text != before.get(path)}


def _lock_files(project: Project) -> dict[str, str]:
    files = (path for path in project.locks.rglob("*") if path.is_file())
    return {path.relative_to(project.root).as_posix(): path.read_text("utf-8") for path in files}


def _choose(
    project: Project, cell: Cell, name: str, shared: Sequence[CompiledWheel], commit: str | None
) -> tuple[CompiledWheel | None, str]:
    """Return the wheel that a cell needs, or the reason why it must be compiled."""
    if name != "vllm":
        fit = offers_for(project, cell, name, shared).fit
        return (fit[-1], "") if fit else (None, f"{name} was never compiled for {cell.arch}")
    version = project.matrix.versions[cell.version]
    fit = offers_for(project, cell, name, shared, str(version.version)).fit
    why = f"vLLM {cell.version} was never compiled for {cell.arch}"
    if commit is not None:  # else the newest compile of the branch will do
        fit = [wheel for wheel in fit if wheel.inputs.sources.get("vllm") == f"{version.git}@{commit}"]
        why = f"{version.git} {version.ref} is at {commit[:12]}"
    if not fit:
        return None, why
    mods = mods_of_sources(project, cell)
    fit = [wheel for wheel in fit if wheel.inputs.mods == mods]
    return (fit[-1], "") if fit else (None, "the mods of its sources changed")
