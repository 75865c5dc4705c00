"""What an engine is: the options it is given, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.locks.project import Project
from imagefactory.oci.blob import Blob
from imagefactory.plan.plan import Plan


@dataclass(frozen=True)
class BuildOptions:
    """Options of `invoke build`; each engine takes some of them."""

    output: Path | None = None
    locked: bool = False
    workers: int | None = None
    builder: str = ""
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltImage:
    """A finished image."""

    plan: Plan
    digest: str
    """Of the manifest; of the configuration (the image id) for an image in the Docker daemon."""
    where: str
    """A folder, or the image's name in the Docker daemon."""
    layers: tuple[Blob, ...] = ()
    """Empty where the engine does not know them."""


class Engine(Protocol):
    """Turns plans into images."""

    @property
    def summary(self) -> str:
        """What it does, to follow its name in a sentence."""

    @property
    def takes(self) -> frozenset[str]:
        """The names of the BuildOptions that it takes."""

    def build(
        self, project: Project, plans: Sequence[Plan], options: BuildOptions, watch: Watcher, say: Say
    ) -> list[BuiltImage]:
        """Build the image of every plan."""
