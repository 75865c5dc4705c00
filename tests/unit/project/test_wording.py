"""What is wrong in a file that people write is said in plain words, with the line where it begins."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project
from imagefactory.project.wording import first_problem
from tests.fixtures.failures import raises
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.small_factory import SmallFactory


class Everything(BaseModel):
    """A field for each kind of complaint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    needed: int = 1
    reason: Annotated[str, Field(min_length=10, max_length=20)] = "long enough"
    anchor: Annotated[str, Field(min_length=1)] = "x"
    name: Annotated[str, Field(pattern="^[a-z]+$")] = "x"
    parts: Annotated[list[int], Field(min_length=2, max_length=3)] = [1, 2]
    kind: Literal["wheel", "sdist"] = "wheel"
    share: Annotated[float, Field(ge=1, le=2)] = 1.5
    active: bool = True
    env: dict[str, str] = {}
    odd: str = ""

    @field_validator("odd")
    @classmethod
    def _refuse(cls, value: str) -> str:
        if value:
            raise ValueError("it is odd")
        return value


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("needed", "x", "it has to be a whole number"),
        ("reason", "none", "it is too short: say it in 10 characters or more"),
        ("reason", "x" * 21, "it is too long: say it in up to 20 characters"),
        ("reason", 1, "it has to be text; put it in quotes"),
        ("anchor", "", "it is empty"),
        ("name", "A", "it is not written as `^[a-z]+$` asks"),
        ("parts", [1], "it needs 2 or more, and has 1"),
        ("parts", [1, 2, 3, 4], "it may have up to 3, and has 4"),
        ("parts", "x", "it has to be a list"),
        ("kind", "x", "it has to be 'wheel' or 'sdist'"),
        ("share", 0.5, "it has to be 1 or more"),
        ("share", 3.5, "it has to be 2 or less"),
        ("share", "x", "it has to be a number"),
        ("active", 1, "it has to be true or false"),
        ("env", [], "it has to be keys with values"),
        ("odd", "x", "it is odd"),
        ("other", "x", "there is no such key"),
    ],
)
def test_complaints_are_in_our_words(key: str, value: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Everything.model_validate({key: value})
    assert first_problem(caught.value) == f"{key}: {says}"


def test_a_reason_of_one_word_is_asked_for_as_a_sentence(small_factory: SmallFactory) -> None:
    change, checks = edit("pure/__init__.py", "VALUE = 1\n", after="# more\n"), [has("pure/__init__.py", "# more")]
    unneeded = [{"versions": ">=3", "reason": "none"}]
    write_mod(small_factory.replace_mods(), manifest("m", change, checks=checks, not_needed=unneeded))
    with raises("bad-mod") as caught:
        _ = small_factory.project.mods
    assert caught.value.why == "not_needed.0.reason: it is too short: say it in 10 characters or more."


UNCLOSED = "a: 1\nneeded_when:\n  - {model: tiny\n\nb:\n  - c: 2\n"


def test_a_brace_that_is_not_closed_is_on_the_line_where_it_opens(small_factory: SmallFactory, tmp_path: Path) -> None:
    folder = small_factory.replace_mods() / "m"
    folder.mkdir(parents=True)
    (folder / "mod.yaml").write_text(UNCLOSED)
    with raises("bad-yaml") as caught:
        _ = Project(small_factory.root).mods
    assert caught.value.where == "mods/m/mod.yaml:3"
    assert caught.value.why.startswith("What opens on this line with { or [ is not closed before line ")
    (tmp_path / "matrix.yaml").write_text(UNCLOSED.replace("{", "["))
    with raises("bad-yaml") as caught:
        load_matrix(tmp_path / "matrix.yaml")
    assert caught.value.where == "matrix.yaml:3"
    (tmp_path / "matrix.yaml").write_text("a: b: c\n")
    with raises("bad-yaml") as caught:
        load_matrix(tmp_path / "matrix.yaml")
    assert caught.value.where == "matrix.yaml:1"
