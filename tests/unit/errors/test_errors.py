"""Failures: one class, one exit code, four parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from imagefactory import errors
from imagefactory.cli.show.terminal import error_message
from imagefactory.errors import FactoryError, LibraryError, Location, did_you_mean
from imagefactory.errors.matrix import MatrixError

LIBRARY = Path(errors.__file__).parents[1]
PARTS = {"where": "here", "why": "because", "fix": "so"}
for module in iter_modules(errors.__path__):
    import_module(f"{errors.__name__}.{module.name}")


def subclasses(base: type[FactoryError]) -> list[type[FactoryError]]:
    return [kind for own in base.__subclasses__() for kind in (own, *subclasses(own))]


KINDS = [kind for kind in subclasses(FactoryError) if kind is not LibraryError]


def test_exit_codes_are_unique_and_avoid_those_of_shells_and_invoke() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert len(codes) == len(set(codes))
    # Shells use 126 and 127, and 128 to 192 for signals.
    assert all(10 <= code < 126 or 200 <= code < 250 for code in codes)


def test_a_failure_cannot_be_declared_without_an_exit_code() -> None:
    with pytest.raises(TypeError, match="exit_code"):
        type("CodelessError", (LibraryError,), {})


def test_all_failures_are_in_one_package_and_documented() -> None:
    assert len(KINDS) > 50
    assert {kind.__module__.rpartition(".")[0] for kind in KINDS} == {errors.__name__, "images.shipped"}
    assert all(kind.__doc__ for kind in KINDS)


def test_no_code_raises_a_base_class() -> None:
    raised = {name for _, name, _ in _constructed()}
    assert raised.isdisjoint({"FactoryError", "LibraryError"})


def test_message_has_four_parts() -> None:
    place = Location(file="a.yaml", line=3)
    error = MatrixError("It broke.", where=place, why="Because.", fix="Mend it.")
    assert str(error).splitlines() == [
        "It broke.",
        "  where: a.yaml:3",
        "  why:   Because.",
        "  next:  Mend it.",
    ]
    assert error_message(error).plain == f"error: {error}"


@pytest.mark.parametrize("missing", PARTS)
def test_every_part_of_a_message_is_required(missing: str) -> None:
    given = {name: text for name, text in PARTS.items() if name != missing}
    with pytest.raises(TypeError):
        MatrixError("what", **given)


def test_empty_reason_is_reported_as_unknown() -> None:
    error = MatrixError("It broke.", where="here", why=str(OSError()), fix="Mend it.")
    assert error.why == "No reason is known."


@pytest.mark.parametrize("part", ["what", "where", "fix"])
def test_any_other_empty_part_is_a_programming_mistake(part: str) -> None:
    parts = {"what": "It broke.", **PARTS} | {part: ""}
    with pytest.raises(ValueError, match=part):
        MatrixError(parts.pop("what"), **parts)


def test_library_gives_all_parts_wherever_it_raises() -> None:
    for place, name, call in _constructed():
        given = {keyword.arg for keyword in call.keywords}
        assert given >= {"where", "why", "fix"} or None in given, f"{place} gives {name} only {given}"


def test_did_you_mean_suggests_the_nearest_names_or_lists_all() -> None:
    assert did_you_mean("gb01", ["gb10", "h100", "cpu"]) == "did you mean gb10?"
    assert did_you_mean("xyz", ["gb10", "cpu"]) == "known: cpu, gb10"
    assert did_you_mean("xyz", []) == "none is known"


def _constructed() -> Iterator[tuple[str, str, ast.Call]]:
    names = {kind.__name__ for kind in KINDS} | {"FactoryError", "LibraryError"}
    for path in sorted(LIBRARY.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                yield f"{path.name}:{node.lineno}", node.func.id, node
