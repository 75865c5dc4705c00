"""Diffs are parsed strictly, and applied exactly or not at all."""

import difflib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.shipped.mods.apply import apply_mods
from images.shipped.mods.diffs import Hunk, parse_diff, split_lines
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import need
from tests.fixtures.failures import raises
from tests.fixtures.mods import has, line_of, make_mod, manifest, reader

MISAPPLIED = REPOSITORY / "tests" / "fixtures" / "misapplied"
FILE = "vllm/x.py"
TEXT = "one = 1\ntwo = 2\nthree = 3\nfour = 4\n"
HEAD = "--- a/vllm/x.py\n+++ b/vllm/x.py\n"


def test_a_hunk_has_old_and_new_lines() -> None:
    preamble = "From somebody\n\ndiff --git a/vllm/x.py b/vllm/x.py\nindex 1..2 100644\n"
    diff = f"{preamble}{HEAD}@@ -3,3 +3,3 @@ def f():\n a\n-b\n+B\n c\n"
    assert parse_diff(diff) == [Hunk("vllm/x.py", 3, ("a\n", "b\n", "c\n"), ("a\n", "B\n", "c\n"))]


def test_a_missing_newline_at_the_end_is_kept_on_either_side() -> None:
    mark = "\\ No newline at end of file\n"
    [hunk] = parse_diff(f"{HEAD}@@ -1 +1 @@\n-a\n{mark}+b\n{mark}")
    assert (hunk.old, hunk.new) == (("a",), ("b",))
    [hunk] = parse_diff(f"{HEAD}@@ -1 +1 @@\n-a\n{mark}+b\n")
    assert (hunk.old, hunk.new) == (("a",), ("b\n",))
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,2 @@\n-a\n+b\n z\n{mark}")
    assert (hunk.old, hunk.new) == (("a\n", "z"), ("b\n", "z"))


def test_carriage_returns_and_form_feeds_belong_to_the_line_and_an_empty_one_may_lack_its_space() -> None:
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,2 @@\n-a\r\n+b\r\n c\x0cd\u2028e\n")
    assert (hunk.old, hunk.new) == (("a\r\n", "c\x0cd\u2028e\n"), ("b\r\n", "c\x0cd\u2028e\n"))
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,3 @@\n a\n\n+b\n")
    assert (hunk.old, hunk.new) == (("a\n", "\n"), ("a\n", "\n", "b\n"))


@pytest.mark.parametrize(
    ("diff", "line", "why"),
    [
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n", 5, "cut off"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n*c\n", 6, "does not start with"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n+c\n", 6, "outside any hunk"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n-b\n", 5, "longer than its header says"),
        (f"{HEAD}@@ here @@\n-a\n+b\n", 3, "not a hunk header"),
        ("@@ -1 +1 @@\n-a\n+b\n", 1, "no +++ line"),
        (f"{HEAD}@@ -5,0 +6,1 @@\n+b\n", 4, "needs old lines"),
        ("--- /dev/null\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", 5, "unless the file is new"),
        ("--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", 2, "cannot be removed"),
        ("rename from x.py\nrename to y.py\n", 1, "only the text"),
    ],
)
def test_an_invalid_line_is_refused(diff: str, line: int, why: str) -> None:
    with pytest.raises(ValueError, match=f"line {line} of the diff") as caught:
        parse_diff(diff)
    assert why in str(caught.value)


TEXTS = st.lists(st.sampled_from(["", "a", "b", "  c", "-d", "+e", "@@ f", "g\r", "h\x0c"]), max_size=12).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)


@given(TEXTS.filter(bool), TEXTS)
def test_diffs_of_difflib_convert_the_old_text_to_the_new_one(old: str, new: str) -> None:
    diff = "".join(difflib.unified_diff(split_lines(old), split_lines(new), "a/x", "b/x", n=3))
    lines = split_lines(old)
    for hunk in reversed(parse_diff(diff)):
        start = hunk.line - 1
        assert tuple(lines[start : start + len(hunk.old)]) == hunk.old
        lines[start : start + len(hunk.old)] = hunk.new
    assert "".join(lines) == new


DIFF = f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1,3 +1,4 @@\n one = 1\n two = 2\n+half = 1\n three = 3\n"


