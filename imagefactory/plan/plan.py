"""A plan as a value: frozen, JSON-serialisable, everything that decides an image."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from imagefactory.matrix.cells import Cell, KernelOrigin
from imagefactory.oci.format import LAYER_FORMAT
from imagefactory.store.digests import Sha256

PLAN_FORMAT: Final = 1


LOCKED_LABEL: Final = "imagefactory.locked"


LayerKind = Literal["base", "wheel", "pure-bundle", "platform-bundle", "serve", "mod", "model", "toolkit"]


LayerSettings = dict[str, object]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(_Value):
    """A file that a layer is made from, or a value that stands for one."""

    name: str
    sha256: Sha256


class Layer(_Value):
    """One layer: what goes in, and the key that names the result."""

    kind: LayerKind
    name: str
    key: Sha256
    inputs: tuple[Input, ...]
    settings: LayerSettings
    download: int
    """Bytes of the files it is made from."""
    unpacked: int
    """Bytes on the disk of whoever runs it, roughly."""


class ImageConfig(_Value):
    """What the image tells a container engine."""

    env: dict[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    healthcheck: LayerSettings = {}
    labels: dict[str, str]
    user: str
    working_dir: str
    exposed_ports: tuple[str, ...]
    stop_signal: str
    created: str


class Plan(_Value):
    """Everything that decides an image."""

    format: Literal[1] = PLAN_FORMAT
    layer_format: Literal[2] = LAYER_FORMAT
    target: str
    model: str
    vllm: str
    arch: str
    platform: str
    kernels: KernelOrigin
    key: Sha256
    layers: tuple[Layer, ...]
    config: ImageConfig
    notes: tuple[str, ...] = ()
    """What a reader should know and the image does not depend on: mods that were left out, and why."""

    @property
    def locked(self) -> bool:
        """False when a locked file had to be replaced by its successor."""
        return self.config.labels[LOCKED_LABEL] == "yes"

    @property
    def cell(self) -> Cell:
        """The cell that this is the plan of."""
        return Cell(self.model, self.vllm, self.arch, self.platform)
