"""Progress of builds, pushes and compiles: redrawn in place on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from imagefactory.build.watch import LayerState
from imagefactory.compile.ninja_progress import CompileProgress, duration
from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.sizes import size

_STYLES = {
    "cached": "green",
    "waiting": "dim",
    "downloading": "cyan",
    "splicing": "yellow",
    "done": "bold green",
    "uploading": "cyan",
    "present": "green",
    "uploaded": "bold green",
}
"""The states of a layer: first those of a build, then those of a push."""
_MOVING = ("downloading", "splicing", "uploading")
_TOLD = ("cached", "done", "present", "uploaded")
"""The states that a plain log mentions; the steps in between would be noise."""
_URGENCY = (
    "splicing",
    "downloading",
    "uploading",
    "waiting",
    "done",
    "uploaded",
    "cached",
    "present",
)
_COMPILE_EVERY = 20.0
"""Seconds between two lines about a compile in a plain log."""
_FRAME = 3
"""Lines around the rows of the table: the heading, the total, and one for the cursor."""


@dataclass(eq=False)
class _Row:
    label: str
    state: str = "waiting"
    done: int = 0
    total: int = 0
    since: float = field(default_factory=time.monotonic)

    def rate(self) -> str:
        seconds = time.monotonic() - self.since
        moving = self.state in _MOVING and seconds > 0
        return f"{size(int(self.done / seconds))}/s" if moving and self.done else ""


class _Rows:
    """What both displays keep about each layer."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}

    def layers(self, layers: Sequence[Layer]) -> None:
        """Take the layers that will be built."""
        self.rows = {layer.key: _Row(f"{layer.kind} {layer.name}") for layer in layers}

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Take the blobs that will be pushed."""
        self.rows = {digest: _Row(label) for digest, label in labels.items()}

    def update(self, key: str, state: str, done: int, total: int) -> bool:
        """Record a layer's progress; return whether its state changed."""
        row = self.rows[key]
        changed = row.state != state
        if changed:
            row.since = time.monotonic()
        row.state, row.done, row.total = state, done, total
        return changed


class LiveDisplay(_Rows):
    """A table that is redrawn as work goes on; a small terminal shows the layers in progress first."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self.rows.values())
        room = max((options.height or console.height) - _FRAME, 1)
        shown = rows if len(rows) <= room else sorted(rows, key=lambda row: _URGENCY.index(row.state))[:room]
        table = Table(box=None, pad_edge=False)
        table.add_column("layer", no_wrap=True, overflow="ellipsis")
        table.add_column("state", no_wrap=True)
        table.add_column("bytes", justify="right", no_wrap=True)
        table.add_column("", justify="right", no_wrap=True)
        for row in (row for row in rows if row in shown):
            amount = size(row.done) if row.done >= row.total else f"{size(row.done)} of {size(row.total)}"
            table.add_row(row.label, Text(row.state, _STYLES[row.state]), amount, row.rate())
        yield table
        ready = sum(row.state in _TOLD for row in rows)
        yield Text(f"{ready} of {len(rows)} layers are ready", "dim")

    def state(self, key: str, state: str, done: int, total: int) -> None:
        """Report a layer's progress."""
        self.update(key, state, done, total)


class PlainDisplay(_Rows):
    """One line for each finished layer, and now and then one for each layer in progress."""

    def __init__(self, console: Console, every: float = 15.0) -> None:
        super().__init__()
        self._console = console
        self._every = every
        self._spoke = time.monotonic()

    def state(self, key: str, state: str, done: int, total: int) -> None:
        """Report a layer's progress."""
        if self.update(key, state, done, total) and state in _TOLD:
            self._console.print(f"{state:<8} {self.rows[key].label} ({size(total)})")
            self._spoke = time.monotonic()
        elif time.monotonic() - self._spoke > self._every:
            self._spoke = time.monotonic()
            for row in self.rows.values():
                if row.state in _MOVING:
                    self._console.print(f"{row.state:<12} {row.label}: {size(row.done)} of {size(row.total)}")


@contextmanager
def watching(console: Console) -> Iterator[LiveDisplay | PlainDisplay]:
    """Show the progress of a build or a push in the way that suits the console."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    display = LiveDisplay()
    with Live(display, console=console, refresh_per_second=8, vertical_overflow="crop"):
        yield display


def compile_progress(progress: CompileProgress) -> str:
    """Describe a compile's progress in one line."""
    left = "" if progress.left is None else f", about {duration(progress.left)} left"
    return f"{progress.done} of {progress.total} objects, {duration(progress.elapsed)} so far{left}"


class PlainCompile(PlainDisplay):
    """One line for each finished layer of the toolchain, then now and then one for the compiled objects."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = 0.0

    def step(self, progress: CompileProgress) -> None:
        """Report how many objects are compiled."""
        now = time.monotonic()
        if now - self._last >= _COMPILE_EVERY or progress.done == progress.total:
            self._last = now
            self._console.print(compile_progress(progress))


class LiveCompile:
    """One bar for the toolchain's layers, one for the compiled objects."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._ready: set[Sha256] = set()
        self._layers = bar.add_task("toolchain", total=None, left="")
        self._objects = bar.add_task("objects", total=None, left="", visible=False)

    def layers(self, layers: Sequence[Layer]) -> None:
        """Take the layers of the toolchain."""
        self._bar.update(self._layers, total=len(layers))

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None:  # noqa: ARG002 - a bar counts layers
        """Report a layer's progress."""
        if state in ("cached", "done"):
            self._ready.add(key)
            self._bar.update(self._layers, completed=len(self._ready))

    def step(self, progress: CompileProgress) -> None:
        """Report how many objects are compiled."""
        left = "" if progress.left is None else f"about {duration(progress.left)} left"
        self._bar.update(
            self._objects, total=progress.total, completed=progress.done, left=left, visible=True
        )


@contextmanager
def watching_compile(console: Console) -> Iterator[PlainCompile | LiveCompile]:
    """Show the progress of a compile in the way that suits the console."""
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
