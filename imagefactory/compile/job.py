"""Determines a compile before it starts: its sources, mods and toolchain, and the key of its result."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from imagefactory.compile.git_sources import (
    MARKERS,
    CompileSource,
    check_folder,
    choose_sources,
    read_replacements,
    resolve,
    tree_digest,
)
from imagefactory.compile.request import Request
from imagefactory.compile.settings import FILE, What
from imagefactory.compile.toolchain import CompileProject, identity, locked_flashinfer, locked_vllm, toolchain_plan
from imagefactory.errors import BuildError, ConfigError, LockError
from imagefactory.lock.wheelhouse.keep import MACHINES, CompileInputs, published_source
from imagefactory.mods.choose import source_mods
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import modules_called_on
from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.project.matrix import Arch
from imagefactory.project.project import locked_cells
from imagefactory.project.targets import host_machine
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from images.shipped.mods.manifest import Mod, Variant

SCRIPTS: Final = "images/compile"
Published = LockedWheel | LockedSource
_FLAGS: Final = ("-Wl,--build-id=none,-s", "-frandom-seed=<output>", "CMAKE_BUILD_TYPE=Release")


@dataclass(frozen=True)
class JobSources:
    """What is compiled: a project, what it is compiled with, and what is changed in it."""

    distribution: str
    version: str
    main: LockedSource | CompileSource  # the locked sdist, or a folder or repository in its place
    arch_list: str | None
    dependencies: tuple[CompileSource, ...] = ()
    left_out: tuple[str, ...] = ()  # the parts of vLLM's CMake that no target needs
    mods: tuple[tuple[Mod, Variant], ...] = ()
    modules: tuple[str, ...] = ()  # the modules of FlashInfer in the wheel
    carried: tuple[str, ...] = ()
    """Patterns of the files of a published wheel that a whole compile contains unchanged: it cannot compile them."""
    carried_from: Published | None = None
    """None for a git reference, which nobody published a wheel of: the compiled one then lacks the files."""

    @property
    def digests(self) -> dict[str, str]:
        """What identifies each source besides the project itself."""
        found = {source.name: source.digest for source in self.dependencies}
        return found | (published_source(self.carried_from.sha256) if self.carried_from else {})


@dataclass(frozen=True)
class Job:
    """A compile with everything known and checked, and nothing done yet."""

    request: Request
    arch: Arch
    plan: Plan  # the plan of the toolchain's image
    sources: JobSources
    inputs: CompileInputs
    tree: CompileInputs  # what decides the objects; a graft and an inspection of the same targets share them
    platform_tag: str
    published: Published | None  # the wheel that a graft replaces libraries of

    def folder(self, store: Store) -> Path:
        """Return the folder that keeps its tree, so that a second run can resume."""
        return store.root / "compile" / self.tree.key


def work_out(project: CompileProject, request: Request) -> Job:
    settings, version = project.settings, project.matrix.vllm[request.vllm]
    platform = f"linux/{host_machine()}"
    compilers = settings.toolchain
    plan = _toolchain(project, request, platform)
    sources = _vllm(project, request, platform) if request.what == "vllm" else _flashinfer(project, request)
    scripts = sorted(path for path in (project.root / SCRIPTS).iterdir() if path.is_file())
    tree = CompileInputs(
        name=sources.distribution,
        version=sources.version,
        sources={request.what: _origin(sources.main), **sources.digests},
        mods=tuple(mod.digest(variant) for mod, variant in sources.mods),
        toolchain=identity(plan),
        arch_list=sources.arch_list or "",
        platform=platform,
        flags=(
            *_FLAGS,
            *(f"script:{path.name}:{sha256_of(path.read_bytes())}" for path in scripts),
            *(f"target:{name}" for name in request.targets or sources.modules),
            *(f"left-out:{name}" for name in sources.left_out),
        ),
    )
    inputs, published = tree, None
    if not request.inspects:
        system = {"python": compilers.python, "glibc": compilers.glibc, "cuda": settings.cuda}
        inputs = replace(inputs, system=system)
    if request.graft:
        why = "A graft replaces some libraries of the published wheel"
        published = published_wheel(project, str(version.release), platform, why)
        taken = {**tree.sources, **published_source(published.sha256)}
        inputs = replace(inputs, sources=taken, kind="graft")
    return Job(
        request=request,
        arch=project.matrix.archs[request.arch],
        plan=plan,
        sources=sources,
        inputs=inputs,
        tree=tree,
        platform_tag=f"manylinux_{compilers.glibc.replace('.', '_')}_{MACHINES[platform][0]}",
        published=published,
    )


def _toolchain(project: CompileProject, request: Request, platform: str) -> Plan:
    """Plan the toolchain of a request; it must be locked, and its results must run in the images of the arch."""
    matrix, compilers = project.matrix, project.settings.toolchain
    arch = matrix.archs[request.arch]
    base = matrix.bases[arch.base]
    if not (arch.torch_cuda_arch_list if request.what == "vllm" else arch.flashinfer_cuda_arch_list):
        raise ConfigError(
            "bad-compile-data",
            f"{request.arch} has no GPU to compile for.",
            where=f"matrix.yaml, archs.{request.arch}",
            why="It has no arch list.",
            fix="Name an arch with a GPU.",
        )
    if not request.inspects and not project.settings.runs_on(base):
        raise BuildError(
            "toolchain-misfit",
            f"A wheel of {request.what} {request.vllm} would not run in the images of {request.arch}.",
            where=f"{FILE}, toolchain",
            why=f"It would be compiled with Python {compilers.python} and glibc {compilers.glibc}; "
            f"the base {arch.base} has Python {base.python} and glibc {base.glibc}.",
            fix=f"Give {request.arch} a base of {compilers.debian} in matrix.yaml, or compile only a few targets for "
            "inspection (`--targets`).",
        )
    cell = project.cell(request.vllm, platform)
    if not project.is_locked(cell):
        raise LockError(
            "no-lock",
            f"The compilers of vLLM {request.vllm} are not pinned.",
            where=project.wheel_lock_path(cell),
            why="The compilers determine the result as much as the sources do.",
            fix=f"Run `./inv lock --toolchain {request.vllm}` and commit the result.",
        )
    return toolchain_plan(project, cell)


def _vllm(project: CompileProject, request: Request, platform: str) -> JobSources:
    version = project.matrix.vllm[request.vllm]
    replaced = read_replacements(request.sources)
    main: LockedSource | CompileSource | None = _folder("vllm", replaced)
    if main is None and version.release is not None:
        main = locked_vllm(project, version.release)
    main = main or resolve(CompileSource("vllm", f"{version.git}@{version.ref}", None))
    dependencies, left_out = choose_sources(project.settings, request.vllm, version, replaced, request.targets)
    carried = () if request.targets else project.settings.carried_by(version)
    carried_from, number = None, version.release
    if carried and version.release is not None:
        why = f"A whole compile takes {' and '.join(carried)} from it, which the toolchain has no compiler for"
        carried_from = published_wheel(project, version.release, platform, why)
    if number is None:
        commit = _origin(main).rpartition("@")[2].rpartition(":")[2][:9]
        number = f"{version.version}+g{commit}"
    return JobSources(
        "vllm",
        number,
        main,
        project.matrix.archs[request.arch].torch_cuda_arch_list,
        tuple(dependencies),
        tuple(left_out),
        mods=tuple(source_mods(project, request.vllm, request.arch, request.without_mods)),
        carried=carried,
        carried_from=carried_from,
    )


def published_wheel(project: CompileProject, release: str, platform: str, why: str) -> Published:
    for cell in locked_cells(project):
        if cell.platform == platform and project.matrix.versions[cell.version].release == release:
            for wheel in project.wheel_lock(cell).wheels:
                if wheel.name == "vllm" and wheel.compiled is None:
                    return wheel
    found = project.source_lock.find(release, f"_{MACHINES[platform][0]}.whl")
    if found is None:
        raise LockError(
            "no-lock",
            f"The published wheel of vLLM {release} for {platform} is not locked.",
            where="locks/",
            why=f"{why}.",
            fix=f"Run `./inv lock` for a target that uses the published vLLM {release} on {platform}.",
        )
    return found


def _flashinfer(project: CompileProject, request: Request) -> JobSources:
    locked = locked_flashinfer(project, request.vllm)
    listed = modules_called_on(project.matrix, request.vllm, request.arch)
    return JobSources(
        "flashinfer-jit-cache",
        locked.version,
        _folder("flashinfer", read_replacements(request.sources)) or locked,
        project.matrix.archs[request.arch].flashinfer_cuda_arch_list,
        modules=tuple(name for name in listed if not request.targets or name in request.targets),
    )


def _folder(what: What, replaced: Mapping[str, Path]) -> CompileSource | None:
    """Return the folder that the user compiles instead of the locked sources, if any."""
    folder = replaced.get(what)
    if folder is None:
        return None
    check_folder(what, folder, MARKERS[what])
    return CompileSource(what, tree_digest(folder), folder)


def _origin(main: LockedSource | CompileSource) -> str:
    return main.digest if isinstance(main, CompileSource) else f"sdist:{main.sha256}"
