"""--require-engine turns skips into failures, except those that are listed with a reason."""

import re
import tomllib

import pytest

from tests.fixtures.checkouts import REPOSITORY
from tests.skips import LIST

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

@pytest.mark.xfail
def test_that_fails():
    assert False
"""
ENTRY = '[[allowed]]\ntest = "test_some.py::{}"\nskip = "{}"\n'
GPU, TOOL = ENTRY.format("test_on_a_*", "no GPU"), ENTRY.format("test_with_a_tool", "no tool")
NO_MODULE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n"


@pytest.mark.parametrize("way", [(), ("-p", "xdist", "-n", "2")], ids=["alone", "xdist"])
def test_only_listed_skips_are_allowed_and_for_the_listed_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_some=TESTS)
    allowed = pytester.mkdir("tests") / LIST.name

    def run(*options: str, entries: str = "") -> dict[str, int]:
        allowed.write_text(entries)
        start = pytester.runpytest_subprocess if way else pytester.runpytest_inprocess
        return dict(start("-p", "tests.skips", *way, *options).parseoutcomes())

    skipped = {"passed": 1, "xfailed": 1, "skipped": 3}
    assert run() == skipped
    assert run("--require-engine", entries=GPU + TOOL) == skipped
    assert run("--require-engine", entries=GPU) == {"passed": 1, "xfailed": 1, "skipped": 1, "failed": 2}
    assert run("--require-engine", entries=GPU.replace("GPU", "licence") + TOOL)["errors"] == 1, "before the test"
    pytester.makepyfile(test_more=NO_MODULE)
    assert run("--require-engine", entries=GPU + TOOL)["errors"] == 1


def test_every_listed_test_exists_and_says_why() -> None:
    entries = tomllib.loads((REPOSITORY / LIST).read_text("utf-8"))["allowed"]
    for entry in entries:
        assert all(entry[part] for part in ("test", "skip", "because"))
        file, _, name = entry["test"].partition("::")
        assert re.search(rf"^def {name.replace('*', '.*')}\(", (REPOSITORY / file).read_text("utf-8"), re.MULTILINE)
