"""Which images of a night wait for a compile: their lock names a wheel that nobody has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from imagefactory.ci.jobs import Trouble
from imagefactory.lock.wheelhouse.keep import CompiledWheel
from imagefactory.lock.wheelhouse.share import compile_command, is_kept, remote_wheels
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Layer, Plan
from imagefactory.publish.standing import Gate
from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Wheelhouse:
    """The compiled wheels here and in the registry, and the layers there that were made from them."""

    gate: Gate
    known_layers: KnownLayers

    @cached_property
    def _shared(self) -> Sequence[CompiledWheel]:
        return () if self.gate.first else remote_wheels(self.gate.repository)

    @cached_property
    def _has_blob(self) -> Callable[[Digest], bool]:
        return cache(self.gate.repository.has_blob)  # many images have the same layer

    def _is_there(self, layer: Layer) -> bool:
        """Whether the registry has a layer."""
        blob = self.known_layers.blob(layer.key)
        return blob is not None and not self.gate.first and self._has_blob(blob.digest)

    def waiting(self, plan: Plan) -> Trouble | None:
        """Return what a plan waits for, if it cannot be built: nothing is downloaded to find out."""
        project, cell = self.gate.project, plan.cell
        compiled = [wheel for wheel in project.wheel_lock(cell).wheels if wheel.compiled]
        absent = {wheel.sha256: wheel for wheel in compiled if not is_kept(project, wheel, self._shared)}
        layers = [layer for layer in plan.layers if any(file.sha256 in absent for file in layer.inputs)]
        if all(map(self._is_there, layers)):
            return None
        names = [wheel.name for wheel in absent.values()]
        return Trouble(
            cell.full_target,
            f"It waits for the compile of {', '.join(names)} ({cell.version}, {cell.arch}).",
            f"Nobody has the wheel that the lock names, sha256 {', '.join(sha256[:16] for sha256 in absent)}.",
            f"A night compiles it, or `{compile_command(cell, names[0])}` and `./inv wheels.push`.",
        )
