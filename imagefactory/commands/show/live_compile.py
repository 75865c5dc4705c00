"""Watching a compile: a bar on a terminal, a line now and then everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from imagefactory.build.watch import LayerState
from imagefactory.commands.show.live_build import PlainDisplay
from imagefactory.compile.ninja_progress import CompileProgress, duration
from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Sha256

EVERY = 20.0
"""Seconds between two lines of a plain display."""


def told(progress: CompileProgress) -> str:
    """Write how far a compile is."""
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{progress.done} of {progress.total} objects, {duration(progress.elapsed)} so far{left}"


class PlainCompile(PlainDisplay):
    """A line for each layer of the toolchain that is ready, then one now and then for the objects."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._out = console
        self._last = 0.0

    def step(self, progress: CompileProgress) -> None:
        """Hear how many objects are made."""
        now = time.monotonic()
        if now - self._last >= EVERY or progress.done == progress.total:
            self._last = now
            self._out.print(told(progress))


class LiveCompile:
    """A bar for the toolchain's layers, and one for the objects."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._ready: set[Sha256] = set()
        self._layers = bar.add_task("toolchain", total=None, left="")
        self._objects = bar.add_task("objects", total=None, left="", visible=False)

    def layers(self, layers: Sequence[Layer]) -> None:
        """Hear which layers there are."""
        self._bar.update(self._layers, total=len(layers))

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None:  # noqa: ARG002 - a bar counts layers
        """Hear how far a layer is."""
        if state in ("cached", "done"):
            self._ready.add(key)
            self._bar.update(self._layers, completed=len(self._ready))

    def step(self, progress: CompileProgress) -> None:
        """Hear how many objects are made."""
        left = "" if progress.left is None else f"about {duration(progress.left)} left"
        self._bar.update(
            self._objects, total=progress.total, completed=progress.done, left=left, visible=True
        )


@contextmanager
def watching_compile(console: Console) -> Iterator[PlainCompile | LiveCompile]:
    """Show a compile on a console, in the way that suits it."""
    if not console.is_terminal:
        yield PlainCompile(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=console) as bar:
        yield LiveCompile(bar)
