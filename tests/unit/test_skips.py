"""The table of skipped tests, and --require-engine, which allows only listed skips."""

from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY
from tests.skips import read_list

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
TOOL = '[[allowed]]\ntest = "tests/test_some.py::test_with_a_tool"\nskip = "no tool"\nbecause = "it is rare"\n'
GONE = GPU.replace("on_a_*", "gone")
STALE = "tests/allowed_skips.toml: 'tests/test_some.py::test_gone' matches no test any more; remove the entry."
NO_MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n"
SLOW = "import pytest\n@pytest.mark.slow\ndef test_long(): pass\n"
LEFT_OUT = "1 slow tests were left out; `./inv test --all` runs them."


class Suite:
    """A small project with tests."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pytester = pytester
        self.tests = pytester.mkdir("tests")
        monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        pytester.makeini("[pytest]\ntestpaths = tests\naddopts = -ra --import-mode=importlib\nmarkers = slow")
        self.write(TESTS)
        self.allow("")

    def write(self, tests: str, name: str = "test_some.py") -> None:
        (self.tests / name).write_text(tests)

    def allow(self, entries: str) -> None:
        (self.tests / "allowed_skips.toml").write_text(entries)

    def run(self, *options: str) -> tuple[int, list[str]]:
        """Run the tests; return the exit code and the table of skips."""
        tester = self.pytester
        start = tester.runpytest_subprocess if "xdist" in options else tester.runpytest_inprocess
        done = start("-p", "tests.skips", *options)
        lines = done.outlines
        starts = [number for number, line in enumerate(lines) if line.strip("= ") == "skipped tests"]
        assert len(starts) == 1, lines
        assert "SKIPPED" not in "".join(lines), "pytest lists the skips, too"
        return done.ret, [line.strip() for line in lines[starts[0] + 1 : -1]]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    return Suite(pytester, monkeypatch)


def test_a_run_without_skips_has_one_line_and_no_table(suite: Suite) -> None:
    suite.write("def test_runs(): pass\n")
    done = suite.pytester.runpytest_inprocess("-p", "tests.skips", "--require-engine")
    assert done.ret == pytest.ExitCode.OK
    assert done.outlines[-2] == "0 skipped: every test that was selected ran."
    assert "skipped tests" not in done.stdout.str()


@pytest.mark.parametrize("way", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_unlisted_skips_are_named_and_slow_tests_counted(suite: Suite, way: tuple[str, ...]) -> None:
    suite.allow(GPU + GONE)
    suite.write(NO_MODULE, "test_more.py")
    suite.write(SLOW, "test_slow.py")
    code, table = suite.run(*way, "--require-engine", "-m", "not slow")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert [line for line in table if "NOT ALLOWED" in line] == [
        "NOT ALLOWED: tests/test_more.py",
        "NOT ALLOWED: tests/test_some.py::test_with_a_tool[other@1.0]",
        "NOT ALLOWED: tests/test_some.py::test_with_a_tool[tiny@1.0]",
    ]
    assert "tests/test_some.py (1)" in table, "allowed skips are listed as always"
    assert table[-3:] == [LEFT_OUT, table[-2], STALE]


def test_listed_skips_are_allowed_for_the_listed_reason(suite: Suite) -> None:
    suite.allow(GPU + TOOL)
    code, table = suite.run("--require-engine")
    assert code == pytest.ExitCode.OK
    assert len(table) == 4
    suite.allow(GPU + TOOL.replace("no tool", "no licence"))
    assert suite.run("--require-engine")[0] == pytest.ExitCode.TESTS_FAILED
    suite.allow(GPU + TOOL)
    suite.write(NO_MODULE, "test_more.py")
    assert suite.run("--require-engine")[0] == pytest.ExitCode.TESTS_FAILED


def test_an_entry_without_a_test_fails_a_full_run_alone(suite: Suite) -> None:
    suite.allow(GPU + TOOL + GONE)
    for part in ((), ("-m", "not slow")):
        code, table = suite.run(*part)
        assert (code, table[-1]) == (pytest.ExitCode.TESTS_FAILED, STALE), part
    for some in (["tests/test_some.py"], ["-k", "gpu"], ["-m", "slow or not slow"]):
        assert suite.run(*some, "--require-engine")[0] == pytest.ExitCode.OK, some


def test_a_slow_test_that_is_left_out_keeps_its_entry(suite: Suite) -> None:
    suite.allow(GPU + TOOL + GPU.replace("test_some.py::test_on_a_*", "test_slow.py::test_long"))
    suite.write(SLOW, "test_slow.py")
    code, table = suite.run("-m", "not slow", "--require-engine")
    assert (code, table[-1]) == (pytest.ExitCode.OK, LEFT_OUT)


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    for entry in (GPU.replace("because", "why"), GPU.replace("none has one", "")):
        (tmp_path / "list.toml").write_text(entry)
        with pytest.raises(pytest.UsageError, match="because, skip, test"):
            read_list(tmp_path / "list.toml")
