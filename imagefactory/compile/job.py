"""Turns the options of `./inv compile` into jobs: sources, mods and toolchain, and the key of each result."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from imagefactory.compile.settings import FILE, WHAT, What
from imagefactory.compile.source_tree import CompileSource, choose_sources, resolve
from imagefactory.compile.toolchain import CompileProject, identity, locked_flashinfer, locked_vllm, toolchain_plan
from imagefactory.errors import BuildError, ConfigError, LockError, unknown_name
from imagefactory.lock.wheelhouse.keep import MACHINES, CompileInputs, published_source, why_unfit
from imagefactory.mods.choose import source_mods
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import modules_called_on
from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.project.project import locked_cells
from imagefactory.project.server_versions import choice_for
from imagefactory.project.targets import host_machine
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from images.shipped.mods.manifest import Mod, Variant

SCRIPTS: Final = "images/compile"
Published = LockedWheel | LockedSource
# What the scripts of images/compile give to compilers and linkers, in the key of every result.
_FLAGS: Final = ("-Wl,--build-id=none,-s", "-frandom-seed=<output>", "CMAKE_BUILD_TYPE=Release")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks to compile."""

    what: What
    vllm: str
    arch: str
    targets: tuple[str, ...] = ()  # extensions of vLLM or modules of FlashInfer; if empty, the whole wheel
    without_mods: tuple[str, ...] = ()
    jobs: int = 0

    @property
    def graft(self) -> bool:
        """Whether the targets replace those of the published wheel."""
        return self.what == "vllm" and bool(self.targets)


def requests_of(
    project: CompileProject,
    *,
    what: str = "",
    vllm: str = "",
    arch: str = "",
    only: str = "",
    without_mods: Sequence[str] = (),
    jobs: int = 0,
) -> list[Request]:
    """Return a request for each project to compile; unknown names are refused with the closest matches."""
    matrix = project.matrix
    vllm, arch = vllm or matrix.defaults.vllm, arch or matrix.defaults.arch
    _refuse_unknown("vLLM version", [vllm], matrix.vllm, "--vllm")
    with_gpu = [name for name, machine in matrix.archs.items() if machine.torch_cuda_arch_list]
    _refuse_unknown("arch with a GPU", [arch], with_gpu, "--arch")
    _refuse_unknown("mod", without_mods, project.mods, "--without-mod")
    projects = _projects(project, what, vllm, arch)
    parts = {name: _parts(project, name, vllm, arch) for name in projects}
    names, listed = _split(only), [part for of_project in parts.values() for part in of_project]
    _refuse_unknown("extension of a graft or module of FlashInfer", names, listed or ["none"], "--only")
    if names:
        chosen = {name: tuple(part for part in parts[name] if part in names) for name in projects}
        projects = [name for name in projects if chosen[name]]
    else:
        chosen = {name: () if name == "flashinfer" else parts[name] for name in projects}
    left_out = tuple(sorted(without_mods))
    return [
        Request(what=name, vllm=vllm, arch=arch, targets=chosen[name], without_mods=left_out, jobs=jobs)
        for name in projects
    ]


def _projects(project: CompileProject, what: str, vllm: str, arch: str) -> list[What]:
    """Return the projects to compile: those that the user names, else what matrix.yaml implies."""
    named = _split(what)
    _refuse_unknown("project to compile", named, WHAT, "--what")
    kind, packages = choice_for(project.matrix.vllm[vllm].compile, arch)
    flashinfer = any(name.startswith("flashinfer") for name in packages)
    if not named and kind == "graft" and not flashinfer:
        return ["vllm"]
    if not named and kind == "published" and flashinfer:
        return ["flashinfer"]
    return [name for name in WHAT if not named or name in named]


