"""Compiles locked sources with a pinned toolchain, into a wheel or into a few libraries to inspect."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import requests
from filelock import FileLock, Timeout

from imagefactory.build.watch import Watcher
from imagefactory.compile.capacity import GB, PART, jobs_for, refuse_full_disk
from imagefactory.compile.carried import carry
from imagefactory.compile.compiler import Compiler
from imagefactory.compile.container import Ended, Mount
from imagefactory.compile.estimate import read_work
from imagefactory.compile.git_sources import CompileSource, place
from imagefactory.compile.graft import make_graft, refuse_other_chips
from imagefactory.compile.job import SCRIPTS, Job, Request, work_out
from imagefactory.compile.ninja_progress import CompileProgress, NinjaReader
from imagefactory.compile.object_cache import cache_folder
from imagefactory.compile.packing import repack
from imagefactory.compile.power_loss import drop_doubtful, marked
from imagefactory.compile.source_tree import change, prepare, unpack_sdist
from imagefactory.compile.tended import tended
from imagefactory.compile.toolchain import CompileProject
from imagefactory.compile.under_way import forget
from imagefactory.compile.weights import FACTORY, WEIGHTS
from imagefactory.environment.progress import Say
from imagefactory.errors import did_you_mean
from imagefactory.errors.kernels import (
    CompileBusyError,
    CompileFailedError,
    SourceUnreachableError,
    UnknownTargetError,
)
from imagefactory.errors.store import DiskFullError
from imagefactory.locks.indexed_files import indexed_file
from imagefactory.oci.format import MTIME
from imagefactory.resolve.audit.auditing import audit, refuse_failing
from imagefactory.resolve.audit.side_by_side import grafted_libraries
from imagefactory.resolve.wheelhouse.keep import CompileInputs, KeptWheel, find, keep
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.digests import sha256_of
from imagefactory.store.downloads import fetch as download

_LONGEST_NAME = 100
_KILLED = 137
_DISK_FULL = "No space left on device"
_DOCKER: Final = Compiler()


class CompileWatcher(Watcher, Protocol):
    """Receives the progress of a compile."""

    def step(self, progress: CompileProgress) -> None:
        """Report how many objects are done."""


@dataclass(frozen=True)
class Compiled:
    """The result of a compile."""

    inputs: CompileInputs
    wheel: KeptWheel | None
    libraries: tuple[Path, ...]
    log: Path | None
    """None if nothing had to be compiled."""
    steps: int = 0
    """Objects, libraries and other files that this run made, without those of earlier runs."""


def compile_kernels(
    project: CompileProject,
    request: Request,
    watch: CompileWatcher,
    say: Say,
    *,
    compiler: Compiler = _DOCKER,
) -> Compiled:
    """Compile what the request names, unless the wheelhouse has it already."""
    job = work_out(project, request)
    if not request.inspects:
        kept = find(project.store, job.inputs.key)
        if kept is not None:
            return Compiled(job.inputs, kept, (), None)
    platform = job.inputs.platform
    if platform not in job.arch.platforms:
        say(
            f"{request.arch} is {', '.join(job.arch.platforms)}; what is compiled here runs on {platform} only"
        )
    compiler.refuse_foreign(platform)
    jobs = _check_room(project, job, compiler)
    for mod, _ in job.mods:
        say(f"with the mod {mod.name}: {mod.manifest.summary}")
    if job.carried is not None:
        say(str(job.carried))
    if job.left_out:
        say(f"left out, since no target needs them: {', '.join(job.left_out)}")
    folder = job.folder(project.store)
    with project.store.in_use(), _alone(folder):
        return _compile(project, job, compiler, jobs, watch=watch, say=say)


def _check_room(project: CompileProject, job: Job, compiler: Compiler) -> int:
    """Return how many compilers run at once, or raise an error if memory or disk do not suffice."""
    cost, machine = project.settings.costs[job.request.what], compiler.machine()
    jobs = jobs_for(machine, cost, job.request.jobs)
    needed = cost.disk_gb * (PART if job.request.targets else 1)
    refuse_full_disk(machine, job.folder(project.store), needed, "the objects")
    images = compiler.image_folder(job.plan)
    if images is not None:
        unpacked = sum(layer.unpacked for layer in job.plan.layers)
        refuse_full_disk(machine, images, unpacked / GB, "the toolchain's image in Docker")
    return jobs


def _alone(folder: Path) -> AbstractContextManager[object]:
    """Refuse a second run of the same compile, rather than let it wait for hours."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout:
        raise CompileBusyError(
            "The same compile is already running.",
            where=folder,
            why="Its inputs are the same to the last byte, and both would write to one tree.",
            fix="Wait for it; its result will be in the wheelhouse.",
        ) from None


