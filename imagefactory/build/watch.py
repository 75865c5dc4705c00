"""Watching an engine at work: what it tells, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Sha256

LayerState = Literal["cached", "waiting", "downloading", "splicing", "done"]


class Watcher(Protocol):
    """Somebody who is told how a build goes."""

    def layers(self, layers: Sequence[Layer]) -> None:
        """Hear which layers there are."""

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None:
        """Hear how far a layer is: bytes done of those of the present step."""
