"""Plans a night: which images are not pushed yet, not tested yet, or not tagged yet.

All state between two nights is in the registry and in the record of layers. So a run continues where an earlier one was
interrupted, or had more to do than fits into one run.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.layer_records import remember
from imagefactory.assemble.watch import Watcher
from imagefactory.check.smoke.record import required_levels
from imagefactory.ci.jobs import Compile, Need, Night, Trouble, Work
from imagefactory.ci.waiting import Wheelhouse
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
from imagefactory.project.counterparts import has_gpu, serving_elsewhere
from imagefactory.project.project import Project
from imagefactory.project.server_versions import choice_for
from imagefactory.project.servers.known import server_of
from imagefactory.publish.attest.licence_record import update_licences
from imagefactory.publish.catalog import ImagePart, Published, parts_of
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.history import change_of
from imagefactory.publish.staging import require_record
from imagefactory.publish.standing import Gate, standing
from imagefactory.publish.tags import NIGHTLY_VERSION, is_home, staging_tag
from imagefactory.store.progress import Say


def nightly_cells(project: Project) -> list[Cell]:
    """List the cells of a night: everything locked, and what the night itself compiles and locks.

    That is every model on its own arch, on the version `nightly` and on grafts. A whole compile of a release takes many
    hours, and starts by hand.
    """
    matrix, cells = project.matrix, []
    for cell in buildable(matrix):
        choice, _ = choice_for(matrix.versions[cell.version].compile, cell.arch)
        compiled_here = cell.version == NIGHTLY_VERSION or choice == "graft"
        if project.is_locked(cell) or (compiled_here and is_home(matrix, cell)):
            cells.append(cell)
    return cells


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
    gate = Gate(project, repository, retry=retry, first=first)
    known_layers = KnownLayers(project.known_layers)
    works: list[Work] = []
    broken: list[Trouble] = []
    held: list[Trouble] = []
    waiting: list[Trouble] = []
    current = 0
    wheelhouse = Wheelhouse(gate, known_layers)
    for cell in filter(project.is_locked, cells):
        try:
            plan = make_plan(project, cell)
            left = left_to_do(gate, plan, require_record(known_layers, plan), gpu=gpu)
        except RegistryError:  # concerns every cell
            raise
        except FactoryError as error:
            broken.append(Trouble(cell.full_target, error.what, f"{error.where}: {error.why}", error.fix))
            continue
        if isinstance(left, Work) and "image" in left.needs and (compile_first := wheelhouse.waiting(plan)):
            waiting.append(compile_first)
        elif isinstance(left, Work):
            works.append(left)
        elif left is not None:
            held.append(left)
        else:
            current += 1
    name = repository.reference.name
    return Night(
        name, works=tuple(works), broken=tuple(broken), held=tuple(held), waiting=tuple(waiting), current=current
    )


def left_to_do(gate: Gate, plan: Plan, recorded: Image, *, gpu: bool = False) -> Work | Trouble | None:
    """Return what is left between a plan and its tags, or what only a person can lift; None if it is published."""
    matrix, cell = gate.project.matrix, plan.cell

    def work(needs: tuple[Need, ...], why: str, refused: Trouble | None = None) -> Work:
        return Work(cell, plan.key, needs, why, *_machines(gate.project, cell), refused)

    def trouble(error: FactoryError) -> Trouble:
        target, decided = cell.full_target, stands.is_held_back
        return Trouble(target, error.what, error.why, error.fix, recorded.digest, decided)

    stands = standing(gate, plan, gate.look_up(plan))
    if stands.misplaced:  # if a rollback was interrupted, `promote` moves the tags, and refuses the image
        place = "the rollback puts it" if stands.rollback else "the catalog has it"
        return work(("promote",), f"{', '.join(stands.misplaced)}: not where {place}")
    if stands.current:
        return None
    # Continue where an earlier run stopped: before the push, the tests or the promotion.
    tested: tuple[Need, ...] = ("smoke", "gpu") if gpu and has_gpu(matrix, plan.arch) else ("smoke",)
    needs: tuple[Need, ...] = ("image", *tested, "promote")
    why = reason(gate.snapshot.catalog.current(stands.tags.moving, plan.platform), plan)
    staged = gate.resolve(staging_tag(plan.key))
    if staged == recorded.digest:
        dossier = Dossier(gate.repository, staged)
        stands = standing(gate, plan, gate.look_up(plan, dossier))
        untested = "tests" in stands.needs
        needs = (*tested, "promote") if untested else ("promote",)
        why += f"; {'pushed, but not tested yet' if untested else 'tested, but not promoted yet'}"
        why = "; ".join([why, *dossier.left_out])
    elif staged is not None:
        why += "; another image is in its place"
    if stands.taking:  # the image is published as it is
        why = f"takes over {', '.join(stands.taking)}"
    if stands.lasting:
        return trouble(stands.lasting)
    return work(needs, why, trouble(stands.refusals[0].error) if stands.refusals else None)


def reason(before: Published | None, plan: Plan) -> str:
    """Return why an image must be made: the server changed, or else the first layer that differs.

    The layer of a mod is made on top of those before it, so a change also changes what follows: the first difference
    is the cause.
    """
    if before is None:
        return "never published"
    old, new = before.parts, {part.name: part for part in parts_of(plan)}
    differing = differences(old, new)
    if not differing:
        return "the image's configuration changed"
    distribution = server_of(plan.cell).distribution
    server = {f"wheel {distribution}", f"wheel {distribution}-cpu"}
    first = next((name for name in differing if name in server), differing[0])
    kind, _, name = first.partition(" ")
    before_part, after = old.get(first), new.get(first)
    moved = before_part and after and before_part.version != after.version
    label = f"{name} wheel" if kind == "wheel" else {"serve": "serve program"}.get(kind, first)
    return change_of(name if moved else label, before_part, after)


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
    to_compile = {cell: names for cell in cells if (names := compiled_distributions(project.matrix, cell))}
    shared = remote_wheels(repository) if repository and to_compile else []
    commits: dict[str, str | None] = {}
    jobs: dict[tuple[str, str, str, str], Compile] = {}
    unlocked: dict[Cell, tuple[str, ...]] = {}
    for cell, names in to_compile.items():
        version = project.matrix.versions[cell.version]
        if version.git and cell.version not in commits:
            commits[cell.version] = None
            with suppress(NetworkError):
                commits[cell.version] = head_of(version.git, version.ref or "HEAD")
        locked = project.wheel_lock(cell).wheels if project.is_locked(cell) else ()
        # The same inputs may compile to other bytes, so a key alone does not say that a wheel is locked.
        in_lock = {(wheel.compiled, wheel.sha256) for wheel in locked}
        offered = sorted(shared, key=lambda wheel: (wheel.key, wheel.sha256) in in_lock)  # what is locked comes last
        chosen: list[CompiledWheel] = []
        for name in names:
            wheel, why = _choose(project, cell, name, offered, commits.get(cell.version))
            if wheel is None:
                what = "flashinfer" if name.startswith("flashinfer") else name
                job = what, cell.version, cell.arch, cell.platform
                if job not in jobs:
                    jobs[job] = Compile(*job, why)
            else:
                chosen.append(wheel)
        if len(chosen) == len(names) and not {(wheel.key, wheel.sha256) for wheel in chosen} <= in_lock:
            unlocked[cell] = tuple(wheel.key for wheel in chosen)
    return Compiles(list(jobs.values()), unlocked)


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
    known_layers = KnownLayers(locked.known_layers)
    remember(locked, known_layers, plans, make_layers(BuildRun(locked, plans, watch, known_layers)))
    return {path: text for path, text in _lock_files(project).items() if text != before.get(path)}


def _lock_files(project: Project) -> dict[str, str]:
    files = (path for path in project.locks.rglob("*") if path.is_file())
    return {path.relative_to(project.root).as_posix(): path.read_text("utf-8") for path in files}


def _choose(
    project: Project, cell: Cell, name: str, shared: Sequence[CompiledWheel], commit: str | None
) -> tuple[CompiledWheel | None, str]:
    """Return the wheel that a cell needs, the last that fits, or the reason why it must be compiled."""
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
