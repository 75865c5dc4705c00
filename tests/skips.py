"""A pytest plugin: what was skipped stands in a table at the end, and `--require-engine` tolerates listed skips only.

The list is tests/allowed_skips.toml. It works with pytest-xdist, too: workers run tests, this looks at their reports.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

LIST = Path("tests") / "allowed_skips.toml"
FIELDS = {"test", "skip", "because"}


@dataclass(frozen=True)
class Allowed:
    """A test that machines may skip, for one reason."""

    test: str
    """A pattern for its id, without parameters."""
    skip: str
    """A part of the reason that the test gives."""
    because: str
    """Why there is nothing to be done about it."""

    def matches(self, test: str) -> bool:
        """Check whether an id fits, whatever its parameters."""
        return fnmatchcase(test.partition("[")[0], self.test)


@dataclass(frozen=True, order=True)
class Skip:
    """A test that was skipped, and the reason it gave."""

    reason: str
    test: str


@dataclass(eq=False)  # pytest wants plugins hashable
class Skips:
    """Collects what a run skipped, and judges it."""

    config: pytest.Config
    allowed: Sequence[Allowed]
    found: set[Skip] = field(default_factory=set)
    collected: set[str] = field(default_factory=set)

    @property
    def strict(self) -> bool:
        """Whether a skip that is not listed fails the run."""
        return bool(self.config.getoption("--require-engine"))

    @property
    def refused(self) -> set[Skip]:
        """Skips that fail the run."""
        if not self.strict:
            return set()
        return {skip for skip in self.found if not self.allows(skip)}

    @property
    def stale(self) -> list[Allowed]:
        """Entries of the list that no test fits any more; known only when all tests were collected."""
        if not self.collected or not _is_full(self.config):
            return []
        return [entry for entry in self.allowed if not any(map(entry.matches, self.collected))]

    def allows(self, skip: Skip) -> bool:
        """Check whether the list has an entry for a skip."""
        return any(entry.skip in skip.reason and entry.matches(skip.test) for entry in self.allowed)

    def add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Note a report of a skip."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.found.add(Skip(_reason(report), _plain(report.nodeid)))

    def lines(self) -> Iterator[str]:
        """Write the table: reasons with their number of tests, and where those are."""
        if not self.found:
            yield "0 skipped: every test that was collected ran."
        for reason in sorted({skip.reason for skip in self.found}):
            tests = sorted(skip.test for skip in self.found if skip.reason == reason)
            yield f"{len(tests):>5}  {reason}"
            refused = {skip.test for skip in self.refused if skip.reason == reason}
            yield from (f"       NOT ALLOWED: {test}" for test in sorted(refused))
            yield from (f"       {place}" for place in _places(set(tests) - refused))
        if self.refused:
            yield f"--require-engine allows only the skips of {LIST}: mend the machine or the tests."
        for entry in self.stale:
            yield f"{LIST}: no test fits {entry.test!r} any more; remove the entry."

    # --- hooks -------------------------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.add(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected.update(_plain(item.nodeid) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(map(_plain, ids))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        skips = getattr(node, "workeroutput", {}).get("skipped modules", ())
        self.found.update(Skip(reason, test) for reason, test in skips)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (self.refused or self.stale) and session.exitstatus in {
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        }:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below everything else but the line with the totals
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, Any, Any]:
        # pytest's own list of skips would say it all twice.
        terminalreporter.reportchars = terminalreporter.reportchars.replace("s", "")
        result = yield
        if self.found or self.stale:
            bad = bool(self.refused or self.stale)
            terminalreporter.write_sep("=", "skipped tests", red=bad, bold=True)
        for line in self.lines():
            terminalreporter.write_line(line)
        return result


class Worker:
    """Tells the controller of pytest-xdist which modules were skipped as a whole: it does not ask for that."""

    def __init__(self, output: dict[str, Any]) -> None:
        self.skipped: list[tuple[str, str]] = []
        output["skipped modules"] = self.skipped

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skipped.append((_reason(report), _plain(report.nodeid)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        help=f"fail when Docker, a registry or the package index is missing, and at any skip that {LIST} does not list",
    )


def pytest_configure(config: pytest.Config) -> None:
    output = getattr(config, "workeroutput", None)
    plugin = Skips(config, read_list(config.rootpath / LIST)) if output is None else Worker(output)
    config.pluginmanager.register(plugin, "skips")


def read_list(path: Path) -> list[Allowed]:
    """Read the list; a mistake in it ends the run."""
    entries = tomllib.loads(path.read_text("utf-8")).get("allowed", [])
    for entry in entries:
        if set(entry) != FIELDS or not all(entry.values()):
            raise pytest.UsageError(
                f"{path}: an entry has {', '.join(sorted(FIELDS))}, each with a text: {entry}"
            )
    return [Allowed(**entry) for entry in entries]


def _is_full(config: pytest.Config) -> bool:
    """Check whether nothing was named or left out on the command line."""
    chosen = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf")
    full = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return full and not any(config.getoption(name, None) for name in chosen)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason that a skip was given."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())


def _plain(test: str) -> str:
    """Return an id without the group that pytest-xdist adds to it."""
    return test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test


def _places(tests: Iterable[str]) -> list[str]:
    """Sum tests up by file."""
    counts = Counter(test.partition("::")[0] for test in tests)
    return [f"{path} ({number})" for path, number in sorted(counts.items())]
