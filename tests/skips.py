"""A pytest plugin: with `--require-engine`, a test may be skipped only if tests/allowed_skips.toml says why."""

import tomllib
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import pytest

LIST = Path("tests") / "allowed_skips.toml"
T = TypeVar("T", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-engine",
        action="store_true",
        help=f"fail if Docker, a registry or the package index is missing, or if a skip is not listed in {LIST}",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged(collector.config, (yield))  # a module that is skipped as a whole


def _judged(config: pytest.Config, report: T) -> T:
    if report.skipped and config.getoption("--require-engine") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        test = report.nodeid.partition("[")[0]
        entries = tomllib.loads((config.rootpath / LIST).read_text("utf-8")).get("allowed", [])
        if not any(entry["skip"] in reason and fnmatchcase(test, entry["test"]) for entry in entries):
            report.outcome = "failed"
            report.longrepr = f"{reason}\n--require-engine allows only the skips in {LIST}: fix the machine or test."
    return report
