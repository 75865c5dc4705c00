"""Describes a server: all that differs between servers on the factory's side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from imagefactory.project.matrix import Arch
from imagefactory.project.served_model import Drafter
from imagefactory.project.server_names import TITLES
from imagefactory.project.server_versions import ServerVersion
from imagefactory.project.servers.setting import Setting


@dataclass(frozen=True)
class Server:
    """A program that serves models, published as a Python distribution."""

    name: str
    """The key of its versions in matrix.yaml."""
    distribution: str
    kernel_wheels: tuple[str, ...]
    """The distributions (globs) whose GPU code an image is judged by, besides the server's own."""
    kernel_files: tuple[str, ...]
    """Where their libraries are below site-packages (globs)."""
    settings: tuple[Setting, ...]
    """Those of its images."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Settings of other servers that it lacks, with what to do instead."""
    tensor_parallel: str = "--tensor-parallel-size"
    """The flag for the number of GPUs that share each layer."""
    cache: str = ""
    """The variable that names its own cache folder."""
    recipes: tuple[str, ...] = ("sparkrun",)
    """The launchers that can start it."""
    on_cpu: Mapping[str, str] = field(default_factory=dict)
    """The variables with which its images for GPUs serve a tiny model on a CPU; empty if only images for CPUs can."""
    checks_model_names: bool = True
    """Whether it refuses requests for another model."""
    logs_backends: bool = True
    """Whether its log says which attention kernels it uses."""

    @property
    def title(self) -> str:
        """The name that people know it by."""
        return TITLES[self.name]

    def distribution_on(self, arch: Arch) -> str:  # noqa: ARG002 - servers with a distribution per arch need it
        """Return the distribution to install on an arch."""
        return self.distribution

    def judged_by(self, wheel: str, arch: Arch) -> bool:
        """Return whether the GPU code of a wheel counts in the audit of an image."""
        return any(fnmatchcase(wheel, glob) for glob in (self.distribution_on(arch), *self.kernel_wheels))

    def model_document(self, drafter: Drafter, version: ServerVersion) -> dict[str, Any]:  # noqa: ARG002
        """Return what model.json says about the default drafter, in the server's own terms."""
        return {}

    def needs_cuda_13(self, version: ServerVersion) -> bool:  # noqa: ARG002 - old releases of a server may not
        """Whether the wheels of a version are made for CUDA 13."""
        return True
