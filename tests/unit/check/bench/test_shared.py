"""What may be shared, and what a new result is compared with."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from imagefactory.check.bench.profiles import load_published
from imagefactory.check.bench.result import RESULTS, BenchResult, baseline_for, check_shared, unchanged_files
from imagefactory.project.matrix import load_matrix
from tests.fixtures.benchmarks import BOUND, MACHINE, SPREAD, measurement
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
        ({"measurements": (measurement(failed=1),)}, "1 requests failed"),
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


def test_published_figures_have_sources_and_are_about_models_of_the_matrix() -> None:
    published = load_published(REPOSITORY)
    models = load_matrix(REPOSITORY / "matrix.yaml").models
    assert {model for figure in published.figures for model in figure.models} <= models.keys()
    used = {one.source for one in published.figures} | {one.source for one in published.scores}
    assert used == published.sources.keys()
    [plain, dflash] = [one for one in published.about("gemma4-31b") if one.gpu == "GB10"]
    assert (plain.tokens_per_second, dflash.tokens_per_second) == (5.53, 15.44)
