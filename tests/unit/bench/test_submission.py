"""Sharing: what may be submitted, and what holds a promotion."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from imagefactory.bench.published_figures import PublishedFigures, load_published
from imagefactory.bench.result import BenchResult
from imagefactory.bench.submission import (
    baseline_for,
    check_submitted,
    held_by,
    shared_results,
    submit,
)
from imagefactory.errors.bench import BenchResultError, NotComparableError, ThroughputFellError
from imagefactory.matrix.matrix import load_matrix
from tests.fixtures.benchmarks import BOUND, MACHINE, SPREAD, measurement
from tests.fixtures.benchmarks import result as made_up
from tests.fixtures.checkouts import REPOSITORY

KNOWN = {BOUND.digest}
CHECKED = ({"name": "no answer is empty", "outcome": "passed"},)


def result(*speeds: float, **changes: Any) -> BenchResult:
    return made_up(speeds or (64, 65, 63), **{"sanity": CHECKED, **changes})


def test_a_submitted_result_passes_the_check_of_ci(tmp_path: Path) -> None:
    path = submit(tmp_path, result(), KNOWN)
    assert (
        path == tmp_path / "benchmarks/results/tiny-0.32.0-cpu-arm64/quick-aaaaaaaaaaaa-20261116T073000.json"
    )
    assert check_submitted(tmp_path, KNOWN) == [path.relative_to(tmp_path)]
    assert shared_results(tmp_path) == [result()]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"complete": False, "why": "it was interrupted"}, "incomplete: it was interrupted"),
        ({"sanity": ()}, "not checked"),
        ({"sanity": ({"name": "x", "outcome": "failed"},)}, "did not pass"),
        ({"bound": BOUND.model_copy(update={"digest": ""})}, "names no image"),
        ({"bound": BOUND.model_copy(update={"digest": f"sha256:{'c' * 64}"})}, "no image of this repository"),
        ({"measurements": ()}, "no figures"),
        ({"measurements": (measurement(failed=1),)}, "1 requests failed"),
        ({"measurements": (measurement(tokens_per_second=640),)}, "do not agree"),
        ({"measurements": (measurement(tokens_per_second=2e6),)}, "2000000.0 tokens per second"),
        ({"measurements": (measurement(first_token=SPREAD.model_copy(update={"p50": 13})),)}, "not in order"),
        (
            {"measurements": (measurement(acceptance={"drafts": 1, "drafted": 2, "accepted": 3}),)},
            "more drafts accepted",
        ),
    ],
)
def test_implausible_results_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BenchResultError, match=reason):
        submit(tmp_path, result(**changes), KNOWN)
    assert list(tmp_path.iterdir()) == []


def test_a_result_under_another_name_is_found(tmp_path: Path) -> None:
    path = submit(tmp_path, result(), KNOWN)
    path.rename(path.with_name("best.json"))
    with pytest.raises(BenchResultError, match=r"best\.json: its name has to be"):
        check_submitted(tmp_path, KNOWN)


def test_images_of_earlier_results_may_be_gone_from_the_locks(tmp_path: Path) -> None:
    path = submit(tmp_path, result(), KNOWN).relative_to(tmp_path)
    with pytest.raises(BenchResultError, match="no image of this repository"):
        check_submitted(tmp_path, ())
    assert check_submitted(tmp_path, (), {path}) == [path]


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


def test_a_promotion_is_held_by_the_declared_share() -> None:
    old = result(100, 100)
    assert "+5.0% of 100.0" in held_by(later(105, 105), old, 0.1)
    assert "-9.0%" in held_by(later(91, 91), old, 0.1)
    with pytest.raises(ThroughputFellError, match=r"-11\.0% of 100\.0 .*; 10% less is allowed"):
        held_by(later(89, 89), old, 0.1)


def test_an_incomplete_result_promotes_nothing() -> None:
    with pytest.raises(NotComparableError):
        held_by(later(complete=False, why="it was interrupted"), result(), 0.1)


def test_published_figures_have_sources_and_are_about_models_of_the_matrix() -> None:
    published = load_published(REPOSITORY)
    models = load_matrix(REPOSITORY / "matrix.yaml").models
    assert {model for figure in published.figures for model in figure.models} <= models.keys()
    [plain, dflash] = [one for one in published.about("gemma4-31b") if one.gpu == "GB10"]
    assert (plain.tokens_per_second, dflash.tokens_per_second) == (5.53, 15.44)


def test_a_figure_without_a_source_is_refused() -> None:
    figure = {"source": "hearsay", "models": ["a"], "gpu": "b", "drafter": "c", "kind": "d", "users": 1}
    with pytest.raises(ValidationError, match="hearsay"):
        PublishedFigures.model_validate({"sources": {}, "figures": [{**figure, "tokens_per_second": 1}]})
