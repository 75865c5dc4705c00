"""Renders the Dockerfile of a cell, including one whose kernels must be compiled before its wheels can be locked.

Without a lock, the Dockerfile is as exact as possible and lists what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from imagefactory.assemble.engines.docker.build_context import Copy, copied_layers, described_files, tools
from imagefactory.assemble.engines.docker.dockerfile import Rendered, render_compile, render_plan
from imagefactory.compile.settings import load_settings
from imagefactory.compile.toolchain import IMAGE, CompileProject, image_name, toolchain_plan
from imagefactory.mods.choose import Chosen, choose_mods, choose_source_mods
from imagefactory.oci.format import MTIME, VENV
from imagefactory.plan.make import base_layer, image_config, make_plan, model_layer, serve_layer
from imagefactory.plan.serve.description import describe
from imagefactory.project.cells import Cell, intended_kernels
from imagefactory.project.project import Project
from imagefactory.project.server_versions import ServerVersion

JOB_MEMORY: Final = "3 to 8 GB of memory"


def _render_compile(project: Project, cell: Cell) -> Rendered:
    matrix = project.matrix
    version, arch = matrix.versions[cell.version], matrix.archs[cell.arch]
    installed = choose_mods(matrix, cell, project.mods)
    sources = choose_source_mods(matrix, cell, project.mods)
    served = describe(matrix, cell, project.model_lock, installed, "compiled")
    base = base_layer(matrix, cell, project.base_lock(cell))
    above = copied_layers([serve_layer(project.root), model_layer(cell, served)], project.root)
    (serve, _), (model, _) = above
    mods = _mods(installed)
    dependencies = load_settings(project.root).sources_of(cell.version, version)
    programs = tools(project.root, project.tool_lock.find("uv", cell.machine))
    files = [
        *described_files([*programs, *(piece for _, piece in above)]),
        *_described_sources(project, cell, sources, dependencies),
        *(described for _, described in mods),
        {"path": "wheels/", "from": _lock_path(project, cell), "not_locked": "made by `./inv lock`"},
    ]
    values = {
        "target": str(cell),
        "platform": cell.platform,
        "vllm": cell.version,
        "arch": cell.arch,
        "version": str(version.version),
        "toolchain": _toolchain(project, cell, version),
        "torch_archs": arch.torch_cuda_arch_list or "",
        "flashinfer_archs": arch.flashinfer_cuda_arch_list or "",
        "epoch": MTIME,
        "venv": VENV,
        "job_memory": JOB_MEMORY,
        "source_mods": [mod.manifest for mod, _ in sources.mods],
        "dependencies": {item.variable: name for name, item in dependencies.items() if not item.is_option},
        "options": [
            f"-D{item.variable}=/src/dependencies/{name}"
            for name, item in dependencies.items()
            if item.is_option
        ],
        "copies": (serve, *(copy for copy, _ in mods), model),
        "not_locked": _not_locked(project, cell, version),
    }
    described = {
        "target": str(cell),
        "platform": cell.platform,
        "plan": None,
        "not_locked": values["not_locked"],
        "files": sorted(files, key=lambda file: str(file["path"])),
    }
    config = image_config(project, cell, "compiled", installed, served)
    return render_compile(project.root, base, config, values, described)


def _toolchain(project: Project, cell: Cell, version: ServerVersion) -> str:
    """Return the name of the toolchain's image: derived from its content once locked, else from its Debian release."""
    compiling = CompileProject(project.root, project.store)
    name = compiling.settings.toolchain_for("vllm", version)
    toolchain = compiling.cell(name, cell.version, cell.platform)
    locked = compiling.is_locked(toolchain)
    return image_name(toolchain_plan(compiling, toolchain)) if locked else f"{IMAGE}:{name}"


def _not_locked(project: Project, cell: Cell, version: ServerVersion) -> list[str]:
    lines = [
        f"{_lock_path(project, cell)}: the wheels of the image, with the two that are compiled among them",
        "the toolchain image: its packages and CUDA wheels",
        "FlashInfer's sources, and the git dependencies of vLLM's CMake",
    ]
    return lines if version.release else [f"vLLM's sources: {_git(version)}", *lines]


def _lock_path(project: Project, cell: Cell) -> str:
    return project.wheel_lock_path(cell).relative_to(project.root).as_posix()


def _git(version: ServerVersion) -> str:
    return f"{version.git} at {version.ref}"


def _described_sources(
    project: Project, cell: Cell, mods: Chosen, dependencies: Iterable[str]
) -> list[dict[str, Any]]:
    """Describe the sources that are compiled, and what mods change in them."""
    version = project.matrix.versions[cell.version]
    locked = project.source_lock.find(version.release, ".tar.gz") if version.release else None
    vllm: dict[str, Any] = {"path": "sources/vllm/", "from": locked.file if locked else _git(version)}
    if locked is not None:
        vllm["made_from"] = [{"name": locked.file, "sha256": locked.sha256}]
    else:
        vllm["not_locked"] = "a branch moves; `./inv lock` pins its commit"
    vllm["mods"] = [
        {"name": mod.name, "sha256": mod.digest(variant), "changes": sorted(variant.paths)}
        for mod, variant in mods.mods
    ]
    unlocked = {f"sources/dependencies/{name}/": name for name in dependencies}
    unlocked["sources/flashinfer/"] = "flashinfer-python"
    return [
        vllm,
        *(
            {"path": path, "from": name, "not_locked": "pinned with the compile's lock"}
            for path, name in unlocked.items()
        ),
    ]


def _mods(chosen: Chosen) -> list[tuple[Copy, dict[str, Any]]]:
    """Return the folders of mods that are copied over the image, and their descriptions."""
    found: list[tuple[Copy, dict[str, Any]]] = []
    for number, (mod, variant) in enumerate(chosen.mods, 1):
        folder = f"mods/{number:02}-{mod.name}"
        note = "its layer has a key once the wheel that it changes is locked"
        described = {
            "path": f"{folder}/",
            "from": f"mods/{mod.name} applied to the compiled wheel",
            "changes": sorted(variant.paths),
            "made_from": [{"name": f"mods/{mod.name}", "sha256": mod.digest(variant)}],
        }
        found.append((Copy(f"mod {mod.name}", note, folder), described))
    return found


def render(project: Project, cell: Cell) -> Rendered:
    """Render the Dockerfile of a cell: from its plan, or with the compile that its lock still needs."""
    if not project.is_locked(cell) and intended_kernels(project.matrix, cell) == "compiled":
        return _render_compile(project, cell)
    return render_plan(project, make_plan(project, cell, fat=True))
