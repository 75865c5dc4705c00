"""Determines a compile before it starts: its sources, mods and toolchain, and the key of its result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from imagefactory.compile.carried import Carried, find_carried
from imagefactory.compile.git_sources import (
    MARKERS,
    CompileSource,
    check_folder,
    choose_sources,
    read_replacements,
    resolve,
    tree_digest,
)
from imagefactory.compile.graft import published_wheel
from imagefactory.compile.settings import FILE, What
from imagefactory.compile.toolchain import CompileProject, identity, toolchain_plan
from imagefactory.compile.toolchain_locks import locked_flashinfer
from imagefactory.errors.kernels import CompileDataError, ToolchainMisfitError
from imagefactory.errors.locks import LockMissingError
from imagefactory.locks.files import LockedSource, LockedWheel
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.matrix import Arch
from imagefactory.matrix.server_versions import ServerVersion
from imagefactory.matrix.targets import host_machine
from imagefactory.mods.choose import source_mods
from imagefactory.plan.plan import Plan
from imagefactory.resolve.wheelhouse.fit import MACHINES
from imagefactory.resolve.wheelhouse.graft_record import published_source
from imagefactory.resolve.wheelhouse.keep import CompileInputs
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from images.shipped.mods.manifest import Mod, Variant

SCRIPTS: Final = "images/compile"
_FLAGS: Final = ("-Wl,--build-id=none,-s", "-frandom-seed=<output>", "CMAKE_BUILD_TYPE=Release")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks to compile."""

    what: What
    vllm: str
    arch: str
    targets: tuple[str, ...] = ()
    """Compile only these, for inspection or for a graft; if empty, the whole wheel is compiled and kept."""
    modules: tuple[str, ...] = ()
    """The modules of FlashInfer in the wheel; if empty, all that compile.yaml lists for the arch."""
    graft: bool = False
    """Whether the targets replace those of the published wheel, in a wheel that is kept."""
    sources: tuple[str, ...] = ()
    """Folders that replace sources, as NAME=DIR."""
    without_mods: tuple[str, ...] = ()
    jobs: int = 0
    group: str = ""
    """Compile only this group of objects, given as NUMBER/COUNT, for a run that links them later."""

    @property
    def inspects(self) -> bool:
        """Whether the result is a few libraries to look at rather than a wheel."""
        return bool(self.targets) and not self.graft


@dataclass(frozen=True)
class Job:
    """A compile with everything known and checked, and nothing done yet."""

    request: Request
    arch: Arch
    cell: Cell
    """The cell that stands for the toolchain."""
    plan: Plan
    sdist: LockedSource | None
    source: CompileSource | None
    """A folder or repository that replaces the sdist."""
    dependencies: tuple[CompileSource, ...]
    left_out: tuple[str, ...]
    mods: tuple[tuple[Mod, Variant], ...]
    inputs: CompileInputs
    tree: CompileInputs
    """What decides the objects. A graft and a compile of the same targets for inspection share them."""
    platform_tag: str
    modules: tuple[str, ...] = ()
    carried: Carried | None = None
    published: LockedWheel | LockedSource | None = None
    """The wheel that a graft replaces libraries of."""

    def folder(self, store: Store) -> Path:
        """Return the folder that keeps its tree, so that a second run can resume."""
        return store.root / "compile" / self.tree.key


