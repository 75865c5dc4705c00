"""Mods are applied exactly or not at all, and independently of their order."""

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.shipped.mods.apply import Applied, apply_mods, refuse_taken
from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, adding, edit, has, inserting, line_of, make_mod, manifest, reader

FILE = "vllm/x.py"
TREE = {FILE: "one = 1\ntwo = 2\nthree = 3\nfour = 4\n"}


def applied(root: Path, data: Data, tree: dict[str, str] = TREE, files: dict[str, str] | None = None) -> str:
    """Apply a mod and return the changed file."""
    [result] = apply_mods([make_mod(root, data, files)], reader(tree))
    return result.files[FILE]


def one_edit(anchor: str, inserted: str) -> Data:
    """Describe a mod that inserts a text after an anchor."""
    return manifest("m", edit(FILE, anchor, after=inserted), checks=[has(FILE, inserted)])


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"before": "zero\n"}, "one = 1\nzero\ntwo = 2\nthree = 3\nfour = 4\n"),
        ({"after": "half\n"}, "one = 1\ntwo = 2\nhalf\nthree = 3\nfour = 4\n"),
        ({"replace": "TWO = 2\n"}, "one = 1\nTWO = 2\nthree = 3\nfour = 4\n"),
        ({"replace": ""}, "one = 1\nthree = 3\nfour = 4\n"),
    ],
)
def test_an_edit_inserts_before_or_after_its_anchor_or_replaces_it(
    tmp_path: Path, action: dict[str, str], text: str
) -> None:
    check = {"file": FILE, "lacks": "one = 1\ntwo = 2\nthree"}
    assert applied(tmp_path, manifest("m", edit(FILE, "two = 2\n", **action), checks=[check])) == text


def test_an_anchor_may_be_a_part_of_a_line_and_keeps_line_ends(tmp_path: Path) -> None:
    assert applied(tmp_path / "part", one_edit("= 2", "0")) == TREE[FILE].replace("= 2", "= 20")
    data = manifest("m", edit(FILE, "two", replace="TWO"), checks=[has(FILE, "TWO")])
    ends = {FILE: "one\r\ntwo\r\nthree\x0c"}
    assert applied(tmp_path / "ends", data, ends) == "one\r\nTWO\r\nthree\x0c"


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        ("one = 1\n", 0, "No line of the file is like 'two = 2'."),
        ("one = 1\n\ntwoo = 2\n", 0, "no line 'two = 2'; line 3 is the nearest: 'twoo = 2'."),
        ("two = 2 + 1\ntwo = 2 + 2\n", 0, "Without its line end it occurs 2 times"),
        ("two = 2\ntwo = 2\n", 2, "lines 1, 2"),
    ],
)
def test_an_anchor_that_does_not_occur_once_is_refused_with_mod_variant_file_and_line(
    tmp_path: Path, text: str, count: int, lines: str
) -> None:
    with raises("anchor-misfit") as caught:
        applied(tmp_path, one_edit("two = 2\n", "half\n"), {FILE: text})
    assert caught.value.what == f"An anchor of the mod m (>=1,<2) occurs {count} times in {FILE}."
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'edit: vllm')}"
    assert lines in caught.value.why
    assert r"The anchor: 'two = 2\n'." in caught.value.why


def test_a_new_file_must_not_exist(tmp_path: Path) -> None:
    data = manifest("m", {"add": FILE, "source": "x.py"}, checks=[has(FILE, "new")])
    assert applied(tmp_path / "free", data, {"vllm/__init__.py": ""}, {"x.py": "new = 1\n"}) == "new = 1\n"
    with raises("mod-file", match=r"adds vllm/x\.py, which already exists"):
        applied(tmp_path / "taken", data, TREE, {"x.py": "new = 1\n"})


