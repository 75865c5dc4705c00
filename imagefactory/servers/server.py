"""Describes a server: all that differs between servers on the factory's side."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from imagefactory.matrix.matrix import Arch
from imagefactory.matrix.server_names import TITLES


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