def _compile(
    project: CompileProject, job: Job, compiler: Compiler, jobs: int, *, watch: CompileWatcher, say: Say
) -> Compiled:
    image = compiler.provide(project, job.plan, watch)
    folder = job.folder(project.store)
    tree, build, out = (folder / name for name in ("src", "build", "out"))
    ccache = cache_folder(project.store, job.inputs.toolchain)
    fresh = prepare(tree, lambda target: _fill(project, job, target))
    say(f"{'compiling' if fresh else 'resuming'} {job.inputs.name} {job.inputs.version} in {folder}")
    say(f"for {job.inputs.arch_list}, up to {jobs} compiler{'s' if jobs > 1 else ''} at once")
    shutil.rmtree(out, ignore_errors=True)
    for path in (build, out, ccache):
        path.mkdir(parents=True, exist_ok=True)
    if dropped := drop_doubtful(folder, build):
        say(
            f"the machine went down during the last run: {dropped} files that may not be whole are made again"
        )
    reader = NinjaReader(work=lambda: read_work(folder))
    tending = tended(project.store, project.settings, job, compiler.machine(), jobs)
    with translating_disk_full(folder), marked(folder, build) as keep_safe, tending:

        def hear(line: str) -> None:
            keep_safe()
            progress = reader.read(line)
            if progress is not None:
                watch.step(progress)

        ended = compiler.run(
            image,
            ["python3", f"/factory/tools/{job.request.what}_build.py", json.dumps(_order(job, jobs))],
            key=job.tree.key,
            mounts=[
                Mount(tree, "/factory/src"),
                Mount(build, "/factory/build"),
                Mount(out, "/factory/out"),
                Mount(ccache, "/ccache"),
                Mount(project.root / SCRIPTS, "/factory/tools", read_only=True),
            ],
            environment=_environment(job),
            log=folder / "log",
            hear=hear,
        )
        if ended.status != 0 and not reader.group_done:
            raise _failed(ended, folder / "log", jobs)
    if job.request.group:
        return Compiled(job.inputs, None, (), folder / "log", reader.objects)
    if job.request.inspects:
        return Compiled(job.inputs, None, _hand_out(project, job, out), folder / "log", reader.objects)
    missing = _missing(job, out)
    if missing:
        raise _failed(Ended(1, (f"The build ended without {missing}.",)), folder / "log", jobs)
    wheel = _finished_wheel(project, job, out)
    verdicts = audit(project, str(wheel), job.request.arch)
    refuse_failing(wheel.name, verdicts)
    refuse_other_chips(grafted_libraries(project, str(wheel)), verdicts, job.request.arch)
    kept = keep(project.store, job.inputs, wheel)
    forget(folder)
    for finished in (tree, build, out):  # tens of gigabytes that are of no use once there is a wheel
        shutil.rmtree(finished, ignore_errors=True)
    return Compiled(job.inputs, kept, (), folder / "log", reader.objects)


def _fill(project: CompileProject, job: Job, target: Path) -> None:
    """Fill a tree with the sources, mods applied, ready to be compiled."""
    main = target / job.request.what
    if job.sdist is not None:
        with requests.Session() as session:
            sdist = download(indexed_file(job.sdist), project.store, session, lambda _: None)
        unpack_sdist(sdist, main)
    elif job.source is not None:
        place(job.source, main, project.store)
    for source in job.dependencies:
        try:
            place(source, target / source.name, project.store)
        except SourceUnreachableError as error:
            raise _with_way_round(job, source, error) from None
    if job.carried is not None and job.carried.wheel is not None:
        with requests.Session() as session:
            published = download(indexed_file(job.carried.wheel), project.store, session, lambda _: None)
        carry(job.carried, published, main)
    change(main, job.mods, job.left_out)


def _with_way_round(job: Job, source: CompileSource, error: SourceUnreachableError) -> SourceUnreachableError:
    """Add to the remedies, if a graft can do without a source: leave out the extensions that need it."""
    needing = source.settings.targets if source.settings else []
    others = [name for name in job.request.targets if name not in needing]
    if not (job.request.graft and needing and others):
        return error
    fix = f"{error.fix} Or leave {', '.join(needing)} as published: --only {','.join(others)}."
    return SourceUnreachableError(error.what, where=error.where, why=error.why, fix=fix)