def work_out(project: CompileProject, request: Request) -> Job:
    """Determine the inputs of a compile, and raise an error for one that cannot succeed."""
    settings, matrix = project.settings, project.matrix
    version, arch = matrix.vllm[request.vllm], matrix.archs[request.arch]
    platform = f"linux/{host_machine()}"
    archs = arch.torch_cuda_arch_list if request.what == "vllm" else arch.flashinfer_cuda_arch_list
    if not archs:
        raise CompileDataError(
            f"{request.arch} has no GPU to compile for.",
            where=f"matrix.yaml, archs.{request.arch}",
            why="It has no arch list.",
            fix="Name an arch with a GPU.",
        )
    toolchain = settings.toolchain_for(request.what, version)
    compilers, base = settings.toolchains[toolchain], matrix.bases[arch.base]
    if not request.inspects and not compilers.runs_on(base):
        raise ToolchainMisfitError(
            f"A wheel of {request.what} {request.vllm} would not run in the images of {request.arch}.",
            where=f"{FILE}, toolchains.{toolchain}",
            why=f"It would be compiled with Python {compilers.python} and glibc {compilers.glibc}; "
            f"the base {arch.base} has Python {base.python} and glibc {base.glibc}.",
            fix=f"Give {request.arch} a base of {compilers.debian} in matrix.yaml, or compile only a few targets for "
            "inspection (`--targets`).",
        )
    cell = project.cell(toolchain, request.vllm, platform)
    if not project.is_locked(cell):
        raise LockMissingError(
            f"The compilers of vLLM {request.vllm} are not pinned.",
            where=project.wheel_lock_path(cell),
            why="The compilers determine the result as much as the sources do.",
            fix=f"Run `invoke lock --toolchain {request.vllm}` and commit the result.",
        )
    plan = toolchain_plan(project, cell)
    replaced = read_replacements(request.sources)
    dependencies: list[CompileSource] = []
    left_out: list[str] = []
    mods: list[tuple[Mod, Variant]] = []
    carried: Carried | None = None
    if request.what == "vllm":
        carried = find_carried(project, request.vllm, version, platform, request.targets)
        dependencies, left_out = choose_sources(settings, request.vllm, version, replaced, request.targets)
        mods = source_mods(project, request.vllm, request.arch, request.without_mods)
    sdist, source = _main_source(project, request, version, replaced.get(request.what))
    listed = settings.flashinfer.of(request.arch) if request.what == "flashinfer" else ()
    modules = tuple(name for name in listed if not request.modules or name in request.modules)
    origin = source.digest if source else f"sdist:{sdist.sha256 if sdist else ''}"
    scripts = sorted(path for path in (project.root / SCRIPTS).iterdir() if path.is_file())
    tree = CompileInputs(
        name="vllm" if request.what == "vllm" else "flashinfer-jit-cache",
        version=_version(project, request, version, source),
        sources={
            request.what: origin,
            **{item.name: item.digest for item in dependencies},
            **(carried.sources if carried else {}),
        },
        mods=tuple(mod.digest(variant) for mod, variant in mods),
        toolchain=identity(plan),
        arch_list=archs,
        platform=platform,
        flags=(
            *_FLAGS,
            *(f"script:{path.name}:{sha256_of(path.read_bytes())}" for path in scripts),
            *(f"target:{name}" for name in request.targets or modules),
            *(f"left-out:{name}" for name in left_out),
        ),
    )
    published = published_wheel(project, str(version.release), platform) if request.graft else None
    system = {"python": compilers.python, "glibc": compilers.glibc, "cuda": settings.cuda}
    inputs = tree if request.inspects else replace(tree, system=system)
    if published is not None:
        sources = {**tree.sources, **published_source(published.sha256)}
        inputs = replace(inputs, sources=sources, kind="graft")
    return Job(
        request, arch, cell, plan, sdist, source, tuple(dependencies), tuple(left_out), tuple(mods), inputs, tree,
        platform_tag=f"manylinux_{compilers.glibc.replace('.', '_')}_{MACHINES[platform][0]}",
        modules=modules,
        published=published,
        carried=carried,
    )  # fmt: skip


def _main_source(
    project: CompileProject, request: Request, version: ServerVersion, folder: Path | None
) -> tuple[LockedSource | None, CompileSource | None]:
    """Return where the compiled project comes from: its locked sdist, or a folder or repository."""
    if folder is not None:
        check_folder(request.what, folder, MARKERS[request.what])
        return None, CompileSource(request.what, tree_digest(folder), folder)
    if request.what == "flashinfer":
        return locked_flashinfer(project, request.vllm), None
    if version.release is not None:
        sdist = project.source_lock.find(version.release, ".tar.gz")
        if sdist is None:
            raise CompileDataError(
                f"The sources of vLLM {version.release} are not locked.",
                where="locks/sources.toml",
                why="Sources must be pinned before they are compiled.",
                fix="Run `invoke lock`, or pass --source vllm=DIR.",
            )
        return sdist, None
    return None, resolve(CompileSource("vllm", f"{version.git}@{version.ref}", None))


def _version(
    project: CompileProject, request: Request, version: ServerVersion, source: CompileSource | None
) -> str:
    if request.what == "flashinfer":
        return locked_flashinfer(project, request.vllm).version
    if version.release is not None:
        return version.release
    commit = source.digest.rpartition("@")[2].rpartition(":")[2][:9] if source else ""
    return f"{version.version}+g{commit}"
