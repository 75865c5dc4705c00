"""The table of skipped tests, and --require-engine, which allows only listed skips."""

from __future__ import annotations

import pytest

from tests.fixtures.checkouts import REPOSITORY

TESTS = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no GPU here")
def test_on_a_gpu():
    pass

@pytest.mark.parametrize("target", ["tiny@1.0", "other@1.0"])
def test_with_a_tool(target):
    pytest.skip("no tool on PATH")
"""
GPU = '[[allowed]]\ntest = "tests/test_some.py::test_on_a_*"\nskip = "no GPU"\nbecause = "none has one"\n'
TOOL = (
    '[[allowed]]\ntest = "tests/test_some.py::test_with_a_tool"\nskip = "no tool"\nbecause = "it is rare"\n'
)
both_ways = pytest.mark.parametrize("way", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])


class Suite:
    """A small project whose tests run in a process of their own."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.tests = pytester.mkdir("tests")
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makeini("[pytest]\ntestpaths = tests\naddopts = -ra --import-mode=importlib")
        self.write(TESTS)
        self.allow("")

    def write(self, tests: str, name: str = "test_some.py") -> None:
        (self.tests / name).write_text(tests)

    def allow(self, entries: str) -> None:
        (self.tests / "allowed_skips.toml").write_text(entries)

    def run(self, *options: str) -> tuple[int, list[str]]:
        """Run the tests; return the exit code and the table of skips."""
        done = self.pytester.runpytest_subprocess("-p", "tests.skips", *options)
        lines = done.outlines
        starts = [number for number, line in enumerate(lines) if line.strip("= ") == "skipped tests"]
        assert len(starts) == 1, lines
        assert "SKIPPED" not in "".join(lines), "pytest lists the skips, too"
        return done.ret, [line.strip() for line in lines[starts[0] + 1 : -1]]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(pytester, monkeypatch)


def test_skips_are_counted_by_reason_and_file(suite: Suite) -> None:
    assert suite.run() == (
        pytest.ExitCode.OK,
        ["1  no GPU here", "tests/test_some.py (1)", "2  no tool on PATH", "tests/test_some.py (2)"],
    )


def test_a_run_without_skips_has_one_line_and_no_table(suite: Suite) -> None:
    suite.write("def test_runs(): pass\n")
    done = suite.pytester.runpytest_subprocess("-p", "tests.skips", "--require-engine")
    assert done.ret == pytest.ExitCode.OK
    assert done.outlines[-2] == "0 skipped: every test that was collected ran."
    assert "skipped tests" not in done.stdout.str()


@both_ways
def test_an_unlisted_skip_fails_the_run_and_is_named(suite: Suite, way: tuple[str, ...]) -> None:
    suite.allow(GPU)
    code, table = suite.run(*way, "--require-engine")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert [line for line in table if "NOT ALLOWED" in line] == [
        "NOT ALLOWED: tests/test_some.py::test_with_a_tool[other@1.0]",
        "NOT ALLOWED: tests/test_some.py::test_with_a_tool[tiny@1.0]",
    ]
    assert "tests/test_some.py (1)" in table, "allowed skips are listed as always"


def test_listed_skips_are_allowed_for_the_listed_reason(suite: Suite) -> None:
    suite.allow(GPU + TOOL)
    code, table = suite.run("--require-engine")
    assert code == pytest.ExitCode.OK
    assert len(table) == 4
    suite.allow(GPU + TOOL.replace("no tool", "no licence"))
    assert suite.run("--require-engine")[0] == pytest.ExitCode.TESTS_FAILED


@both_ways
def test_an_entry_without_a_test_fails_a_full_run(suite: Suite, way: tuple[str, ...]) -> None:
    suite.allow(GPU + TOOL + GPU.replace("on_a_*", "gone"))
    code, table = suite.run(*way)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert table[-1] == (
        "tests/allowed_skips.toml: 'tests/test_some.py::test_gone' matches no test any more; remove the entry."
    )


@pytest.mark.parametrize("part", [("tests/test_some.py",), ("-k", "gpu"), ("-m", "not slow")], ids=str)
def test_a_partial_run_ignores_entries_without_a_test(suite: Suite, part: tuple[str, ...]) -> None:
    suite.allow(GPU + TOOL + GPU.replace("on_a_*", "gone"))
    assert suite.run(*part, "--require-engine")[0] == pytest.ExitCode.OK


@both_ways
def test_an_unlisted_skip_of_a_module_fails_the_run(suite: Suite, way: tuple[str, ...]) -> None:
    suite.allow(GPU + TOOL)
    suite.write("import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n", "test_more.py")
    code, table = suite.run(*way, "--require-engine")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "NOT ALLOWED: tests/test_more.py" in table


def test_failures_keep_their_own_exit_code(suite: Suite) -> None:
    suite.write(TESTS + "\ndef test_fails():\n    raise KeyboardInterrupt\n")
    assert suite.run("--require-engine")[0] == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("entry", [GPU.replace("because", "why"), GPU.replace("none has one", "")])
def test_an_entry_without_a_reason_is_refused(suite: Suite, entry: str) -> None:
    suite.allow(entry)
    done = suite.pytester.runpytest_subprocess("-p", "tests.skips")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "because, skip, test" in "".join(done.errlines)