def _parts(project: CompileProject, what: What, vllm: str, arch: str) -> tuple[str, ...]:
    """Return the parts that --only chooses from; none if vLLM is compiled whole."""
    if what == "flashinfer":
        return modules_called_on(project.matrix, vllm, arch)
    version = project.matrix.vllm[vllm]
    if choice_for(version.compile, arch)[0] != "graft":
        return ()
    listed = project.settings.graft.extensions_of(version)
    if not listed:
        raise ConfigError(
            "bad-compile-data",
            f"There is nothing to graft into vLLM {vllm} for {arch}.",
            where=f"{FILE}, graft.extensions",
            why="No extension is listed for this version.",
            fix="Add its extensions, or choose `whole` in matrix.yaml.",
        )
    return listed


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _refuse_unknown(what: str, names: Sequence[str], choices: Collection[str], where: str) -> None:
    for name in names:
        if name not in choices:
            raise unknown_name(what, name, choices, f"the {where} option")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A compile with everything known and checked, and nothing done yet."""

    request: Request
    plan: Plan  # the plan of the toolchain's image
    inputs: CompileInputs
    main: LockedSource | CompileSource  # the locked sdist, or the repository of a git reference
    published: Published | None = None  # the wheel that a graft replaces libraries of
    dependencies: tuple[CompileSource, ...] = ()
    left_out: tuple[str, ...] = ()  # the parts of vLLM's CMake that no target needs
    mods: tuple[tuple[Mod, Variant], ...] = ()
    modules: tuple[str, ...] = ()  # the modules of FlashInfer in the wheel
    carried: tuple[str, ...] = ()
    """Patterns of the files of a published wheel that a whole compile contains unchanged: it cannot compile them."""
    carried_from: Published | None = None
    """None for a git reference, which nobody published a wheel of: the compiled one then lacks the files."""

    @property
    def platform_tag(self) -> str:
        glibc = self.inputs.system["glibc"].replace(".", "_")
        return f"manylinux_{glibc}_{MACHINES[self.inputs.platform][0]}"

    def folder(self, store: Store) -> Path:
        """Return the folder that keeps its tree, so that a second run can resume."""
        return store.root / "compile" / self.inputs.key


def work_out(project: CompileProject, request: Request) -> Job:
    platform = f"linux/{host_machine()}"
    plan = _toolchain(project, request, platform)
    return _vllm(project, request, platform, plan) if request.what == "vllm" else _flashinfer(project, request, plan)


def _inputs(
    project: CompileProject,
    request: Request,
    plan: Plan,
    *,
    name: str,
    version: str,
    sources: Mapping[str, str],
    arch_list: str | None,
    targets: Sequence[str],
    mods: Sequence[tuple[Mod, Variant]] = (),
    left_out: Sequence[str] = (),
) -> CompileInputs:
    """Collect what determines the wheel: beside its sources, also our scripts and the compilers."""
    # Sorted, since a file system lists them in any order, and the key must not depend on it.
    scripts = sorted(path for path in (project.root / SCRIPTS).iterdir() if path.is_file())
    return CompileInputs(
        name=name,
        version=version,
        sources=sources,
        mods=tuple(mod.digest(variant) for mod, variant in mods),
        toolchain=identity(plan),
        arch_list=arch_list or "",
        platform=plan.platform,
        flags=(
            *_FLAGS,
            *(f"script:{path.name}:{sha256_of(path.read_bytes())}" for path in scripts),
            *(f"target:{target}" for target in targets),
            *(f"left-out:{part}" for part in left_out),
        ),
        system=project.settings.system,
        kind="graft" if request.graft else "whole",
    )


def _toolchain(project: CompileProject, request: Request, platform: str) -> Plan:
    """Plan the toolchain of a request; it must be locked, and its results must run in the images of the arch."""
    arch = project.matrix.archs[request.arch]
    if why := why_unfit(project.settings.system, project.matrix.bases[arch.base]):
        raise BuildError(
            "toolchain-misfit",
            f"A wheel of {request.what} {request.vllm} would not run in the images of {request.arch}.",
            where=f"{FILE}, toolchain",
            why=f"The base of {request.arch} is {arch.base}; of the wheel, {why}.",
            fix=f"Give {request.arch} a base of {project.settings.toolchain.debian} in matrix.yaml.",
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


def _vllm(project: CompileProject, request: Request, platform: str, plan: Plan) -> Job:
    version, arch = project.matrix.vllm[request.vllm], project.matrix.archs[request.arch]
    main: LockedSource | CompileSource
    if version.release is not None:
        main, number = locked_vllm(project, version.release), version.release
    else:
        main = resolve(CompileSource("vllm", f"{version.git}@{version.ref}"))
        number = f"{version.version}+g{main.digest.rpartition('@')[2][:9]}"
    dependencies, left_out = choose_sources(project.settings, request.vllm, version, request.targets)
    carried = () if request.targets else project.settings.carried_by(version)
    published = carried_from = None
    if request.graft:
        why = "A graft replaces some libraries of the published wheel"
        published = published_wheel(project, str(version.release), platform, why)
    elif carried and version.release is not None:
        why = f"A whole compile takes {' and '.join(carried)} from it, which the toolchain has no compiler for"
        carried_from = published_wheel(project, version.release, platform, why)
    mods = tuple(source_mods(project, request.vllm, request.arch, request.without_mods))
    used = published or carried_from
    inputs = _inputs(
        project,
        request,
        plan,
        name="vllm",
        version=number,
        sources={
            "vllm": main.digest if isinstance(main, CompileSource) else f"sdist:{main.sha256}",
            **{source.name: source.digest for source in dependencies},
            **(published_source(used.sha256) if used else {}),
        },
        arch_list=arch.torch_cuda_arch_list,
        targets=request.targets,
        mods=mods,
        left_out=left_out,
    )
    return Job(
        request=request,
        plan=plan,
        inputs=inputs,
        published=published,
        main=main,
        dependencies=tuple(dependencies),
        left_out=tuple(left_out),
        mods=mods,
        carried=carried,
        carried_from=carried_from,
    )


def published_wheel(project: CompileProject, release: str, platform: str, why: str) -> Published:
    for cell in locked_cells(project):
        if cell.platform == platform and project.matrix.versions[cell.version].release == release:
            for wheel in project.wheel_lock(cell).wheels:
                if wheel.name == "vllm" and wheel.compiled is None:
                    return wheel
    source = project.source_lock.find(release, f"_{MACHINES[platform][0]}.whl")
    if source is None:
        raise LockError(
            "no-lock",
            f"The published wheel of vLLM {release} for {platform} is not locked.",
            where="locks/",
            why=f"{why}.",
            fix=f"Run `./inv lock` for a target that uses the published vLLM {release} on {platform}.",
        )
    return source


def _flashinfer(project: CompileProject, request: Request, plan: Plan) -> Job:
    locked, arch = locked_flashinfer(project, request.vllm), project.matrix.archs[request.arch]
    listed = modules_called_on(project.matrix, request.vllm, request.arch)
    modules = tuple(name for name in listed if not request.targets or name in request.targets)
    inputs = _inputs(
        project,
        request,
        plan,
        name="flashinfer-jit-cache",
        version=locked.version,
        sources={"flashinfer": f"sdist:{locked.sha256}"},
        arch_list=arch.flashinfer_cuda_arch_list,
        targets=request.targets or modules,
    )
    return Job(request=request, plan=plan, inputs=inputs, main=locked, modules=modules)
