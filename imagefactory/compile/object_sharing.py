"""Pushes and pulls the compiled objects of a vLLM version's toolchains."""

from __future__ import annotations

from collections.abc import Iterator

from imagefactory.compile.object_cache import Shared, pull, push
from imagefactory.compile.request import known_version
from imagefactory.compile.toolchain import CompileProject, identity, toolchain_cells, toolchain_plan
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import host_machine
from imagefactory.oci.registry.repository import Repository
from imagefactory.resolve.wheelhouse.share import registry_of


def push_objects(project: Project, vllm: str, most_gb: float) -> Iterator[Shared]:
    """Push the objects of the toolchains that run on this machine."""
    toolchains = _toolchains(project, vllm)
    with Repository.open(registry_of(project)) as repository:
        for toolchain in toolchains:
            yield push(repository, project.store, toolchain, most_gb)


def pull_objects(project: Project, vllm: str) -> Iterator[Shared]:
    """Pull the objects of the toolchains that run on this machine."""
    toolchains = _toolchains(project, vllm)
    with Repository.open(registry_of(project)) as repository:
        for toolchain in toolchains:
            yield pull(repository, project.store, toolchain)


def _toolchains(project: Project, vllm: str) -> list[str]:
    """Return the identities of the toolchains that a vLLM version is compiled with here."""
    checkout = CompileProject(project.root, project.store)
    version = known_version(checkout, vllm)
    platform = f"linux/{host_machine()}"
    cells = [cell for cell in toolchain_cells(checkout, version) if cell.platform == platform]
    return [identity(toolchain_plan(checkout, cell)) for cell in cells]
