"""What the benchmarks share: time and processor time of a step."""

import resource
import time
from collections.abc import Callable
from typing import NamedTuple


class Spent(NamedTuple):
    """What a step took."""

    seconds: float
    processor: float
    """Of this process and the programs that it started; daemons count for themselves."""


def timed(step: Callable[[], object]) -> Spent:
    before, started = _processor(), time.perf_counter()
    step()
    return Spent(time.perf_counter() - started, _processor() - before)


def _processor() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)
