"""How a build reports its progress."""

from collections.abc import Sequence
from typing import Literal, Protocol

from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Sha256

LayerState = Literal["cached", "waiting", "waiting for wheels", "downloading", "packing", "done"]


class Watcher(Protocol):
    """Receives the progress of a build."""

    def layers(self, layers: Sequence[Layer]) -> None:
        """Report which layers there are; replaces an earlier list."""

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None:
        """Report a layer's progress: bytes done, of the total of its current step."""


class Unwatched:
    """A watcher that ignores all reports."""

    def layers(self, layers: Sequence[Layer]) -> None: ...

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None: ...
