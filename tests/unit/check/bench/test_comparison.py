"""Comparisons: intervals, verdicts, and what is not compared."""

from math import exp, isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.check.bench.comparison import (
    compare,
    differences,
    paired_ratio,
    refuse_incomparable,
    welch_ratio,
)
from tests.fixtures.benchmarks import BOUND, MACHINE, measurement, result
from tests.fixtures.failures import raises

SPEEDS = st.lists(st.floats(1, 1000), min_size=2, max_size=8)


def test_welch_agrees_with_a_worked_example() -> None:
    # exp of mean difference 0.1, standard error sqrt(2 * 0.01 / 3), 4 degrees of freedom: t = 2.776.
    left, right = ([exp(x) for x in values] for values in ((-0.1, 0.0, 0.1), (0.0, 0.1, 0.2)))
    found = welch_ratio(left, right)
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((1.10517, 0.88103, 1.38634), abs=1e-4)


@given(SPEEDS, SPEEDS)
def test_swapping_the_sides_mirrors_the_interval(left: list[float], right: list[float]) -> None:
    one, other = welch_ratio(left, right), welch_ratio(right, left)
    assert one is not None
    assert other is not None
    assert (1 / one.ratio, 1 / one.low) == pytest.approx((other.ratio, other.high), rel=1e-6)


def test_pairs_see_through_drift() -> None:
    left, right = [100.0, 80.0, 60.0, 40.0], [110.5, 87.8, 66.1, 43.9]
    unpaired, paired = welch_ratio(left, right), paired_ratio(left, right)
    assert unpaired is not None
    assert paired is not None
    assert not unpaired.shows_difference
    assert paired.shows_difference
    assert paired.low < 1.1 < paired.high


def test_one_repeat_has_no_interval() -> None:
    assert welch_ratio([1], [2, 3]) is None
    assert paired_ratio([1], [2]) is None
    [whole, *_] = compare([result([64])], [result([32])])
    assert whole.interval is None
    assert "measure again" in whole.verdict


def test_a_difference_is_seen_and_its_direction_named() -> None:
    assert {one.verdict for one in compare([result()], [result()])} == {"no difference seen"}
    for speeds, verdict in (((128, 130, 126), "better"), ((32, 33, 31), "worse")):
        whole, in_code, *_ = compare([result()], [result(speeds)])
        assert whole.verdict == in_code.verdict == verdict
        assert whole.interval is not None
        assert whole.right / whole.left == pytest.approx(whole.interval.ratio)


def test_an_interval_that_could_be_much_of_either_is_too_noisy() -> None:
    for speeds, verdict in (((61, 64, 67), "no difference seen"), ((30, 64, 130), "too noisy to tell")):
        whole = compare([result()], [result(speeds)])[0]
        assert (whole.verdict, whole.interval and whole.interval.shows_difference) == (verdict, False), speeds
    # A difference that is seen counts, however large it may be.
    assert compare([result((14, 16, 18))], [result((300, 500, 800))])[0].verdict == "better"


def test_lower_latency_is_better() -> None:
    slower = {"mean": 20, "p50": 18, "p90": 24, "p99": 40}
    ones = tuple(measurement(repeat=number, first_token=slower) for number in (1, 2, 3))
    found = {one.name: one.verdict for one in compare([result()], [result(measurements=ones)])}
    assert found["first token p50"] == "worse"


def test_interleaved_results_are_compared_in_pairs() -> None:
    lefts, rights = ([result([speed]) for speed in side] for side in ((60, 50, 40), (66.1, 54.9, 44)))
    whole = compare(lefts, rights)[0]
    assert whole.interval is not None
    assert whole.interval.ratio == pytest.approx(1.1, abs=0.002)
    assert whole.right / whole.left == pytest.approx(whole.interval.ratio)
    assert whole.verdict == "better"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"profile_version": 2}, "profile"),
        ({"output": 32}, "profile"),
        ({"bound": BOUND.model_copy(update={"digest": f"sha256:{'c' * 64}"})}, "image"),
        ({"bound": BOUND.model_copy(update={"model_revision": "1"})}, "model"),
        ({"bound": BOUND.model_copy(update={"settings": {"MAX_NUM_SEQS": "8"}})}, "setting MAX_NUM_SEQS"),
        ({"machine": MACHINE.model_copy(update={"cpus": 20})}, "machine"),
        ({"machine": MACHINE.model_copy(update={"kernel": "7"})}, "kernel"),
        ({"tools": {"vllm bench serve": "0.28.0"}}, "tool"),
    ],
)
def test_only_what_was_asked_may_differ(changes: dict[str, Any], name: str) -> None:
    other = result(**changes)
    assert list(differences(result(), other)) == [name]
    said = differences(result(), other)[name]
    assert (",  and" in said, ", and" in said, said.endswith(", ")) == (False,) * 3, "an empty part, such as no GPU"
    with raises("not-comparable", match=f"--by '{name}'"):
        refuse_incomparable(result(), other, ())
    refuse_incomparable(result(), other, {name})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False, "why": "it was interrupted"}, "incomplete: it was interrupted"),
        ({"measurements": ()}, "no measurements"),
        ({"measurements": (measurement(failed=1),)}, "requests failed"),
        ({"sanity": ({"name": "x", "outcome": "failed"},)}, "did not pass"),
    ],
)
def test_unusable_results_are_not_compared(changes: dict[str, Any], reason: str) -> None:
    with raises("not-comparable", match=reason):
        refuse_incomparable(result(), result(**changes), {"profile"})


def test_absurd_values_are_compared_without_an_overflow() -> None:
    for ratio in (welch_ratio, paired_ratio):
        interval = ratio([1e-300, 1e308, 1.0], [1e308, 1.0, 1e-308])
        assert interval is not None
        assert all(map(isfinite, (interval.ratio, interval.low, interval.high)))