def test_an_edit_that_breaks_a_python_file_is_refused(tmp_path: Path) -> None:
    first = edit("vllm/y.py", "y", after=" = 1")
    bad = edit(FILE, "two = 2\n", after="  indented = 1\n")
    data = manifest("m", first, bad, checks=[has(FILE, "indented")])
    with raises("broken-syntax") as caught:
        applied(tmp_path, data, {**TREE, "vllm/y.py": "y\n"})
    assert caught.value.what == f"The mod m (>=1,<2) breaks {FILE}."
    assert "line 3: unexpected indent" in caught.value.why
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', f'edit: {FILE}')}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (edit(FILE, "two = 2\n", after="a\n"), edit(FILE, "= 2\n", after="b\n")),
        (edit(FILE, "two = 2\nthree", replace="a"), edit(FILE, "three = 3", replace="b")),
    ],
)
def test_two_changes_of_a_mod_at_the_same_place_are_refused(tmp_path: Path, one: Data, other: Data) -> None:
    with raises("mod-conflict", match=r"Two changes of the mod m .* at the same place"):
        applied(tmp_path, manifest("m", one, other, checks=[has(FILE, "a")]))


def test_a_failed_check_is_reported_with_its_line(tmp_path: Path) -> None:
    checks = [has(FILE, "half"), {"file": FILE, "function": "f", "returns": "1"}]
    with raises("check-failed") as caught:
        applied(tmp_path, manifest("m", edit(FILE, "two = 2\n", after="half = 1\n"), checks=checks))
    assert caught.value.why == f"{FILE}: f returns 1: there is no function f."
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'function: f') - 1}"


def test_a_mod_whose_checks_hold_without_it_is_refused(tmp_path: Path) -> None:
    data = manifest("m", edit(FILE, "two = 2\n", after="half = 1\n"), checks=[has(FILE, "two = 2")])
    with raises("check-failed", match="hold without it"):
        applied(tmp_path, data)


def test_a_conflict_is_found_across_another_change_of_the_mod(tmp_path: Path) -> None:
    long = manifest(
        "long",
        edit(FILE, TREE[FILE], after="# long\n"),
        edit(FILE, "two", replace="TWO"),
        checks=[has(FILE, "# long")],
    )
    with raises("mod-conflict", match="long and short"):
        apply_mods([make_mod(tmp_path, long), make_mod(tmp_path, inserting("short", "four = 4\n"))], reader(TREE))


@st.composite
def disjoint_edits(draw: st.DrawFn) -> tuple[str, list[Data]]:
    """Draw a file of numbered lines, and mods that change different lines."""
    count = draw(st.integers(2, 30))
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text = "".join(f"line_{number:02} = {number}{ending}" for number in range(count))
    cuts = sorted(draw(st.sets(st.integers(0, count), min_size=2, max_size=8)))
    mods: list[Data] = []
    for first, last in pairwise(cuts):
        anchor = "".join(f"line_{number:02} = {number}{ending}" for number in range(first, last))
        action = draw(st.sampled_from(["before", "after", "replace"]))
        inserted = draw(st.sampled_from(["", "new = 1\n", "a = 1\nb = 2\n"])) + f"# mod {first:02}\n"
        name = f"{draw(st.sampled_from('abc'))}-{first:02}"
        check = has(FILE, f"# mod {first:02}")
        mods.append(manifest(name, edit(FILE, anchor, **{action: inserted}), checks=[check]))
    return text, mods


@given(disjoint_edits(), st.randoms(use_true_random=False))
def test_the_order_of_mods_on_different_lines_does_not_matter(
    drawn: tuple[str, list[Data]], shuffle: random.Random
) -> None:
    text, described = drawn
    with tempfile.TemporaryDirectory() as folder:
        mods = [make_mod(Path(folder), data) for data in described]
        expected = outcome(apply_mods(mods, reader({FILE: text})))
        shuffle.shuffle(mods)
        assert outcome(apply_mods(mods, reader({FILE: text}))) == expected
        stepwise = text
        for mod in mods:
            stepwise = apply_mods([mod], reader({FILE: stepwise}))[0].files[FILE]
        # Texts that two mods insert at the same place are sorted by the mods' names.
        assert sorted(stepwise.splitlines()) == sorted(expected[-1][1][FILE].splitlines())


def outcome(results: list[Applied]) -> list[tuple[str, dict[str, str]]]:
    return [(result.mod.name, result.files) for result in results]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4))
