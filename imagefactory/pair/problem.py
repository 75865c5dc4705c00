"""What stands in the way of a pair: the rules in rules.yaml, and a problem as one of them finds it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from imagefactory.errors import MachineError
from imagefactory.project.locks.files import Frozen
from images.shipped.yamlfile import read_yaml

RULES: Final = Path(__file__).with_name("rules.yaml")
Severity = Literal["refuse", "warn"]


class Rule(Frozen):
    """A known cause of failure; its sentences have gaps, which problems fill."""

    severity: Severity
    what: str
    why: str
    fix: str
    source: str


@dataclass(frozen=True)
class Problem:
    """A rule that applies."""

    rule: str
    severity: Severity
    what: str
    where: str
    why: str
    fix: str

    def error(self) -> MachineError:
        return MachineError(self.rule, self.what, where=self.where, why=self.why, fix=self.fix)


@cache
def rules() -> dict[str, Rule]:
    return TypeAdapter(dict[str, Rule]).validate_python(read_yaml(RULES).data)


def problem(name: str, where: str, **gaps: object) -> Problem:
    """Return the problem that a rule describes, with its gaps filled; {where} is always known."""
    rule = rules()[name]
    gaps = {"where": where, **gaps}
    what, why, fix = (text.format_map(gaps) for text in (rule.what, rule.why, rule.fix))
    return Problem(name, rule.severity, what, where, why, fix)


def refuse_first(obstacles: Iterable[Problem]) -> None:
    """Raise the first problem that a start would not survive."""
    for obstacle in obstacles:
        if obstacle.severity == "refuse":
            raise obstacle.error()
