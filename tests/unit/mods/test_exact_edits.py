"""Edits made from two texts turn the one into the other, with anchors that occur once; checks tell the two apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.mods.exact_edits import exact_edits, propose
from images.shipped.mods.checks import failing
from images.shipped.mods.edits import apply_spans, locate
from images.shipped.mods.manifest import Manifest, Mod
from tests.fixtures.mods import has, manifest

SOURCE = "".join(f"value_{number} = function_{number}(argument)\n" for number in range(30))
CLASS = "class A:\n    def one(self):\n        return 1\n\n    def two(self):\n        return 1\n"


def applied(before: str, after: str) -> str:
    """Return the text that the edits make of the first text."""
    edits = [edit.model_dump(exclude_none=True) for edit in exact_edits("x.py", before, after)]
    made = Manifest.model_validate(manifest("m", *edits, checks=[has("x.py", "x")]))
    return apply_spans(before, locate(Mod(made, {}), made.variants[0], {"x.py": before}))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SOURCE, SOURCE.replace("value_3 ", "changed ")),
        (SOURCE, "first\n" + SOURCE),
        (SOURCE, SOURCE.removesuffix("\n")),
        (SOURCE, SOURCE.replace("value_7", "a\nb\nvalue_7").replace("value_8 = function_8(argument)\n", "")),
        ("x\n" * 9 + "y\n" + "x\n" * 9, "x\n" * 9 + "y\nz\n" + "x\n" * 9),
        ("x\n" * 9, "x\n" * 8),
        (CLASS, CLASS.replace("return 1", "return 2")),
        ("one\r\ntwo\r\n", "one\r\n2\r\n"),
    ],
)
def test_edits_give_exactly_the_new_text(before: str, after: str) -> None:
    assert applied(before, after) == after


LINES = st.lists(st.sampled_from(["a\n", "b\n", "\n", "    return x\n", "long_enough_to_tell\n"]), min_size=1)


@given(LINES, LINES)
def test_edits_of_any_two_texts_give_the_second(old: list[str], new: list[str]) -> None:
    before, after = "".join(old), "".join(new)
    if before != after:
        assert applied(before, after) == after


def test_an_anchor_is_as_long_as_it_has_to_be_to_occur_once() -> None:
    [edit] = exact_edits("x.py", SOURCE, SOURCE.replace("value_3 ", "changed "))
    assert edit.anchor == "value_3 = function_3(argument)\n"
    assert edit.replace == "changed = function_3(argument)\n"
    [edit] = exact_edits("x.py", SOURCE, SOURCE.replace("value_4 ", "new_line\nvalue_4 "))
    assert (edit.anchor, edit.after) == ("value_3 = function_3(argument)\n", "new_line\n")
    [edit] = exact_edits("x.py", CLASS, f"{CLASS.removesuffix(' 1' + chr(10))} 2\n")
    assert edit.anchor == "    def two(self):\n        return 1\n"


@pytest.mark.parametrize(
    ("before", "after", "check"),
    [
        (CLASS, CLASS.replace("return 1\n\n", "return answer(1)\n\n"), "A.one contains 'return answer(1)'"),
        (CLASS, CLASS + "    three = function()\n", "A contains 'three = function()'"),
        (SOURCE, SOURCE.replace("value_3 = function_3(argument)\n", ""), "lacks 'value_3 = function_3(arg"),
        (None, "# A comment\nimport something\n", "contains 'import something'"),
    ],
)
def test_checks_name_what_changed_and_where(before: str | None, after: str, check: str) -> None:
    [found] = propose("x.py", before, after)
    assert check in str(found)
    assert failing(found, after) is None
    assert failing(found, before) is not None


def test_neighbours_tell_a_changed_line_from_others_like_it() -> None:
    before = "def f():\n    one(kind=None)\n    two(kind=quick)\n    one(kind=quick)\n    two(kind=None)\n"
    before += "    two(kind=quick)\n"
    after = before.replace("one(kind=None)\n    two(kind=quick)", "one(kind=None)\n    two(kind=None)")
    [check] = propose("x.py", before, after)
    assert check.function == "f"
    assert check.contains is not None
    assert "one(kind=None)\n    two(kind=None)" in check.contains
