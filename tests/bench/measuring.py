"""What the benchmarks share: time and processor time of a step, and rows of a Markdown table."""

import resource
import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Spent(NamedTuple):
    """What a step took."""

    seconds: float
    processor: float
    """Of this process and the programs that it started; daemons count for themselves."""
    memory: int = 0


def timed(step: Callable[[], object]) -> Spent:
    before, started = _processor(), time.perf_counter()
    step()
    return Spent(time.perf_counter() - started, _processor() - before)


def _processor() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def middle(values: Iterable[Spent]) -> Spent:
    return Spent(*(statistics.median(column) for column in zip(*values, strict=True)))


def row(*cells: str, columns: int = 4) -> None:
    padded = [*cells, *[""] * (columns - len(cells))]
    print(f"| {' | '.join(padded)} |", flush=True)
