"""The progress of builds, pushes, loads and the like: redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from imagefactory.cli.show.terminal import err
from imagefactory.store.progress import count, size

if TYPE_CHECKING:
    from imagefactory.plan.plan import Layer
    from imagefactory.store.digests import Digest

_MOVING = ("packing", "downloading", "uploading", "sending", "unpacking", "writing", "reading")
_WAITING = ("waiting for wheels", "waiting")
_READY = ("done", "uploaded", "loaded", "written", "read", "cached", "present")
_STYLES = {
    **dict.fromkeys(_MOVING, "cyan"),
    **dict.fromkeys(_WAITING, "dim"),
    **dict.fromkeys(_READY, "bold green"),
    **dict.fromkeys(("packing", "unpacking"), "yellow"),
    **dict.fromkeys(("cached", "present"), "green"),
}
"""The states of a row; a small terminal shows the first ones first."""
_FRAME = 3  # lines around the rows of the table: the heading, the total, and one for the cursor


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


class Display:
    """The layers of a build or a push, images on their way to Docker, or the objects of a compile, with their progress.

    A terminal redraws it as a table; if it is small, with the layers in progress. A log gets a line for each finished
    layer, and from time to time one for each layer in progress.
    """

    def __init__(self, log: Console | None = None, every: float = 15.0) -> None:
        self.rows: dict[str, _Row] = {}
        self.objects = ""
        self.noun = "layer"
        self._log = log
        self._every = every
        self._spoke = time.monotonic()

    def layers(self, layers: Sequence[Layer]) -> None:
        self.rows = {layer.key: _Row(f"{layer.kind} {layer.name}") for layer in layers}

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        self.rows = {digest: _Row(label) for digest, label in labels.items()}

    def images(self, names: Iterable[str]) -> None:
        self.noun, self.rows = "image", {name: _Row(name) for name in names}

    def state(self, key: str, state: str, done: int, total: int) -> None:
        row = self.rows[key]
        changed = row.state != state
        if changed:
            row.since = time.monotonic()
        # A total is an estimate while wheels are packed into a layer.
        row.state, row.done, row.total = state, min(done, total or done), total
        if changed and state in _READY:
            self._say(f"{state:<8} {row.label} ({size(total)})")
        elif self._is_due():
            moving = (row for row in self.rows.values() if row.state in _MOVING)
            self._say(*(f"{row.state:<12} {row.label}: {size(row.done)} of {size(row.total)}" for row in moving))
            if idle := [row.label for row in self.rows.values() if row.state == _WAITING[0]]:
                self._say(f"{_WAITING[0]}: {', '.join(idle)}")

    def step(self, done: int, total: int) -> None:
        self.objects = f"{done:,} of {count(total, 'object')}"
        if self._is_due() or done == total:
            self._say(self.objects)

    def _is_due(self) -> bool:
        return self._log is not None and time.monotonic() - self._spoke > self._every

    def _say(self, *lines: str) -> None:
        self._spoke = time.monotonic()
        if self._log:
            for line in lines:
                self._log.print(line)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.objects:
            yield Text(self.objects)  # all layers of the toolchain are ready
            return
        rows = list(self.rows.values())
        room = max((options.height or console.height) - _FRAME, 1)
        shown = sorted(rows, key=lambda row: list(_STYLES).index(row.state))[:room]
        table = Table(
            Column(self.noun, no_wrap=True, overflow="ellipsis"),
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
        yield Text(f"{ready} of {count(len(rows), self.noun)} ready", "dim")


@contextmanager
def watching(console: Console = err) -> Iterator[Display]:
    """Show progress in the way that suits the console."""
    if not console.is_terminal:
        yield Display(console)
        return
    from rich.live import Live

    display = Display()
    with Live(display, console=console, refresh_per_second=8, vertical_overflow="crop"):
        yield display
