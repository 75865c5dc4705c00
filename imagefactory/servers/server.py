"""Describes a server: all that differs between servers on the factory's side."""

from __future__ import annotations

from dataclasses import dataclass

from imagefactory.matrix.matrix import Arch
from imagefactory.matrix.server_names import TITLES


@dataclass(frozen=True)
class Server:
    """A program that serves models, published as a Python distribution."""

    name: str
    """The key of its versions in matrix.yaml."""
    distribution: str

    @property
    def title(self) -> str:
        """The name that people know it by."""
        return TITLES[self.name]

    def distribution_on(self, arch: Arch) -> str:  # noqa: ARG002 - servers with a distribution per arch need it
        """Return the distribution to install on an arch."""
        return self.distribution
