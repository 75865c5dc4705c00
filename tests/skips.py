"""A pytest plugin that lists skipped tests; with `--require-engine` only listed tests may be skipped.

The list is tests/allowed_skips.toml. Tests that `-m "not slow"` leaves out are no skips, but they are counted. With
pytest-xdist, workers run the tests and the controller reads their reports.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LIST = Path("tests") / "allowed_skips.toml"
Report = pytest.TestReport | pytest.CollectReport


class Skip(NamedTuple):
    """A skipped test, and the reason it gave."""

    reason: str
    test: str

    @classmethod
    def of(cls, report: Report) -> Skip:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
        return cls(" ".join(text.removeprefix("Skipped: ").split()), _plain(report.nodeid))


@dataclass(frozen=True)
class Allowed:
    """A test that machines may skip, for one reason."""

    test: str
    """A pattern for its id, without parameters."""
    skip: str
    """A part of the reason that the test gives."""
    because: str
    """Why nothing can be done about it."""

    def matches(self, test: str) -> bool:
        return fnmatchcase(test.partition("[")[0], self.test)


@dataclass(eq=False)  # pytest wants plugins hashable
class Skips:
    """Collects the skips of a run, and decides whether they fail it."""

    config: pytest.Config
    allowed: Sequence[Allowed]
    found: set[Skip] = field(default_factory=set)
    collected: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    """The slow tests that this run leaves out."""

    @property
    def refused(self) -> set[Skip]:
        """The skips that fail the run."""
        if not self.config.getoption("--require-engine"):
            return set()
        return {skip for skip in self.found if not self.allows(skip)}

    @property
    def stale(self) -> list[Allowed]:
        """The entries that match no test; known only if all tests were collected."""
        if not self.collected or not _is_full(self.config):
            return []
        return [entry for entry in self.allowed if not any(map(entry.matches, self.collected | self.slow))]

    def allows(self, skip: Skip) -> bool:
        return any(entry.skip in skip.reason and entry.matches(skip.test) for entry in self.allowed)

    def lines(self) -> Iterator[str]:
        """Write the table: for each reason the number of tests, and their files."""
        if not self.found:
            yield "0 skipped: every test that was selected ran."
        for reason in sorted({skip.reason for skip in self.found}):
            skips = {skip for skip in self.found if skip.reason == reason}
            yield f"{len(skips):>5}  {reason}"
            yield from (f"       NOT ALLOWED: {skip.test}" for skip in sorted(skips & self.refused))
            files = Counter(skip.test.partition("::")[0] for skip in skips - self.refused)
            yield from (f"       {path} ({number})" for path, number in sorted(files.items()))
        if self.slow:
            yield f"{len(self.slow)} slow tests were left out; `./inv test --all` runs them."
        if self.refused:
            yield f"--require-engine allows only the skips in {LIST}: fix the machine or the tests."
        for entry in self.stale:
            yield f"{LIST}: {entry.test!r} matches no test any more; remove the entry."

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._add(report)

    def _add(self, report: Report) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.found.add(Skip.of(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(_plain(item.nodeid) for item in session.items)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.slow.update(_slow(items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(map(_plain, ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self.found.update(Skip(*skip) for skip in output.get("skipped modules", ()))
        self.slow.update(output.get("slow", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        fine = {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
        if (self.refused or self.stale) and session.exitstatus in fine:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below everything but the line with the totals
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, Any, Any]:
        # pytest's own list of skips would repeat ours.
        terminalreporter.reportchars = terminalreporter.reportchars.replace("s", "")
        result = yield
        if self.found or self.stale:
            bad = bool(self.refused or self.stale)
            terminalreporter.write_sep("=", "skipped tests", red=bad, bold=True)
        for line in self.lines():
            terminalreporter.write_line(line)
        return result


class Worker:
    """Reports skipped modules and slow tests to the controller of pytest-xdist, which does not ask for them."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.skipped: list[list[str]] = []
        self.slow: list[str] = []
        output.update({"skipped modules": self.skipped, "slow": self.slow})

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.slow += _slow(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append(list(Skip.of(report)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        help=f"fail if Docker, a registry or the package index is missing, or if a skip is not listed in {LIST}",
    )


def pytest_configure(config: pytest.Config) -> None:
    output = getattr(config, "workeroutput", None)
    plugin = Skips(config, read_list(config.rootpath / LIST)) if output is None else Worker(output)
    config.pluginmanager.register(plugin, "skips")


def read_list(path: Path) -> list[Allowed]:
    """Read the list of allowed skips; raise UsageError if an entry is wrong."""
    entries = tomllib.loads(path.read_text("utf-8")).get("allowed", [])
    for entry in entries:
        if set(entry) != {"test", "skip", "because"} or not all(entry.values()):
            raise pytest.UsageError(f"{path}: an entry needs texts for because, skip, test: {entry}")
    return [Allowed(**entry) for entry in entries]


def _is_full(config: pytest.Config) -> bool:
    """Whether the command line selects all tests, or all that are not slow."""
    chosen = ("keyword", "deselect", "ignore", "ignore_glob", "lf")
    full = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return (
        full
        and config.getoption("markexpr", "") in {"", "not slow"}
        and not any(config.getoption(name, None) for name in chosen)
    )


def _slow(items: Sequence[pytest.Item]) -> list[str]:
    return [_plain(item.nodeid) for item in items if item.get_closest_marker("slow")]


def _plain(test: str) -> str:
    """Return an id without the group that pytest-xdist adds to it."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test