def test_mods_conflict_if_and_only_if_they_share_a_line(one: int, two: int, long: int, wide: int) -> None:
    lines = [f"line_{number:02} = {number}\n" for number in range(14)]
    anchors = ["".join(lines[one : one + long]), "".join(lines[two : two + wide])]
    shared = set(range(one, one + long)) & set(range(two, two + wide))
    with tempfile.TemporaryDirectory() as folder:
        mods = [make_mod(Path(folder), inserting(name, anchor)) for name, anchor in zip("ab", anchors, strict=True)]
        for order in (mods, mods[::-1]):
            if not shared:
                apply_mods(order, reader({FILE: "".join(lines)}))
                continue
            with raises("mod-conflict", match="The mods (a and b|b and a) touch the same lines") as caught:
                apply_mods(order, reader({FILE: "".join(lines)}))
            assert caught.value.where == f"{FILE}:{min(shared) + 1}"
            relied = {"a": f"{one + 1}-{one + long}", "b": f"{two + 1}-{two + wide}"}
            said = [f"{name} relies on lines {places}" for name, places in relied.items()]
            assert sorted(caught.value.why.removesuffix(".").split(", ")) == said


PACKAGE = {"vllm/__init__.py": "", "vllm/a/__init__.py": "", "vllm/a/b.py": "", **TREE}


@pytest.mark.parametrize(
    ("path", "kind", "why"),
    [
        ("vllm/__init__.py/x", "taken-path", "vllm/__init__.py is a file."),
        ("torch/__init__.py", "bad-mod-path", "It is in no package of vllm"),
        ("other.py", "bad-mod-path", "It is in no package of vllm"),
        ("vllm/x/__init__.py", "taken-path", "vllm/x.py is the module of that name"),
        ("vllm/a.py", "taken-path", "vllm/a/__init__.py is the module of that name"),
    ],
)
def test_a_new_file_outside_the_packages_below_a_file_or_in_place_of_a_module_is_refused(
    tmp_path: Path, path: str, kind: str, why: str
) -> None:
    with raises(kind, match="may not add") as caught:
        apply_mods([make_mod(tmp_path, adding(path), {"new": "new = 1\n"})], reader(PACKAGE))
    assert why in caught.value.why
    assert caught.value.where.startswith("mods/m/mod.yaml:")


def test_a_new_module_beside_a_library_of_its_name_is_refused(tmp_path: Path) -> None:
    mod = make_mod(tmp_path, adding("vllm/_C/__init__.py"), {"new": "new = 1\n"})
    for owned in ("vllm/_C.abi3.so", "vllm/_C.py", "vllm/_C/__init__.py"):
        with raises("taken-path", match="may not add, hide or change"):
            refuse_taken(*mod, ["vllm/_C/__init__.py"], "vllm", [owned])
    refuse_taken(*mod, ["vllm/_C/__init__.py"], "vllm", ["vllm/_C.txt", "vllm/_Cx.so", "vllm/__init__.py"])


@pytest.mark.parametrize("root", ["vllm/", "/usr/share/imagefactory/mods/"])
def test_a_new_file_below_that_of_another_mod_is_refused(tmp_path: Path, root: str) -> None:
    chosen = [
        make_mod(tmp_path, adding(f"{root}{path}", name), {"new": "new\n"})
        for name, path in (("a", "new/x.py"), ("b", "new"))
    ]
    with raises("taken-path", match=f"may not add, hide or change {root}new/x.py"):
        apply_mods(chosen, reader(PACKAGE))


@pytest.mark.parametrize(
    ("path", "stage"),
    [("vllm/new/x.py", "installed"), ("/usr/share/imagefactory/mods/x", "installed"), ("csrc/new.h", "source")],
)
def test_a_new_file_in_a_package_in_the_folder_of_mods_or_among_sources_is_added(
    tmp_path: Path, path: str, stage: str
) -> None:
    mod = make_mod(tmp_path, adding(path, variant={"stage": stage}), {"new": "new\n"})
    [result] = apply_mods([mod], reader(PACKAGE))
    assert result.added == [path]
