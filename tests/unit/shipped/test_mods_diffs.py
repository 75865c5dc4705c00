"""Diffs are read strictly: what is not understood is refused with its line, never skipped."""

from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.shipped.mods.diffs import Hunk, parse_diff, split_lines

HEAD = "--- a/vllm/x.py\n+++ b/vllm/x.py\n"


def test_a_hunk_is_its_old_and_its_new_lines() -> None:
    preamble = "From somebody\n\ndiff --git a/vllm/x.py b/vllm/x.py\nindex 1..2 100644\n"
    diff = f"{preamble}{HEAD}@@ -3,3 +3,3 @@ def f():\n a\n-b\n+B\n c\n"
    assert parse_diff(diff) == [Hunk("vllm/x.py", 3, ("a\n", "b\n", "c\n"), ("a\n", "B\n", "c\n"))]


def test_paths_may_come_without_their_prefixes_and_with_a_date() -> None:
    diff = "--- vllm/x.py\t2026-01-01\n+++ vllm/x.py\t2026-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    assert parse_diff(diff) == [Hunk("vllm/x.py", 1, ("a\n",), ("b\n",))]


def test_a_missing_newline_at_the_end_is_heeded_on_either_side() -> None:
    mark = "\\ No newline at end of file\n"
    [hunk] = parse_diff(f"{HEAD}@@ -1 +1 @@\n-a\n{mark}+b\n{mark}")
    assert (hunk.old, hunk.new) == (("a",), ("b",))
    [hunk] = parse_diff(f"{HEAD}@@ -1 +1 @@\n-a\n{mark}+b\n")
    assert (hunk.old, hunk.new) == (("a",), ("b\n",))
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,2 @@\n-a\n+b\n z\n{mark}")
    assert (hunk.old, hunk.new) == (("a\n", "z"), ("b\n", "z"))


def test_carriage_returns_and_form_feeds_belong_to_the_line() -> None:
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,2 @@\n-a\r\n+b\r\n c\x0cd\u2028e\n")
    assert (hunk.old, hunk.new) == (("a\r\n", "c\x0cd\u2028e\n"), ("b\r\n", "c\x0cd\u2028e\n"))


def test_a_new_file_has_no_old_lines() -> None:
    assert parse_diff("--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n") == [
        Hunk("vllm/new.py", 0, (), ("a\n", "b\n"))
    ]


def test_an_empty_line_may_have_lost_its_space() -> None:
    [hunk] = parse_diff(f"{HEAD}@@ -1,2 +1,3 @@\n a\n\n+b\n")
    assert (hunk.old, hunk.new) == (("a\n", "\n"), ("a\n", "\n", "b\n"))


@pytest.mark.parametrize(
    ("diff", "line", "why"),
    [
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n", 5, "cut off"),
        (f"{HEAD}@@ -1,2 +1,2 @@\n a\n-b\n*c\n", 6, "does not begin with"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n+b\n+c\n", 6, "in no hunk"),
        (f"{HEAD}@@ -1 +1 @@\n-a\n-b\n", 5, "longer than its head says"),
        (f"{HEAD}@@ here @@\n-a\n+b\n", 3, "not the head of a hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n", 1, "no +++ line"),
        (f"{HEAD}@@ -5,0 +6,1 @@\n+b\n", 4, "needs old lines"),
        ("--- /dev/null\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n", 5, "a new file has none"),
        ("--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", 2, "cannot be removed"),
        ("--- a/x.py\n+++ b/y.py\n@@ -1 +1 @@\n-a\n+b\n", 2, "removed or renamed"),
        ("rename from x.py\nrename to y.py\n", 1, "only the text"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", 2, "only the text"),
        ("Binary files a/x and b/x differ\n", 1, "only the text"),
    ],
)
def test_anything_else_is_refused_with_its_line(diff: str, line: int, why: str) -> None:
    with pytest.raises(ValueError, match=f"line {line} of the diff") as caught:
        parse_diff(diff)
    assert why in str(caught.value)


TEXTS = st.lists(st.sampled_from(["", "a", "b", "  c", "-d", "+e", "@@ f", "g\r", "h\x0c"]), max_size=12).map(
    lambda lines: "".join(f"{line}\n" for line in lines)
)


@given(TEXTS.filter(bool), TEXTS)
def test_what_difflib_writes_leads_from_the_old_text_to_the_new_one(old: str, new: str) -> None:
    diff = "".join(difflib.unified_diff(split_lines(old), split_lines(new), "a/x", "b/x", n=3))
    lines = split_lines(old)
    for hunk in reversed(parse_diff(diff)):
        start = hunk.line - 1
        assert tuple(lines[start : start + len(hunk.old)]) == hunk.old
        lines[start : start + len(hunk.old)] = hunk.new
    assert "".join(lines) == new
