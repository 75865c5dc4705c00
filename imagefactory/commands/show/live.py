"""The progress of builds, pushes and compiles: redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text

from imagefactory.build.watch import LayerState
from imagefactory.commands.show.terminal import err
from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.sizes import size

_STYLES = {
    "splicing": "yellow",
    "downloading": "cyan",
    "uploading": "cyan",
    "waiting": "dim",
    "done": "bold green",
    "uploaded": "bold green",
    "cached": "green",
    "present": "green",
}
"""The states of a layer in a build or a push; a small terminal shows the first ones first."""
_MOVING = ("splicing", "downloading", "uploading")
_READY = ("done", "uploaded", "cached", "present")
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
    """The layers of a build or a push, with their progress."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}

    def layers(self, layers: Sequence[Layer]) -> None:
        """Start with the layers to build."""
        self.rows = {layer.key: _Row(f"{layer.kind} {layer.name}") for layer in layers}

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Start with the blobs to push."""
        self.rows = {digest: _Row(label) for digest, label in labels.items()}

    def state(self, key: str, state: str, done: int, total: int) -> None:
        """Report a layer's progress."""
        row = self.rows[key]
        if row.state != state:
            row.since = time.monotonic()
        row.state, row.done, row.total = state, done, total


class LiveDisplay(_Rows):
    """A table that is redrawn as work goes on; if the terminal is small, with the layers in progress."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self.rows.values())
        room = max((options.height or console.height) - _FRAME, 1)
        shown = sorted(rows, key=lambda row: list(_STYLES).index(row.state))[:room]
        table = Table(
            Column("layer", no_wrap=True, overflow="ellipsis"),
            Column("state", no_wrap=True),
            Column("bytes", justify="right", no_wrap=True),
            Column("", justify="right", no_wrap=True),
            box=None,
            pad_edge=False,
        )
        for row in (row for row in rows if row in shown):
            amount = size(row.done) if row.done >= row.total else f"{size(row.done)} of {size(row.total)}"
            table.add_row(row.label, Text(row.state, _STYLES[row.state]), amount, row.rate())
        yield table
        ready = sum(row.state in _READY for row in rows)
        yield Text(f"{ready} of {len(rows)} layers are ready", "dim")


class PlainDisplay(_Rows):
    """One line for each finished layer, and from time to time one for each layer in progress."""

    def __init__(self, console: Console, every: float = 15.0) -> None:
        super().__init__()
        self._console = console
        self._every = every
        self._spoke = time.monotonic()

    def state(self, key: str, state: str, done: int, total: int) -> None:
        """Report a layer's progress."""
        changed = self.rows[key].state != state
        super().state(key, state, done, total)
        if changed and state in _READY:
            self._console.print(f"{state:<8} {self.rows[key].label} ({size(total)})")
            self._spoke = time.monotonic()
        elif time.monotonic() - self._spoke > self._every:
            self._spoke = time.monotonic()
            for row in self.rows.values():
                if row.state in _MOVING:
                    self._console.print(f"{row.state:<12} {row.label}: {size(row.done)} of {size(row.total)}")


@contextmanager
def watching(console: Console = err) -> Iterator[LiveDisplay | PlainDisplay]:
    """Show the progress of a build or a push in the way that suits the console."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    display = LiveDisplay()
    with Live(display, console=console, refresh_per_second=8, vertical_overflow="crop"):
        yield display


class PlainCompile(PlainDisplay):
    """One line for each finished layer of the toolchain, then from time to time one for the compiled objects."""

    def step(self, done: int, total: int) -> None:
        """Report how many objects are compiled."""
        if time.monotonic() - self._spoke > self._every or done == total:
            self._spoke = time.monotonic()
            self._console.print(f"{done} of {total} objects")


class LiveCompile:
    """One bar for the toolchain's layers, one for the compiled objects."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._ready: set[Sha256] = set()
        self._layers = bar.add_task("toolchain", total=None)
        self._objects = bar.add_task("objects", total=None, visible=False)

    def layers(self, layers: Sequence[Layer]) -> None:
        """Start with the layers of the toolchain."""
        self._bar.update(self._layers, total=len(layers))

    def state(self, key: Sha256, state: LayerState, done: int, total: int) -> None:  # noqa: ARG002 - a bar counts layers
        """Report a layer's progress."""
        if state in ("cached", "done"):
            self._ready.add(key)
            self._bar.update(self._layers, completed=len(self._ready))

    def step(self, done: int, total: int) -> None:
        """Report how many objects are compiled."""
        self._bar.update(self._objects, total=total, completed=done, visible=True)


@contextmanager
def watching_compile(console: Console = err) -> Iterator[PlainCompile | LiveCompile]:
    """Show the progress of a compile in the way that suits the console."""
    if not console.is_terminal:
        yield PlainCompile(console)
        return
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console) as bar:
        yield LiveCompile(bar)
