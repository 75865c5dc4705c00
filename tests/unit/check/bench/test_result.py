"""Benchmark results: what they say, and what cannot be read."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from imagefactory.check.bench.result import BenchResult, pooled_acceptance
from tests.fixtures.benchmarks import at_speed, drafting, measurement, result
from tests.fixtures.failures import raises


def test_a_result_survives_its_file_and_a_missing_or_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with raises("bad-bench-result", match="No such file"):
        BenchResult.read(path)
    result().write(path)
    assert BenchResult.read(path) == result()
    for text in ("", "{}", '{"format": 2}'):
        path.write_text(text)
        with raises("bad-bench-result", match=r"a\.json"):
            BenchResult.read(path)


def test_an_incomplete_result_says_why_and_impossible_figures_are_refused() -> None:
    with pytest.raises(ValidationError, match="says why"):
        result(complete=False)
    for speed in (-1, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            measurement(tokens_per_second=speed)


def test_throughput_of_a_repeat_is_all_its_tokens_by_all_its_time() -> None:
    slow, fast = at_speed(32, kind="prose"), at_speed(128, kind="code")
    assert result(measurements=(slow, fast)).throughput() == [pytest.approx(256 / 5)]


def test_acceptance_adds_up() -> None:
    found = pooled_acceptance([measurement(acceptance=drafting(10)), measurement(acceptance=drafting(30))])
    assert found is not None
    assert (found.rate, found.length) == (0.5, 3.0)
    assert pooled_acceptance([measurement()]) is None