def _order(job: Job, jobs: int) -> dict[str, object]:
    """Return the job description for the program in the container."""
    return {
        "archs": job.inputs.arch_list,
        "jobs": jobs,
        "modules": list(job.modules),
        "options": [option for source in job.dependencies for option in source.options],
        "platform_tag": job.platform_tag,
        "targets": list(job.request.targets),
        "version": job.inputs.version,
    }


def _environment(job: Job) -> dict[str, str]:
    variables = {name: value for source in job.dependencies for name, value in source.variable.items()}
    return {
        "CCACHE_COMPILERCHECK": f"string:{job.inputs.toolchain}",
        "CCACHE_DIR": "/ccache",
        "CCACHE_NOHASHDIR": "1",
        "FACTORY_WEIGHTS": str(FACTORY / WEIGHTS),
        "FLASHINFER_CUDA_ARCH_LIST": job.inputs.arch_list,
        "HOME": "/factory/build",
        "LC_ALL": "C.UTF-8",
        "PATH": f"/factory/tools:{job.plan.config.env['PATH']}",  # our own ninja before the real one
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": str(MTIME),
        "TORCH_CUDA_ARCH_LIST": job.inputs.arch_list,
        "USER": "factory",
        **variables,
        **(job.carried.environment if job.carried else {}),
    }


def _missing(job: Job, out: Path) -> str:
    """Name what a compile should have made and has not."""
    made = {path.name.partition(".")[0] for path in out.glob("*.so")}
    if job.request.graft:
        return ", ".join(name for name in job.request.targets if name not in made)
    return "" if any(out.glob("*.whl")) else "a wheel"


def _finished_wheel(project: CompileProject, job: Job, out: Path) -> Path:
    """Return the compiled wheel under a name with its glibc, or the published one with the compiled libraries."""
    published = job.published
    if published is None:
        wheel = min(out.glob("*.whl"))
        named = wheel.stem.endswith(f"-{job.platform_tag}")  # setup.py does not name the glibc
        return wheel if named else repack(wheel, out, platform_tag=job.platform_tag)
    with requests.Session() as session:
        wheel = download(indexed_file(published), project.store, session, lambda _: None)
    return make_graft(
        wheel,
        published.file,
        [path for path in out.glob("*.so") if path.name.partition(".")[0] in job.request.targets],
        out,
        inputs=job.inputs,
        arch=job.request.arch,
        platform_tag=job.platform_tag,
        mods={mod.name: mod.digest(variant) for mod, variant in job.mods},
        other_chips=project.settings.graft.other_chips,
    )


def _hand_out(project: CompileProject, job: Job, out: Path) -> tuple[Path, ...]:
    """Copy libraries and objects into the checkout's build folder; parts of a wheel never enter the wheelhouse."""
    request = job.request
    without = "".join(f"-without-{name}" for name in request.without_mods)
    if len(without) > _LONGEST_NAME:
        without = f"-without-{len(request.without_mods)}-mods-{sha256_of(without.encode())[:8]}"
    machine = job.inputs.platform.rpartition("/")[2]
    name = f"{request.what}-v{request.vllm}-{request.arch}-{machine}{without}"
    folder = project.root / "build" / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(Path(shutil.copy2(path, folder / path.name)) for path in sorted(out.glob("*.*o")))


def _failed(ended: Ended, log: Path, jobs: int) -> Exception:
    unknown = next((line for line in ended.telling if line.startswith("FACTORY-UNKNOWN ")), None)
    if unknown is not None:
        found = json.loads(unknown.partition(" ")[2])
        return UnknownTargetError(
            f"There is no target {', '.join(found['unknown'])}.",
            where="the --targets option",
            why=f"These sources, for this arch, have {len(found['known'])} others.",
            fix=did_you_mean(found["unknown"][0], found["known"]).capitalize(),
        )
    if any(_DISK_FULL in line for line in ended.telling):
        return DiskFullError(
            "The disk was full before the compile ended.",
            where=log.parent,
            why=next(line for line in ended.telling if _DISK_FULL in line)[:400],
            fix="Make room (`invoke clean` removes old downloads) and run it again: what is compiled already is kept.",
        )
    killed = ended.status == _KILLED or any("Killed" in line for line in ended.telling)
    return CompileFailedError(
        "The compile failed.",
        where=log,
        why="\n         ".join(line[:400] for line in ended.telling),
        fix=f"A compiler was killed, most likely for lack of memory: run again with fewer than {jobs} (`--jobs`)."
        if killed
        else "The log has the full output. Fix the cause and run it again: what is compiled already is kept.",
    )
