"""Failures: one class, one exit code, four parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from imagefactory import errors
from imagefactory.commands.show.terminal import error_message
from imagefactory.errors import FactoryError, Location, did_you_mean
from imagefactory.errors.matrix import MatrixError

LIBRARY = Path(errors.__file__).parents[1]
for module in iter_modules(errors.__path__):
    import_module(f"{errors.__name__}.{module.name}")


def kinds(base: type[FactoryError] = FactoryError) -> list[type[FactoryError]]:
    return [kind for own in base.__subclasses__() for kind in (own, *kinds(own))]


def test_every_failure_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in kinds()]
    assert len(codes) == len(set(codes))


def test_exit_codes_stay_clear_of_those_that_shells_and_invoke_use() -> None:
    assert all(10 <= kind.exit_code < 126 for kind in kinds())


def test_all_failures_are_in_one_package_and_say_what_they_mean() -> None:
    assert len(kinds()) > 50
    assert {kind.__module__.rpartition(".")[0] for kind in kinds()} == {errors.__name__, "images.shipped"}
    assert all(kind.__doc__ for kind in kinds())


def test_nothing_raises_the_base_class() -> None:
    raised = {name for _, name, _ in _constructed()}
    assert "FactoryError" not in raised


def test_a_message_has_four_parts() -> None:
    place = Location(file="a.yaml", line=3)
    error = MatrixError("It broke.", where=place, why="Because.", fix="Mend it.")
    assert str(error).splitlines() == [
        "It broke.",
        "  where: a.yaml:3",
        "  why:   Because.",
        "  next:  Mend it.",
    ]
    assert error_message(error).plain == f"error: {error}"


def test_no_part_of_a_message_can_be_left_out() -> None:
    parts = {"where": "here", "why": "because", "fix": "so"}
    for missing in parts:
        given = {name: text for name, text in parts.items() if name != missing}
        with pytest.raises(TypeError):
            MatrixError("what", **given)


def test_a_cause_that_nobody_told_is_said_to_be_unknown() -> None:
    error = MatrixError("It broke.", where="here", why=str(OSError()), fix="Mend it.")
    assert error.why == "No reason is known."


@pytest.mark.parametrize("part", ["what", "where", "fix"])
def test_an_empty_part_is_a_programming_mistake(part: str) -> None:
    parts = {"what": "It broke.", "where": "here", "why": "Because.", "fix": "So."} | {part: ""}
    with pytest.raises(ValueError, match=part):
        MatrixError(parts.pop("what"), **parts)


def test_wherever_the_library_raises_one_all_parts_are_given() -> None:
    for place, name, call in _constructed():
        given = {keyword.arg for keyword in call.keywords}
        assert given >= {"where", "why", "fix"} or None in given, f"{place} gives {name} only {given}"


def test_the_nearest_names_are_suggested_and_all_are_listed_when_none_is_near() -> None:
    assert did_you_mean("gb01", ["gb10", "h100", "cpu"]) == "did you mean gb10?"
    assert did_you_mean("xyz", ["gb10", "cpu"]) == "known: cpu, gb10"
    assert did_you_mean("xyz", []) == "none is known"


def _constructed() -> Iterator[tuple[str, str, ast.Call]]:
    names = {kind.__name__ for kind in kinds()} | {"FactoryError"}
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield f"{path.name}:{node.lineno}", node.func.id, node
