"""The options that engines take, and the images they return."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imagefactory.oci.image import Blob
from imagefactory.plan.plan import Plan


@dataclass(frozen=True)
class BuildOptions:
    """Options of `./inv build`; each engine takes some of them."""

    output: Path | None = None
    fat: bool = False
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
