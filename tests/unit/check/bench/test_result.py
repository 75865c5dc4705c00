"""Benchmark results: what they say, what cannot be read, what may be shared, and what a new one is compared with."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from imagefactory.check.bench.result import (
    RESULTS,
    BenchResult,
    baseline_for,
    check_shared,
    pooled_acceptance,
    unchanged_files,
)
from tests.fixtures.benchmarks import BOUND, MACHINE, SPREAD, at_speed, drafting, measurement
from tests.fixtures.benchmarks import result as made_up
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

KNOWN = {BOUND.digest}
CHECKED = ({"name": "no answer is empty", "outcome": "passed"},)
DRAFTS = {"drafts": 1, "drafted": 2, "accepted": 3}


def result(*speeds: float, **changes: Any) -> BenchResult:
    return made_up(speeds or (64, 65, 63), **{"sanity": CHECKED, **changes})


def share(root: Path, result: BenchResult, name: str = "a.json") -> Path:
    result.write(root / RESULTS / name)
    return RESULTS / name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False, "why": "it was interrupted"}, "incomplete: it was interrupted"),
        ({"sanity": ()}, "not checked"),
        ({"sanity": ({"name": "x", "outcome": "failed"},)}, "did not pass"),
        ({"bound": BOUND.model_copy(update={"digest": ""})}, "names no image"),
        ({"bound": BOUND.model_copy(update={"digest": f"sha256:{'c' * 64}"})}, "no image of this repository"),
        ({"measurements": ()}, "no figures"),
        ({"measurements": (measurement(failed=1),)}, "failed: 1 request"),
        ({"measurements": (measurement(tokens_per_second=640),)}, "do not agree"),
        ({"measurements": (measurement(tokens_per_second=2e6),)}, "2000000.0 tokens per second"),
        ({"measurements": (measurement(first_token=SPREAD.model_copy(update={"p50": 13})),)}, "not in order"),
        ({"measurements": (measurement(acceptance=DRAFTS),)}, "more drafts accepted"),
    ],
)
def test_implausible_results_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    share(tmp_path, result())
    assert check_shared(tmp_path, KNOWN) == 1
    share(tmp_path, result(**changes))
    with raises("bad-bench-result", match=rf"a\.json: .*{reason}"):
        check_shared(tmp_path, KNOWN)


def test_the_example_is_a_whole_result_that_is_not_shared(tmp_path: Path) -> None:
    example = BenchResult.read(REPOSITORY / "docs" / "examples" / "bench-quick.json")
    assert example.machine.load is not None
    share(tmp_path, example)
    assert check_shared(tmp_path, {example.bound.digest}) == 1
    assert "examples" not in RESULTS.parts


def test_images_of_unchanged_results_may_be_gone_from_the_locks(tmp_path: Path) -> None:
    root, earlier = tmp_path / "now", tmp_path / "earlier"
    path, new = share(root, result()), share(root, result(70), "new.json")
    share(earlier, result())
    share(earlier, result(60), "new.json")
    share(earlier, result(), "gone.json")
    unchanged = unchanged_files(root, earlier)
    assert unchanged == {path}
    with raises("bad-bench-result", match=rf"{new}: no image of this repository") as caught:
        check_shared(root, (), unchanged)
    assert str(path) not in caught.value.why


def later(*speeds: float, **changes: Any) -> BenchResult:
    new = result(*speeds, **changes)
    return new.model_copy(update={"started": new.started + timedelta(days=1)})


def test_the_newest_result_of_the_same_kind_is_the_baseline() -> None:
    other_machine = result(machine=MACHINE.model_copy(update={"cpus": 20}))
    other_settings = result(bound=BOUND.model_copy(update={"settings": {"A": "1"}}))
    old, new = result(70, 70), later(64, 64)
    newest = later(1, 1).model_copy(update={"started": new.started + timedelta(days=1)})
    assert baseline_for(new, [other_machine, old, other_settings, newest]) == old
    assert baseline_for(new, [other_machine, other_settings]) is None


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
