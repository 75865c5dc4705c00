"""Plans and provides toolchains: images of Debian with its compilers and the CUDA compiler from wheels.

To the rest of the factory a toolchain is a base and an arch that serves no model, so the code that locks, plans and
builds images does the same for toolchains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from imagefactory.build.assemble import BuildRun, make_layers
from imagefactory.build.engines.docker import daemon
from imagefactory.build.watch import Watcher
from imagefactory.compile.settings import CompileSettings, load_settings
from imagefactory.locks.project import Project
from imagefactory.matrix.bases import Base
from imagefactory.matrix.cells import Cell, first_of_release
from imagefactory.matrix.matrix import Arch, Matrix, Platform
from imagefactory.oci.format import CREATED, VENV
from imagefactory.oci.layout import write_layout
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.make import base_layer, toolkit_layer, wheel_layers
from imagefactory.plan.plan import ImageConfig, Layer, Plan
from imagefactory.plan.serve.image_paths import CUDA_HOME
from imagefactory.store.digests import checksum

IMAGE = "imagefactory/toolchain"
MODEL = "toolchain"
_BOTH: tuple[Platform, ...] = ("linux/amd64", "linux/arm64")


@dataclass(frozen=True)
class CompileProject(Project):
    """A checkout whose matrix has an additional base and arch for each toolchain."""

    @cached_property
    def settings(self) -> CompileSettings:
        """The validated compile.yaml."""
        return load_settings(self.root)

    @cached_property
    def matrix(self) -> Matrix:
        """The matrix, including the toolchains."""
        plain = Project(self.root, self.store).matrix
        bases, archs = dict(plain.bases), dict(plain.archs)
        for name, toolchain in self.settings.toolchains.items():
            packages = sorted({*self.settings.packages, *toolchain.packages})
            bases[arch_name(name)] = Base(
                debian=toolchain.debian, python=toolchain.python, glibc=toolchain.glibc, packages=packages
            )
            archs[arch_name(name)] = Arch(
                platforms=list(_BOTH),
                base=arch_name(name),
                also=self.settings.requirements,
                without=self.settings.wheels.without,
            )
        return plain.model_copy(update={"bases": bases, "archs": archs, "leave_out": []})

    def cell(self, toolchain: str, vllm: str, platform: str) -> Cell:
        """Return the cell that stands for a toolchain of a vLLM version; versions of one release share it."""
        return Cell(MODEL, first_of_release(self.matrix, vllm), arch_name(toolchain), platform)


def arch_name(toolchain: str) -> str:
    """Return a toolchain's name among bases and archs, and in the folder of locks."""
    return f"toolchain-{toolchain}"


def toolchain_cells(project: CompileProject, vllm: str) -> list[Cell]:
    """Return the toolchains that a vLLM version is compiled with, for both platforms."""
    version = project.matrix.vllm[vllm]
    names = dict.fromkeys(project.settings.toolchain_for(what, version) for what in project.settings.costs)
    return [project.cell(name, vllm, platform) for name in names for platform in _BOTH]


def toolchain_plan(project: CompileProject, cell: Cell, *, bare: bool = False) -> Plan:
    """Plan the image of a toolchain; a bare one is its Debian alone, with Git, patch and Python."""
    wheels, base = project.wheel_lock(cell), project.base_lock(cell)
    layers: tuple[Layer, ...] = (base_layer(project.matrix, cell, base),)
    if not bare:
        layers += (*wheel_layers(project.matrix, wheels), toolkit_layer(wheels.python))
    config = ImageConfig(
        env={
            "CUDA_HOME": f"/{CUDA_HOME}",
            "PATH": f"/{VENV}/bin:/{CUDA_HOME}/bin:/usr/local/bin:/usr/bin:/bin",
            "VIRTUAL_ENV": f"/{VENV}",
        },
        entrypoint=(),
        command=("/bin/bash",),
        labels={},
        user="root",
        working_dir="/",
        exposed_ports=(),
        stop_signal="SIGTERM",
        created=CREATED,
    )
    decides = {"layers": [layer.key for layer in layers], "config": config.model_dump(mode="json")}
    return Plan(
        target=str(cell),
        **asdict(cell),
        kernels=wheels.kernels,
        key=checksum(decides),
        layers=layers,
        config=config,
    )


def image_name(plan: Plan) -> str:
    """Return the name of a toolchain's image, which is derived from its content."""
    return f"{IMAGE}:{plan.arch.removeprefix('toolchain-')}-{plan.key[:16]}"


def identity(plan: Plan) -> str:
    """Return a hash of the files of a toolchain, however they are packed into layers."""
    inputs = [[item.name, item.sha256] for layer in plan.layers for item in layer.inputs]
    return f"sha256:{checksum({'inputs': sorted(inputs), 'env': plan.config.env})}"


def provide(project: CompileProject, plan: Plan, watch: Watcher) -> str:
    """Load the image of a toolchain into the Docker daemon unless it is there, and return its name.

    The name is derived from the content, so an image that is there needs none of its layers here.
    """
    name = image_name(plan)
    if daemon.image_id(name) is None:
        blobs = make_layers(BuildRun(project, [plan], watch))
        image = make_image(plan, [blobs[layer.key] for layer in plan.layers])
        folder = project.root / "build" / "toolchains"
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(
            dir=folder, ignore_cleanup_errors=True
        ) as own:  # another process may do the same
            daemon.load(write_layout(image, plan.arch, project.store, Path(own, "layout")), name)
    return name


def locked_toolchains(project: CompileProject) -> Iterator[Cell]:
    """Iterate over the toolchains whose wheels are locked."""
    for vllm, version in project.matrix.vllm.items():
        if version.release is not None:
            yield from (
                cell for cell in toolchain_cells(project, vllm) if project.wheel_lock_path(cell).exists()
            )
