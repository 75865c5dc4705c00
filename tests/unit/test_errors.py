"""Failures: a class by what can be done, a stable name, four parts."""

import ast
import pickle
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from imagefactory.cli.show.terminal import error_message
from imagefactory.errors import ConfigError, FactoryError, Location, did_you_mean, unknown_name
from tests.fixtures.checkouts import REPOSITORY

PARTS = {"where": "here", "why": "because", "fix": "so"}
KINDS = FactoryError.__subclasses__()


def raised() -> Iterator[tuple[str, str, ast.Call]]:
    """Iterate over the places where the library and the shipped modules construct a failure."""
    names = {kind.__name__ for kind in KINDS}
    for folder in ("imagefactory", "images/shipped"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    yield f"{path.name}:{node.lineno}", node.func.id, node


def test_a_dozen_classes_have_a_dozen_exit_codes() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert sorted(codes) == list(range(2, 2 + len(KINDS)))
    assert len(KINDS) < 15


def test_a_name_belongs_to_one_class_and_all_parts_are_given() -> None:
    classes: dict[str, set[str]] = defaultdict(set)
    for place, kind, call in raised():
        given = {keyword.arg for keyword in call.keywords}
        assert given >= {"where", "why", "fix"} or None in given, f"{place} gives {kind} only {given}"
        if isinstance(call.args[0], ast.Constant):
            name = str(call.args[0].value)
            assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name), f"{place}: {name}"
            classes[name].add(kind)
    assert len(classes) > 80
    assert {name: kinds for name, kinds in classes.items() if len(kinds) > 1} == {}


def test_message_begins_with_the_name_and_has_four_parts() -> None:
    place = Location(file="a.yaml", line=3)
    error = ConfigError("bad-matrix", "It broke.", where=place, why="Because.", fix="Mend it.")
    assert error_message(error).plain.splitlines() == [
        "error[bad-matrix]: It broke.",
        "  where: a.yaml:3",
        "  why:   Because.",
        "  next:  Mend it.",
    ]


@pytest.mark.parametrize("part", ["name", "what", "where", "fix"])
def test_an_empty_part_is_a_programming_mistake(part: str) -> None:
    parts = {"name": "bad-matrix", "what": "It broke.", **PARTS} | {part: ""}
    with pytest.raises(ValueError, match=part):
        ConfigError(parts.pop("name"), parts.pop("what"), **parts)


def test_a_failure_travels_between_processes_and_an_empty_reason_is_said_to_be_unknown() -> None:
    error = ConfigError("bad-matrix", "It broke.", where="here", why=str(OSError()), fix="Mend it.")
    assert error.why == "No reason is known."
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (type(copy), copy.name, str(copy)) == (ConfigError, "bad-matrix", str(error))


def test_did_you_mean_suggests_the_nearest_names_or_lists_all() -> None:
    assert did_you_mean("gb01", ["gb10", "h100", "cpu"]) == "Did you mean gb10?"
    assert did_you_mean("xyz", ["gb10", "cpu"]) == "Known: cpu, gb10"
    assert did_you_mean("xyz", []) == "None is known."


def test_an_unknown_name_is_told_the_known_ones_once() -> None:
    error = unknown_name("profile", "nosuch", ["quick", "chat"], "the --profile option")
    assert (error.why, error.fix) == ("Known: quick, chat.", "Choose one of them.")
    assert unknown_name("profile", "chot", ["quick", "chat"], "here").fix == "Did you mean chat?"
    assert unknown_name("arch", "x", ["gb10"], "here", why="No.", hint=" More.").fix == "Known: gb10. More."
