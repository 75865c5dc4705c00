"""Compiles locked sources with a pinned toolchain, into a wheel."""

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from filelock import FileLock, Timeout

from imagefactory.assemble.watch import Watcher
from imagefactory.compile import container, toolchain
from imagefactory.compile.container import PART, BuildMachine, Ended, Mount, jobs_for, refuse_full_disk
from imagefactory.compile.graft import make_graft, refuse_other_chips, repack
from imagefactory.compile.job import SCRIPTS, Job, Published, Request, work_out
from imagefactory.compile.source_tree import CompileSource, carry, change, place, prepare, unpack_sdist
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import BuildError, MachineError
from imagefactory.lock.auditing import audit, refuse_failing
from imagefactory.lock.wheelhouse.keep import CompileInputs, KeptWheel, find, keep
from imagefactory.lock.wheelhouse.share import locate
from imagefactory.oci.format import MTIME
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.downloads import fetch
from imagefactory.store.http import new_session
from imagefactory.store.progress import Say

REMOTE: Final = "FACTORY_CCACHE_REMOTE"
"""The variable that names a server to share objects through, in the notation of ccache's remote_storage."""
_STEP: Final = re.compile(r"\[(\d+)/(\d+)\]")  # what ninja prints for each step
_KILLED: Final = 137  # 128 + SIGKILL
_DISK_FULL: Final = "No space left on device"


class CompileWatcher(Watcher, Protocol):
    """Receives the progress of a compile."""

    def step(self, done: int, total: int) -> None:
        """Report how many objects are done."""


@dataclass(frozen=True)
class Compiled:
    """The result of a compile."""

    inputs: CompileInputs
    wheel: KeptWheel
    log: Path | None  # None if nothing had to be compiled


def compile_kernels(project: CompileProject, request: Request, watch: CompileWatcher, say: Say) -> Compiled:
    """Compile what the request names, unless the wheelhouse has it already."""
    job = work_out(project, request)
    if kept := find(project.store, job.inputs.key):
        return Compiled(job.inputs, kept, None)
    cost, folder, machine = project.settings.costs[request.what], job.folder(project.store), BuildMachine.this()
    jobs = jobs_for(machine, cost, request.jobs)
    refuse_full_disk(machine, folder, cost.disk_gb * (PART if request.graft else 1))
    _announce(job, project.matrix.archs[request.arch].platforms, say)
    with project.store.in_use(), _alone(folder), translating_disk_full(folder):
        image = toolchain.provide(project, job.plan, watch)
        fresh = prepare(folder / "src", lambda target: fill(project, job, target))
        say(f"{'compiling' if fresh else 'resuming'} {job.inputs.name} {job.inputs.version} in {folder}")
        say(f"for {job.inputs.arch_list}, up to {jobs} compiler{'s' if jobs > 1 else ''} at once")
        ended = _run(project, job, jobs, watch, image)
        if ended.status == 0 and (missing := _missing(job, folder / "out")):
            ended = Ended(1, (f"The build ended without {missing}.",))
        if ended.status != 0:
            raise _failed(ended, folder / "log", jobs)
        return _finish(project, job, folder)


def fill(project: CompileProject, job: Job, target: Path) -> None:
    main = target / job.request.what
    if isinstance(job.main, CompileSource):
        place(job.main, main, project.store)
    else:
        unpack_sdist(downloaded(project, job.main), main)
    for source in job.dependencies:
        place(source, target / source.name, project.store)
    if job.carried_from is not None:
        carry(job.carried, downloaded(project, job.carried_from), main)
    change(main, job.mods, job.left_out)


def downloaded(project: CompileProject, locked: Published) -> Path:
    with new_session() as session:
        return fetch(locate(project, locked), project.store, session, lambda _: None)


def _announce(job: Job, platforms: Sequence[str], say: Say) -> None:
    if job.inputs.platform not in platforms:
        arch = f"{job.request.arch} is {', '.join(platforms)}"
        say(f"{arch}; what is compiled here runs on {job.inputs.platform} only")
    for mod, _ in job.mods:
        say(f"with the mod {mod.name}: {mod.manifest.summary}")
    if job.carried:
        names, wheel = " and ".join(job.carried), job.carried_from
        taken = f"taken over from {wheel.file}, unchanged" if wheel else "left out, since no wheel was published"
        say(f"{taken}: {names}")
    if job.left_out:
        say(f"left out, since no target needs them: {', '.join(job.left_out)}")


