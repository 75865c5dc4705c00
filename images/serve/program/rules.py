"""Reads and applies the rules in rules.json: when each holds, and what to say then.

A condition is a list: a verb, then other conditions, or the name of a fact with words to compare it with. Settings are
facts by their own names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .image import Json, read_object, release


class Facts(NamedTuple):
    """What conditions are about."""

    values: Mapping[str, Any]
    given: Collection[str]
    """Names of settings that differ from the image's default."""
    at_least: Callable[[str], bool]


@cache
def common() -> Json:
    return read_object(str(Path(__file__).parent), "rules.json")


@cache
def of_server(name: str) -> Json:
    return read_object(str(Path(__file__).parent), f"servers/{name}.json")


def matching(rules: Iterable[Json], facts: Facts) -> Iterator[Json]:
    """Yield the rules that hold, with the facts in their texts."""
    for rule in rules:
        if holds(rule["when"], facts):
            yield {name: text.format_map(facts.values) for name, text in rule.items() if name != "when"}


def holds(condition: list[Any], facts: Facts) -> bool:
    verb, *rest = condition
    return _VERBS[verb](facts, *rest)


def _text(facts: Facts, name: str) -> str:
    return str(facts.values.get(name) or "")


def _less(facts: Facts, name: str, other: str) -> bool:
    one, two = facts.values.get(name), facts.values.get(other)
    return isinstance(one, int) and isinstance(two, int) and one < two


def _below(facts: Facts, name: str, bound: float | str) -> bool:
    """Whether a number, or a version, is known and below another."""
    value: Any = facts.values.get(name)
    return bool(value) and bool(release(value) < release(bound) if isinstance(bound, str) else value < bound)


_VERBS: dict[str, Callable[..., bool]] = {
    "all": lambda facts, *parts: all(holds(part, facts) for part in parts),
    "any": lambda facts, *parts: any(holds(part, facts) for part in parts),
    "not": lambda facts, part: not holds(part, facts),
    "given": lambda facts, name: name in facts.given,
    "set": lambda facts, name: bool(facts.values.get(name)),
    "is": lambda facts, name, *words: facts.values.get(name) in words,
    "same": lambda facts, name, other: facts.values.get(name) == facts.values.get(other),
    "less": _less,
    "below": _below,
    "starts": lambda facts, name, *words: _text(facts, name).startswith(words),
    "contains": lambda facts, name, *words: any(word in _text(facts, name).lower() for word in words),
    "at-least": lambda facts, version: facts.at_least(version),
    "before": lambda facts, version: not facts.at_least(version),
}
