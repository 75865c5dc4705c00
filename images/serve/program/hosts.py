"""The hosts with known faults, which hosts.json lists: containers, the doctor and the site all read them there."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import rules
from .image import Json, read_object


class Fault(NamedTuple):
    """A known fault of a machine."""

    detail: str
    remedy: str
    source: str
    """Who reported it, and when it was last seen."""


@cache
def known() -> tuple[Json, ...]:
    return tuple(read_object(str(Path(__file__).parent), "hosts.json")["faults"])


def faults(facts: Mapping[str, object]) -> Iterator[Fault]:
    """Yield the faults that a machine has; a fact that is not known matches none."""
    for fault in rules.matching(known(), rules.Facts(facts, (), lambda _: False)):
        yield Fault(f"{fault['here']}: {fault['what']}", fault["remedy"], f"{fault['source']}, {fault['seen']}")