def _alone(folder: Path) -> AbstractContextManager[object]:
    """Refuse a second run of the same compile, rather than let it wait for hours."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock").acquire(blocking=False)
    except Timeout:
        raise BuildError(
            "compile-busy",
            "The same compile is already running.",
            where=folder,
            why="Its inputs are the same to the last byte, and both would write to one tree.",
            fix="Wait for it; its result will be in the wheelhouse.",
        ) from None


def _run(project: CompileProject, job: Job, jobs: int, watch: CompileWatcher, image: str) -> Ended:
    folder = job.folder(project.store)
    ccache = project.store.root / "ccache" / job.inputs.toolchain.removeprefix("sha256:")[:16]
    # What an earlier run left there must not count as a result of this one.
    shutil.rmtree(folder / "out", ignore_errors=True)
    places = {
        folder / "src": "/factory/src",
        folder / "build": "/factory/build",
        folder / "out": "/factory/out",
        ccache: "/ccache",
    }
    for path in places:
        path.mkdir(parents=True, exist_ok=True)

    def hear(line: str) -> None:
        if step := _STEP.match(line):
            watch.step(int(step[1]), int(step[2]))

    environment = _environment(job)
    return container.run(
        image,
        ["python3", f"/factory/tools/{job.request.what}_build.py", json.dumps(_order(job, jobs))],
        key=job.inputs.key,
        mounts=[
            *(Mount(path, place) for path, place in places.items()),
            Mount(project.root / SCRIPTS, "/factory/tools", read_only=True),
        ],
        environment=environment,
        log=folder / "log",
        hear=hear,
        network="bridge" if "CCACHE_REMOTE_STORAGE" in environment else "none",
    )


def _order(job: Job, jobs: int) -> dict[str, object]:
    return {
        "archs": job.inputs.arch_list,
        "jobs": jobs,
        "modules": list(job.modules),
        "options": [
            f"-D{source.settings.variable}={source.place}"
            for source in job.dependencies
            if source.settings and source.settings.is_option
        ],
        "platform_tag": job.platform_tag,
        "targets": list(job.request.targets) if job.request.graft else [],
        "version": job.inputs.version,
    }


def _environment(job: Job) -> dict[str, str]:
    variables = {
        source.settings.variable: source.place
        for source in job.dependencies
        if source.settings and not source.settings.is_option
    }
    remote = os.environ.get(REMOTE, "").strip()
    if remote:
        variables["CCACHE_REMOTE_STORAGE"] = remote
    if job.carried_from is not None:
        # Without it, vLLM's setup.py silently continues if one of the files is missing.
        variables["VLLM_REQUIRE_RUST_FRONTEND"] = "1"
    return {
        # ccache's default, a compiler's time and size, says nothing of the rest of the toolchain.
        "CCACHE_COMPILERCHECK": f"string:{job.inputs.toolchain}",
        "CCACHE_DIR": "/ccache",
        "CCACHE_NOHASHDIR": "1",
        "FLASHINFER_CUDA_ARCH_LIST": job.inputs.arch_list,
        "HOME": "/factory/build",
        "LC_ALL": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "SOURCE_DATE_EPOCH": str(MTIME),
        "TORCH_CUDA_ARCH_LIST": job.inputs.arch_list,
        "USER": "factory",
        **variables,
    }


def _missing(job: Job, out: Path) -> str:
    made = {path.name.partition(".")[0] for path in out.glob("*.so")}
    if job.request.graft:
        return ", ".join(name for name in job.request.targets if name not in made)
    return "" if any(out.glob("*.whl")) else "a wheel"


def _finish(project: CompileProject, job: Job, folder: Path) -> Compiled:
    wheel = _finished_wheel(project, job, folder / "out")
    # Judged before it is kept: locks adopt what the wheelhouse has.
    audited = audit(project, str(wheel), job.request.arch)
    refuse_failing(wheel.name, audited.verdicts)
    refuse_other_chips(audited.grafted, audited.verdicts, job.request.arch)
    kept = keep(project.store, job.inputs, wheel)
    for finished in ("src", "build", "out"):  # tens of gigabytes that are of no use once there is a wheel
        shutil.rmtree(folder / finished, ignore_errors=True)
    return Compiled(job.inputs, kept, folder / "log")


def _finished_wheel(project: CompileProject, job: Job, out: Path) -> Path:
    """Return the compiled wheel under a name with its glibc, or the published one with the compiled libraries."""
    if job.published is None:
        wheel = min(out.glob("*.whl"))
        named = wheel.stem.endswith(f"-{job.platform_tag}")  # setup.py does not name the glibc
        return wheel if named else repack(wheel, out, platform_tag=job.platform_tag)
    return make_graft(
        downloaded(project, job.published),
        job.published.file,
        [path for path in out.glob("*.so") if path.name.partition(".")[0] in job.request.targets],
        out,
        inputs=job.inputs,
        arch=job.request.arch,
        platform_tag=job.platform_tag,
        mods={mod.name: mod.digest(variant) for mod, variant in job.mods},
        other_chips=project.settings.graft.other_chips,
    )


def _failed(ended: Ended, log: Path, jobs: int) -> Exception:
    full = next((line for line in ended.telling if _DISK_FULL in line), None)
    if full is not None:
        return MachineError(
            "disk-full",
            "The disk was full before the compile ended.",
            where=log.parent,
            why=full[:400],
            fix="Make room (`./inv clean` removes old downloads) and run it again: what is compiled already is kept.",
        )
    killed = ended.status == _KILLED or any("Killed" in line for line in ended.telling)
    return BuildError(
        "compile-failed",
        "The compile failed.",
        where=log,
        # Indented like the first line, which follows `  why:   `.
        why="\n         ".join(line[:400] for line in ended.telling),
        fix=f"A compiler was killed, most likely for lack of memory: run again with fewer than {jobs} (`--jobs`)."
        if killed
        else "The log has the full output. Fix the cause and run it again: what is compiled already is kept.",
    )
