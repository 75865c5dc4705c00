"""A benchmark holds a promotion: an image that became slower fails its gpu level."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from imagefactory.check.bench.result import RESULTS, BenchResult
from imagefactory.check.smoke.record import TestResult
from imagefactory.errors import CheckError
from imagefactory.project.project import Project
from imagefactory.publish.testing import judged, with_throughput
from tests.fixtures.benchmarks import result
from tests.unit.check.smoke.test_record import record

CHECKED = ({"name": "no answer is empty", "outcome": "passed"},)


def measuring(speed: float) -> Callable[[], BenchResult]:
    new = result([speed, speed], sanity=CHECKED)
    return lambda: new.model_copy(update={"started": new.started + timedelta(days=1)})


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout with a shared result of 100 tokens per second."""
    result([100, 100], sanity=CHECKED).write(tmp_path / RESULTS / "a.json")
    return Project(tmp_path)


def test_an_image_as_fast_as_before_and_a_first_measurement_pass(project: Project, tmp_path: Path) -> None:
    test = judged(project, measuring(95), 0.1)
    assert (test.outcome, test.measured) == ("passed", {"tokens_per_second": 95.0})
    assert "-5.0% of 100.0" in test.message
    assert judged(Project(tmp_path / "new"), measuring(1), 0.1).outcome == "passed"


def test_an_image_that_became_slower_fails_its_gpu_level(project: Project) -> None:
    test = judged(project, measuring(80), 0.1)
    assert test.outcome == "failed"
    found = with_throughput(record({}), test)
    assert found.levels["gpu"].outcome == "failed"
    [why] = [line for line in found.missing(()) if line.startswith("gpu")]
    assert "-20.0% of 100.0" in why
    assert "10% less is allowed" in why


def test_a_benchmark_that_ends_early_or_with_wrong_answers_passes_nothing(project: Project) -> None:
    def dies() -> BenchResult:
        raise CheckError("bench-incomplete", "It ended early.", where="x", why="The server hangs.", fix="y")

    test = judged(project, dies, 0.1)
    assert (test.outcome, test.message) == ("failed", "It ended early. The server hangs.")
    failed = {"name": "no answer is empty", "outcome": "failed", "detail": "1 of 3"}
    assert judged(project, lambda: result([100, 100], sanity=(failed,)), 0.1).outcome == "failed"


def test_measuring_again_replaces_the_test(project: Project) -> None:
    slow, fast = judged(project, measuring(80), 0.1), judged(project, measuring(100), 0.1)
    other = TestResult(name="an answer", outcome="passed")
    found = with_throughput(with_throughput(with_throughput(record({}), other), slow), fast)
    assert [test.outcome for test in found.levels["gpu"].tests if test.name == "throughput"] == ["passed"]
    assert found.levels["gpu"].outcome == "passed"
