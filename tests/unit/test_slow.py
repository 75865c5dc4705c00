"""Parts of the slow tests cover all of them, and a test that would fill the disk is refused before it starts."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import slow

ONE_SLOW = """
import pytest

@pytest.mark.slow
def test_slow():
    pass

def test_quick():
    pass
"""
MARKED = """
import pytest

@pytest.mark.slow
@pytest.mark.each_run
def test_guards():
    pass

@pytest.mark.disk(5)
def test_large(tiny_checkout):
    pass

@pytest.fixture
def tiny_checkout():
    raise AssertionError("it began")
"""


@pytest.fixture
def tests_of_three_files(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest("pytest_plugins = ['tests.slow']")
    markers = ("slow", "each_run", "disk(gigabytes)")
    pytester.makeini("[pytest]\nmarkers =\n" + "".join(f"    {marker}: x\n" for marker in markers))
    pytester.makepyfile(test_a=ONE_SLOW, test_b=ONE_SLOW, test_c=MARKED)
    return pytester


def chosen(pytester: pytest.Pytester, part: str) -> set[str]:
    ran = pytester.runpytest_inprocess("--collect-only", "-q", "-m", "slow", "--slow-part", part)
    return {line for line in ran.outlines if "::" in line}


def test_parts_cover_all_slow_tests_and_some_run_each_time(tests_of_three_files: pytest.Pytester) -> None:
    always = "test_c.py::test_guards"
    parts = [chosen(tests_of_three_files, f"{number}/3") for number in (1, 2, 3)]
    assert parts == [{"test_a.py::test_slow", always}, {"test_b.py::test_slow", always}, {always}]


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b"])
def test_a_part_that_does_not_exist_is_refused(tests_of_three_files: pytest.Pytester, part: str) -> None:
    ran = tests_of_three_files.runpytest_inprocess("--slow-part", part)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    ran.stderr.fnmatch_lines([f"*{part}* is not like 2/8*"])


def test_what_would_fill_the_disk_is_refused_before_it_starts(
    tests_of_three_files: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slow, "_docker_root", lambda: [tmp_path])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=7 * slow.GB))
    ran = tests_of_three_files.runpytest_inprocess("-k", "large")
    ran.stdout.fnmatch_lines(["*disk: 7 GB free in *", "*This test needs 8 GB of disk, and * has 7.*"])
    ran.stdout.no_fnmatch_line("*it began*")
