"""Watching a build or a push: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Digest
from imagefactory.store.sizes import size

_STYLES = {
    "cached": "green",
    "waiting": "dim",
    "downloading": "cyan",
    "splicing": "yellow",
    "done": "bold green",
    "uploading": "cyan",
    "present": "green",
    "mounted": "bold green",
    "uploaded": "bold green",
}
"""What can happen to a layer: the states of a build, then those of a push."""
_MOVING = ("downloading", "splicing", "uploading")
_TOLD = ("cached", "done", "present", "mounted", "uploaded")
"""What a plain log says of a layer; steps in between would be noise."""
_URGENCY = (
    "splicing",
    "downloading",
    "uploading",
    "waiting",
    "done",
    "uploaded",
    "mounted",
    "cached",
    "present",
)
_FRAME = 3
"""Lines around the rows of the table: the heading, the sum, and one for the cursor."""


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
    """What both displays remember about each layer."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}

    def layers(self, layers: Sequence[Layer]) -> None:
        """Hear which layers are to be built."""
        self.rows = {layer.key: _Row(f"{layer.kind} {layer.name}") for layer in layers}

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Hear which blobs are to be pushed."""
        self.rows = {digest: _Row(label) for digest, label in labels.items()}

    def update(self, key: str, state: str, done: int, total: int) -> bool:
        """Take news in; say whether the layer entered another state."""
        row = self.rows[key]
        changed = row.state != state
        if changed:
            row.since = time.monotonic()
        row.state, row.done, row.total = state, done, total
        return changed


class LiveDisplay(_Rows):
    """A table that is redrawn while the work goes on; on a small terminal, of the layers that something happens to."""

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
        """Hear how far a layer is."""
        self.update(key, state, done, total)


class PlainDisplay(_Rows):
    """One line for each layer that is ready, and one now and then for the rest."""

    def __init__(self, console: Console, every: float = 15.0) -> None:
        super().__init__()
        self._console = console
        self._every = every
        self._spoke = time.monotonic()

    def state(self, key: str, state: str, done: int, total: int) -> None:
        """Hear how far a layer is."""
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
    """Show a build or a push on a console, in the way that suits it."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    display = LiveDisplay()
    with Live(display, console=console, refresh_per_second=8, vertical_overflow="crop"):
        yield display
