"""Mods are applied exactly or not at all: no fuzz, no order that matters, nothing that undoes something else."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.errors import FactoryError
from imagefactory.errors.mods import (
    AnchorError,
    ModCheckError,
    ModConflictError,
    ModFileError,
    ModSyntaxError,
    PatchError,
)
from imagefactory.store.digests import sha256_of
from images.shipped.mods.apply import Applied, apply_mods, in_levels, in_order
from images.shipped.mods.manifest import Mod, Variant
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import need
from tests.fixtures.mods import Data, edit, has, line_of, make_mod, manifest, reader

FILE = "vllm/x.py"
TREE = {FILE: "one = 1\ntwo = 2\nthree = 3\nfour = 4\n"}
MISAPPLIED = REPOSITORY / "tests" / "fixtures" / "misapplied"


def applied(root: Path, data: Data, tree: dict[str, str] = TREE, files: dict[str, str] | None = None) -> str:
    """Apply one mod and give the file that it leaves."""
    [result] = apply_mods([make_mod(root, data, files)], reader(tree))
    return result.files[FILE]


# --- one edit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"before": "zero\n"}, "one = 1\nzero\ntwo = 2\nthree = 3\nfour = 4\n"),
        ({"after": "half\n"}, "one = 1\ntwo = 2\nhalf\nthree = 3\nfour = 4\n"),
        ({"replace": "TWO = 2\n"}, "one = 1\nTWO = 2\nthree = 3\nfour = 4\n"),
        ({"replace": ""}, "one = 1\nthree = 3\nfour = 4\n"),
    ],
)
def test_an_edit_goes_before_after_or_in_place_of_its_anchor(
    tmp_path: Path, action: dict[str, str], text: str
) -> None:
    check = {"file": FILE, "lacks": "one = 1\ntwo = 2\nthree"}
    assert applied(tmp_path, manifest("m", edit(FILE, "two = 2\n", **action), checks=[check])) == text


def test_an_anchor_may_be_a_part_of_a_line(tmp_path: Path) -> None:
    data = manifest("m", edit(FILE, "= 2", after="0"), checks=[has(FILE, "two = 20")])
    assert applied(tmp_path, data) == TREE[FILE].replace("= 2", "= 20")


@pytest.mark.parametrize(
    ("text", "count", "lines"),
    [
        ("one = 1\n", 0, ""),
        ("two = 2\ntwo = 2\n", 2, "lines 1, 2"),
        ("two = 2\r\n", 0, ""),
    ],
)
def test_an_anchor_that_does_not_occur_once_names_mod_variant_file_and_line(
    tmp_path: Path, text: str, count: int, lines: str
) -> None:
    data = manifest("m", edit(FILE, "two = 2\n", after="half\n"), checks=[has(FILE, "half")])
    with pytest.raises(AnchorError) as caught:
        applied(tmp_path, data, {FILE: text})
    assert caught.value.what == f"An anchor of the mod m (>=1,<2) occurs {count} times in {FILE}."
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'edit: vllm')}"
    assert lines in caught.value.why
    assert "'two = 2'" in caught.value.why


def test_overlapping_occurrences_of_an_anchor_count(tmp_path: Path) -> None:
    data = manifest("m", edit(FILE, "aXa", after="!"), checks=[has(FILE, "!")])
    with pytest.raises(AnchorError, match="occurs 2 times"):
        applied(tmp_path, data, {FILE: "aXaXa\n"})


def test_line_ends_that_no_edit_touches_stay_as_they_are(tmp_path: Path) -> None:
    data = manifest("m", edit(FILE, "two", replace="TWO"), checks=[has(FILE, "TWO")])
    assert applied(tmp_path, data, {FILE: "one\r\ntwo\r\nthree\x0c"}) == "one\r\nTWO\r\nthree\x0c"


def test_a_file_that_is_not_there_cannot_be_changed(tmp_path: Path) -> None:
    data = manifest("m", edit("vllm/y.py", "x", after="!"), checks=[has("vllm/y.py", "!")])
    with pytest.raises(ModFileError, match=r"vllm/y\.py, which the mod m \(>=1,<2\) changes"):
        applied(tmp_path, data)


def test_a_new_file_must_not_be_there_yet(tmp_path: Path) -> None:
    data = manifest("m", {"add": FILE, "source": "x.py"}, checks=[has(FILE, "new")])
    assert applied(tmp_path / "free", data, {}, {"x.py": "new = 1\n"}) == "new = 1\n"
    with pytest.raises(ModFileError, match=r"adds vllm/x\.py, which is there already"):
        applied(tmp_path / "taken", data, TREE, {"x.py": "new = 1\n"})


def test_an_edit_that_leaves_a_file_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    first = edit("vllm/y.py", "y", after=" = 1")
    bad = edit(FILE, "two = 2\n", after="  indented = 1\n")
    data = manifest("m", first, bad, checks=[has(FILE, "indented")])
    with pytest.raises(ModSyntaxError) as caught:
        applied(tmp_path, data, {**TREE, "vllm/y.py": "y\n"})
    assert caught.value.what == f"The mod m (>=1,<2) leaves {FILE} broken."
    assert "line 3: unexpected indent" in caught.value.why
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', f'edit: {FILE}')}"


def test_other_languages_are_not_compiled(tmp_path: Path) -> None:
    tree = {"csrc/x.cu": "int x;\n"}
    data = manifest("m", edit("csrc/x.cu", "int x;\n", after="{\n"), checks=[has("csrc/x.cu", "{")])
    [result] = apply_mods([make_mod(tmp_path, data)], reader(tree))
    assert result.files == {"csrc/x.cu": "int x;\n{\n"}


def test_two_changes_of_one_mod_at_one_place_are_refused(tmp_path: Path) -> None:
    for number, (one, other) in enumerate(
        [
            (edit(FILE, "two = 2\n", after="a\n"), edit(FILE, "= 2\n", after="b\n")),
            (edit(FILE, "two = 2\nthree", replace="a"), edit(FILE, "three = 3", replace="b")),
            (edit(FILE, "two", replace="a"), edit(FILE, "two =", before="b")),
        ]
    ):
        data = manifest("m", one, other, checks=[has(FILE, "a")])
        with pytest.raises(ModConflictError, match=r"Two changes of the mod m .* at the same place"):
            applied(tmp_path / str(number), data)


def test_neighbouring_changes_of_one_mod_are_fine(tmp_path: Path) -> None:
    changes = (edit(FILE, "two = 2\n", replace="a = 1\n"), edit(FILE, "three", before="b = 1\n"))
    text = applied(tmp_path, manifest("m", *changes, checks=[has(FILE, "a = 1")]))
    assert text == "one = 1\na = 1\nb = 1\nthree = 3\nfour = 4\n"


# --- checks --------------------------------------------------------------------------------------


def test_a_check_that_does_not_hold_names_the_check_and_its_line(tmp_path: Path) -> None:
    checks = [has(FILE, "half"), {"file": FILE, "function": "f", "returns": "1"}]
    with pytest.raises(ModCheckError) as caught:
        applied(tmp_path, manifest("m", edit(FILE, "two = 2\n", after="half = 1\n"), checks=checks))
    assert caught.value.why == f"{FILE}: f returns 1: there is no function f."
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'function: f') - 1}"


def test_a_mod_whose_checks_hold_without_it_is_upstream_or_says_nothing(tmp_path: Path) -> None:
    data = manifest("m", edit(FILE, "two = 2\n", after="half = 1\n"), checks=[has(FILE, "two = 2")])
    with pytest.raises(ModCheckError, match="hold without it"):
        applied(tmp_path, data)


def test_a_later_mod_must_not_undo_an_earlier_one(tmp_path: Path) -> None:
    one = make_mod(tmp_path, manifest("one", edit(FILE, "two", replace="TWO"), checks=[has(FILE, "TWO")]))
    undo = manifest("undo", edit(FILE, "TWO", replace="zwei"), checks=[has(FILE, "zwei")], requires=["one"])
    with pytest.raises(ModCheckError, match=r"A check of the mod one \(>=1,<2\) does not hold"):
        apply_mods([one, make_mod(tmp_path, undo)], reader(TREE))


# --- diffs ---------------------------------------------------------------------------------------

DIFF = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,3 +1,4 @@\n one = 1\n two = 2\n+half = 1\n three = 3\n"


def patch(name: str = "m", **more: object) -> Data:
    return manifest(name, {"patch": "x.diff", "files": [FILE], **more}, checks=[has(FILE, "half")])


def test_a_diff_is_applied_where_it_says(tmp_path: Path) -> None:
    assert (
        applied(tmp_path, patch(), TREE, {"x.diff": DIFF})
        == "one = 1\ntwo = 2\nhalf = 1\nthree = 3\nfour = 4\n"
    )


@pytest.mark.parametrize(
    ("text", "offset", "fits"),
    [
        (f"# a line more\n{TREE[FILE]}", 0, False),
        (f"# a line more\n{TREE[FILE]}", 1, True),
        (f"# a line more\n# and one more\n{TREE[FILE]}", 1, False),
        (TREE[FILE].replace("three", "THREE"), 100, False),
        (TREE[FILE].replace("one = 1\n", "one = 1 \n"), 100, False),
        (f"#\n{TREE[FILE]}{TREE[FILE]}", 100, False),
        (f"{TREE[FILE]}{TREE[FILE]}", 100, True),
        (TREE[FILE].replace("\n", "\r\n"), 100, False),
    ],
)
def test_a_diff_fits_line_by_line_and_elsewhere_only_if_that_is_declared(
    tmp_path: Path, text: str, offset: int, *, fits: bool
) -> None:
    if fits:
        assert "two = 2\nhalf = 1\nthree" in applied(
            tmp_path, patch(offset=offset), {FILE: text}, {"x.diff": DIFF}
        )
        return
    with pytest.raises(PatchError) as caught:
        applied(tmp_path, patch(offset=offset), {FILE: text}, {"x.diff": DIFF})
    assert caught.value.what == "The diff x.diff of the mod m (>=1,<2) does not apply."
    assert f"The hunk for {FILE}:1 does not fit there" in caught.value.why
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'patch: x.diff')}"


def test_a_diff_may_make_a_new_file_and_end_without_a_newline(tmp_path: Path) -> None:
    diff = (
        f"--- /dev/null\n+++ b/{FILE}\n@@ -0,0 +1,2 @@\n+half = 1\n+end = 2\n\\ No newline at end of file\n"
    )
    assert applied(tmp_path / "free", patch(), {}, {"x.diff": diff}) == "half = 1\nend = 2"
    with pytest.raises(ModFileError, match="there already"):
        applied(tmp_path / "taken", patch(), TREE, {"x.diff": diff})


def test_a_diff_touches_what_it_declares_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"vllm/x\.py, which `files` does not declare"):
        applied(tmp_path / "more", patch(files=["vllm/y.py"]), TREE, {"x.diff": DIFF})
    with pytest.raises(PatchError, match=r"vllm/y\.py, which `files` declares, but the diff leaves alone"):
        applied(tmp_path / "less", patch(files=[FILE, "vllm/y.py"]), TREE, {"x.diff": DIFF})


def test_a_diff_that_is_not_one_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="line 4 of the diff"):
        applied(tmp_path, patch(), TREE, {"x.diff": DIFF.replace(" one", "one")})


def diff_of(case: str, *, offset: int) -> Data:
    change = {"patch": "change.diff", "files": ["vllm/file.py"], "offset": offset}
    return manifest("m", change, checks=[has("vllm/file.py", case)])


@pytest.mark.parametrize(
    ("case", "inserted"),
    [
        ("wrong-class", "is_device_capability(121)"),
        ("duplicate-method", "def supports_non_causal"),
        ("wrong-hunk", "attn_backend=FlashAttentionBackend"),
    ],
)
class TestKnownMisapplications:
    """Three changes of vLLM that GNU patch puts into the wrong place of a later release, without a word."""

    def test_patch_takes_it(self, tmp_path: Path, case: str, inserted: str) -> None:
        need("patch")
        target = tmp_path / "vllm" / "file.py"
        target.parent.mkdir()
        shutil.copy(MISAPPLIED / case / "later.txt", target)
        command = ["patch", "-p1", "-i", str(MISAPPLIED / case / "change.diff")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "with fuzz" in done.stdout
        before = (MISAPPLIED / case / "later.txt").read_text()
        assert target.read_text().count(inserted) == before.count(inserted) + 1

    def test_the_diff_is_right_for_the_release_it_was_made_for(
        self, tmp_path: Path, case: str, inserted: str
    ) -> None:
        diff = (MISAPPLIED / case / "change.diff").read_text()
        tree = {"vllm/file.py": (MISAPPLIED / case / "earlier.txt").read_text()}
        [result] = apply_mods(
            [make_mod(tmp_path, diff_of(inserted, offset=0), {"change.diff": diff})], reader(tree)
        )
        assert inserted in result.files["vllm/file.py"]

    @pytest.mark.parametrize("offset", [0, 1000])
    def test_we_refuse_it(self, tmp_path: Path, case: str, inserted: str, offset: int) -> None:
        diff = (MISAPPLIED / case / "change.diff").read_text()
        tree = {"vllm/file.py": (MISAPPLIED / case / "later.txt").read_text()}
        with pytest.raises(PatchError, match="does not fit there"):
            apply_mods(
                [make_mod(tmp_path, diff_of(inserted, offset=offset), {"change.diff": diff})], reader(tree)
            )


def test_a_diff_with_too_little_context_is_caught_by_its_check(tmp_path: Path) -> None:
    """Three lines of context fit the other class exactly: only a fact about the class tells."""
    diff = (MISAPPLIED / "wrong-class" / "change.diff").read_text()
    diff = diff.replace("@@ -14,8 +14,10 @@\n     @classmethod\n", "@@ -15,6 +15,8 @@\n")
    diff = diff.removesuffix("     def can_implement(cls, c: FP8Config):\n")
    tree = {"vllm/file.py": (MISAPPLIED / "wrong-class" / "later.txt").read_text()}
    check = {"file": "vllm/file.py", "function": "FP8Kernel.is_supported", "contains": "(121)"}
    change = {"patch": "change.diff", "files": ["vllm/file.py"], "offset": 12}
    mod = make_mod(tmp_path, manifest("m", change, checks=[check]), {"change.diff": diff})
    with pytest.raises(ModCheckError, match="does not hold"):
        apply_mods([mod], reader(tree))


# --- several mods --------------------------------------------------------------------------------


def on_lines(root: Path, name: str, anchor: str, **more: Any) -> tuple[Mod, Variant]:
    data = manifest(name, edit(FILE, anchor, after=f"# {name}\n"), checks=[has(FILE, f"# {name}")], **more)
    return make_mod(root, data)


def test_two_mods_on_the_same_lines_are_a_conflict_that_names_both(tmp_path: Path) -> None:
    one, two = on_lines(tmp_path, "one", "one = 1\ntwo = 2\n"), on_lines(tmp_path, "two", "two = 2\n")
    for order in ([one, two], [two, one]):
        with pytest.raises(ModConflictError) as caught:
            apply_mods(order, reader(TREE))
        assert caught.value.what == "The mods one and two touch the same lines."
        assert caught.value.where == f"{FILE}:2"
        assert caught.value.why == "one relies on lines 1-2, two on lines 2-2."


def test_a_conflict_is_seen_across_a_change_of_the_same_mod_in_between(tmp_path: Path) -> None:
    long = manifest(
        "long",
        edit(FILE, TREE[FILE], after="# long\n"),
        edit(FILE, "two", replace="TWO"),
        checks=[has(FILE, "# long")],
    )
    with pytest.raises(ModConflictError, match="long and short"):
        apply_mods([make_mod(tmp_path, long), on_lines(tmp_path, "short", "four = 4\n")], reader(TREE))


def test_two_mods_that_add_the_same_file_are_a_conflict(tmp_path: Path) -> None:
    mods = [
        make_mod(tmp_path, manifest(name, {"add": FILE, "source": "x"}, checks=[has(FILE, "")]), {"x": ""})
        for name in ("one", "two")
    ]
    with pytest.raises(ModConflictError, match="one and two"):
        apply_mods(mods, reader({}))


def test_a_declared_conflict_counts_even_where_no_line_is_shared(tmp_path: Path) -> None:
    mods = [
        on_lines(tmp_path, "one", "one = 1\n", conflicts=["two"]),
        on_lines(tmp_path, "two", "four = 4\n"),
    ]
    with pytest.raises(ModConflictError, match="one and two cannot be together") as caught:
        apply_mods(mods, reader(TREE))
    assert caught.value.where.startswith("mods/one/mod.yaml:")


def test_a_mod_builds_on_the_text_of_one_that_it_requires(tmp_path: Path) -> None:
    base = on_lines(tmp_path, "zz-base", "two = 2\n")
    upper = on_lines(tmp_path, "aa-upper", "# zz-base\n", requires=["zz-base"])
    results = apply_mods([upper, base], reader(TREE))
    assert [result.mod.name for result in results] == ["zz-base", "aa-upper"]
    assert results[-1].files[FILE] == TREE[FILE].replace("two = 2\n", "two = 2\n# zz-base\n# aa-upper\n")


def test_a_mod_may_not_build_on_the_text_of_one_that_it_does_not_require(tmp_path: Path) -> None:
    mods = [
        on_lines(tmp_path, "base", "four = 4\n"),
        on_lines(tmp_path, "stranger", "two = 2\n"),
        on_lines(tmp_path, "upper", "# stranger\n", requires=["base"]),
    ]
    with pytest.raises(ModConflictError) as caught:
        apply_mods(mods, reader(TREE))
    assert caught.value.what == "The mods stranger and upper touch the same lines."
    assert caught.value.where == f"{FILE}:3"


def test_what_is_required_by_what_is_required_may_be_built_on(tmp_path: Path) -> None:
    mods = [
        on_lines(tmp_path, "a", "two = 2\n"),
        on_lines(tmp_path, "b", "four = 4\n", requires=["a"]),
        on_lines(tmp_path, "c", "# a\n", requires=["b"]),
    ]
    assert apply_mods(mods, reader(TREE))[-1].files[FILE].splitlines()[2:4] == ["# a", "# c"]


def test_each_mod_says_what_a_file_was_before_it_and_is_after_it(tmp_path: Path) -> None:
    one, two = apply_mods(
        [on_lines(tmp_path, "two", "four = 4\n"), on_lines(tmp_path, "one", "two = 2\n")], reader(TREE)
    )
    assert one.before == {FILE: sha256_of(TREE[FILE].encode())}
    assert two.before == {FILE: sha256_of(one.files[FILE].encode())}
    assert "# one" in one.files[FILE]
    assert "# two" not in one.files[FILE]
    record = two.record()
    assert record["files"] == {
        FILE: {"before": two.before[FILE], "after": sha256_of(two.files[FILE].encode())}
    }
    assert (record["name"], record["versions"], record["licence"]) == ("two", ">=1,<2", "Apache-2.0")


def test_the_order_is_by_requirement_and_then_by_name(tmp_path: Path) -> None:
    needs = {"a": ["d"], "b": [], "c": ["b"], "d": []}
    mods = [on_lines(tmp_path, name, "two", requires=others)[0] for name, others in needs.items()]
    assert [[mod.name for mod in level] for level in in_levels(mods)] == [["b", "d"], ["a", "c"]]
    assert [mod.name for mod in in_order(mods[::-1])] == ["b", "d", "a", "c"]


@st.composite
def disjoint_edits(draw: st.DrawFn) -> tuple[str, list[Data]]:
    """Draw a file of numbered lines, and mods that each change lines of their own."""
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
        mods.append(
            manifest(name, edit(FILE, anchor, **{action: inserted}), checks=[has(FILE, f"# mod {first:02}")])
        )
    return text, mods


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(disjoint_edits(), st.randoms(use_true_random=False))
def test_applying_is_deterministic_and_independent_of_order_for_disjoint_lines(
    drawn: tuple[str, list[Data]], shuffle: random.Random
) -> None:
    text, described = drawn
    with tempfile.TemporaryDirectory() as folder:
        mods = [make_mod(Path(folder), data) for data in described]
        expected = outcome(apply_mods(mods, reader({FILE: text})))
        shuffle.shuffle(mods)
        assert outcome(apply_mods(mods, reader({FILE: text}))) == expected
        # One after the other gives the same as all at once.
        stepwise = text
        for mod in mods:
            stepwise = apply_mods([mod], reader({FILE: stepwise}))[0].files[FILE]
        # Two texts that go to the same place, between the lines of two mods, go there by name.
        assert sorted(stepwise.splitlines()) == sorted(expected[-1][1][FILE].splitlines())


def outcome(results: list[Applied]) -> list[tuple[str, dict[str, str]]]:
    return [(result.mod.name, result.files) for result in results]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4))
def test_mods_conflict_exactly_when_they_share_a_line(one: int, two: int, long: int, wide: int) -> None:
    lines = [f"line_{number:02} = {number}\n" for number in range(14)]
    anchors = ["".join(lines[one : one + long]), "".join(lines[two : two + wide])]
    shared = set(range(one, one + long)) & set(range(two, two + wide))
    with tempfile.TemporaryDirectory() as folder:
        mods = [on_lines(Path(folder), name, anchor) for name, anchor in zip("ab", anchors, strict=True)]
        failure: FactoryError | None = None
        try:
            apply_mods(mods, reader({FILE: "".join(lines)}))
        except ModConflictError as error:
            failure = error
    assert (failure is not None) is bool(shared)
    if failure is not None:
        assert "The mods" in failure.what
        assert {"a", "b"} <= set(failure.what.split())
        assert failure.where == f"{FILE}:{min(shared) + 1}"
