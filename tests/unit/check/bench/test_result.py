"""Benchmark results: what they say, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from imagefactory.check.bench.result import BenchResult, pooled_acceptance
from tests.fixtures.benchmarks import at_speed, drafting, measurement, result
from tests.fixtures.failures import raises


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    result().write(tmp_path / "a.json")
    assert BenchResult.read(tmp_path / "a.json") == result()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with raises("bad-bench-result", match=r"a\.json"):
        BenchResult.read(tmp_path / "a.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises("bad-bench-result", match="No such file"):
        BenchResult.read(tmp_path / "none.json")


def test_an_incomplete_result_says_why() -> None:
    with pytest.raises(ValidationError, match="says why"):
        result(complete=False)


@pytest.mark.parametrize("speed", [-1, float("inf"), float("nan")])
def test_impossible_figures_are_refused(speed: float) -> None:
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
