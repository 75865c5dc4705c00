"""Describes the compiles whose trees are on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from imagefactory.commands.show.live import work_left
from imagefactory.compile.ninja_progress import duration
from imagefactory.compile.under_way import State, UnderWay
from imagefactory.store.sizes import size

_NEXT: dict[State, str] = {
    "running": "it is running",
    "interrupted": "continue",
    "failed": "fix the cause, then continue",
    "done": "repeat",
}
_WIDEST = 100


def compiles_text(found: Iterable[UnderWay]) -> Iterator[str]:
    """Describe each compile in a few lines."""
    empty = True
    for one in found:
        empty = False
        yield f"{one.name} for {one.arch or 'an unknown arch'}: {one.state}"
        yield f"  objects:  {_objects(one)}"
        yield f"  disk:     {size(one.size)} in {one.folder}"
        yield f"  log:      {one.last[:_WIDEST] or 'empty'}"
        command = one.command or "run the same `./inv compile` again"
        yield f"  {_NEXT[one.state]}{'' if one.state == 'running' else f': {command}'}"
    if empty:
        yield "no compile is running or interrupted"


def _objects(one: UnderWay) -> str:
    work = one.work
    if work is None:
        return "not known before the compile is configured"
    text = f"{work.done} of {work.total}, {work.spent / 60:.0f} core-minutes so far"
    if work.done == work.total:
        return text
    return f"{text}, {work_left(work)} left: about {duration(work.remaining)} here"