def applied(root: Path, text: str | None, diff: str, *, name: str = FILE, check: str = "half", **more: object) -> str:
    """Apply a diff as the only change of a mod; return the changed file."""
    data = manifest("m", {"patch": "x.diff", "files": [name], **more}, checks=[has(name, check)])
    tree = {"vllm/__init__.py": ""} | ({} if text is None else {name: text})
    [result] = apply_mods([make_mod(root, data, {"x.diff": diff})], reader(tree))
    return result.files[name]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (TEXT, True),
        (f"{TEXT}{TEXT}", True),
        (f"# a line more\n{TEXT}", False),
        (TEXT.removeprefix("one = 1\n"), False),
        (TEXT.replace("three", "THREE"), False),
        ("one = 1\ntwo = 2\n", False),
    ],
)
def test_a_diff_fits_at_its_line_numbers_only(tmp_path: Path, text: str, *, fits: bool) -> None:
    if fits:
        assert applied(tmp_path, text, DIFF) == text.replace("two = 2\n", "two = 2\nhalf = 1\n", 1)
        return
    with raises("patch-misfit") as caught:
        applied(tmp_path, text, DIFF)
    assert caught.value.what == "The diff x.diff of the mod m (>=1,<2) does not apply."
    assert f"The hunk for {FILE}:1 does not fit there" in caught.value.why
    assert caught.value.where == f"mods/m/mod.yaml:{line_of(tmp_path / 'm' / 'mod.yaml', 'patch: x.diff')}"


def test_a_diff_may_add_a_file_without_a_final_newline(tmp_path: Path) -> None:
    diff = f"--- /dev/null\n+++ b/{FILE}\n@@ -0,0 +1,2 @@\n+half = 1\n+end = 2\n\\ No newline at end of file\n"
    assert applied(tmp_path / "free", None, diff) == "half = 1\nend = 2"
    with raises("mod-file", match="already exists"):
        applied(tmp_path / "taken", TEXT, diff)


def test_a_diff_touches_exactly_its_declared_files_and_an_invalid_one_is_refused(tmp_path: Path) -> None:
    with raises("patch-misfit", match=r"It touches vllm/x\.py, but `files` lists vllm/y\.py\."):
        applied(tmp_path / "more", TEXT, DIFF, files=["vllm/y.py"])
    with raises("patch-misfit", match=r"It touches vllm/x\.py, but `files` lists vllm/x\.py, vllm/y\.py\."):
        applied(tmp_path / "less", TEXT, DIFF, files=[FILE, "vllm/y.py"])
    with raises("patch-misfit", match="line 4 of the diff"):
        applied(tmp_path / "invalid", TEXT, DIFF.replace(" one", "one"))


def misapplied(case: str, name: str) -> str:
    return (MISAPPLIED / case / name).read_text()


@pytest.mark.parametrize(
    ("case", "inserted"),
    [
        ("wrong-class", "is_device_capability(121)"),
        ("duplicate-method", "def supports_non_causal"),
        ("wrong-hunk", "attn_backend=FlashAttentionBackend"),
    ],
)
def test_a_diff_that_gnu_patch_puts_into_the_wrong_place_is_refused(tmp_path: Path, case: str, inserted: str) -> None:
    """Three changes of vLLM that GNU patch silently misapplies to a later release."""
    need("patch")
    earlier, later, diff = (misapplied(case, name) for name in ("earlier.txt", "later.txt", "change.diff"))
    target = tmp_path / "vllm" / "file.py"
    target.parent.mkdir()
    target.write_text(later)
    command = ["patch", "-p1", "-i", str(MISAPPLIED / case / "change.diff")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "with fuzz" in done.stdout
    assert target.read_text().count(inserted) == later.count(inserted) + 1
    assert inserted in applied(tmp_path / "own", earlier, diff, name="vllm/file.py", check=inserted)
    with raises("patch-misfit", match="does not fit there"):
        applied(tmp_path / "later", later, diff, name="vllm/file.py", check=inserted)


def test_a_diff_with_too_little_context_is_caught_by_its_check(tmp_path: Path) -> None:
    """Three lines of context fit the other class exactly; only a check of the class fails."""
    diff = misapplied("wrong-class", "change.diff")
    diff = diff.replace("@@ -14,8 +14,10 @@\n     @classmethod\n", "@@ -3,6 +3,8 @@\n")
    diff = diff.removesuffix("     def can_implement(cls, c: FP8Config):\n")
    tree = {"vllm/file.py": misapplied("wrong-class", "later.txt")}
    check = {"file": "vllm/file.py", "function": "FP8Kernel.is_supported", "contains": "(121)"}
    change = {"patch": "change.diff", "files": ["vllm/file.py"]}
    mod = make_mod(tmp_path, manifest("m", change, checks=[check]), {"change.diff": diff})
    with raises("check-failed", match="does not hold"):
        apply_mods([mod], reader(tree))
