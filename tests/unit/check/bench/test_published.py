"""What others published, as this checkout has it."""

from itertools import pairwise
from typing import Any

import pytest
from pydantic import ValidationError

from imagefactory.check.bench.limits import SPARK, figure_limit
from imagefactory.check.bench.published import PublishedFigure, load_published
from imagefactory.project.matrix import load_matrix
from tests.fixtures.checkouts import REPOSITORY

PUBLISHED = load_published(REPOSITORY)
MODELS = load_matrix(REPOSITORY / "matrix.yaml").models


def speeds(model: str, *, source: str, **wanted: Any) -> list[float | None]:
    """Return the speeds of a source whose fields have these values."""
    return [
        figure.tokens_per_second
        for figure in PUBLISHED.about(model)
        if figure.source == source and wanted.items() <= vars(figure).items()
    ]


def test_figures_have_sources_and_are_about_models_of_the_matrix() -> None:
    assert {model for figure in PUBLISHED.figures for model in figure.models} <= MODELS.keys()
    used = {figure.source for figure in PUBLISHED.figures} | {score.source for score in PUBLISHED.scores}
    used |= {bandwidth.source for bandwidth in PUBLISHED.bandwidths.values()}
    assert used == PUBLISHED.sources.keys()


def test_the_tables_of_the_sources_are_whole() -> None:
    """Each row as it was published: by users, by kind of text, by context, by mode."""
    tables = {
        (447, 2650, 4962): speeds("gemma4-31b", source="z-lab-card", kind="math500", drafter="dflash"),
        (78, 520, 1382): speeds("gemma4-31b", source="z-lab-card", kind="gsm8k", drafter="none"),
        (343, 2036, 3636): speeds("gemma4-31b", source="z-lab-card", kind="mbpp", drafter="dflash"),
        (64.0, 181.5, 262.8, 327.9): speeds("qwen3.5-27b-nvfp4", source="aeon-7", kind="code"),
        (31.81, 23.92, 19.43): speeds("qwen3.5-27b-nvfp4", source="aeon-7", kind="long"),
        (33.35, 24.20, 17.22): speeds("qwen3.5-27b-nvfp4-tq", source="aeon-7", kind="long"),
        (28.14, 80.28, 117.67, 147.43): speeds(
            "qwen3.5-27b-nvfp4-tq", source="aeon-7", kind="prose", conditions="capture_only"
        ),
        (9.3, 13.7): speeds("qwen3-coder-next-nvfp4", source="nvidia-forum-dflash", cold=True),
        (222.3,): speeds("gemma4-26b-a4b", source="h100-article"),
        (25.11, 23.76): speeds("gemma4-26b-a4b", source="django", kind="book", drafter="none"),
        (12.1, 92): speeds("muse-glimmer-30b-nvfp4", source="lmsys-muse", drafter="none"),
        (8.2, 57.9): speeds("qwen3.8-27b-fp8", source="kubesimplify", drafter="none"),
    }
    assert {wanted: tuple(found) for wanted, found in tables.items()} == {wanted: wanted for wanted in tables}
    of_thread = {
        figure.kind: figure.range or figure.tokens_per_second for figure in PUBLISHED.about("qwen3.5-35b-a3b-int4")
    }
    assert (of_thread["questions"], of_thread["json"], of_thread["longcode"]) == (119.6, (120.8, 129.9), (154.2, 175.4))


def test_a_speedup_is_what_the_rows_of_its_source_make() -> None:
    """Cards round both: 408 by 78 is 5.23, printed as 5.3."""
    compared = 0
    for figure in PUBLISHED.figures:
        alike = {"source", "models", "gpu", "kind", "users"}
        plain = [
            other.tokens_per_second
            for other in PUBLISHED.figures
            if not other.drafted and all(getattr(other, name) == getattr(figure, name) for name in alike)
        ]
        if figure.speedup and figure.tokens_per_second and plain:
            assert figure.tokens_per_second / (plain[0] or 1) == pytest.approx(figure.speedup, rel=0.02), figure
            compared += 1
    assert compared == 16


def test_acceptance_is_counted_with_the_models_own_token() -> None:
    [code] = [figure for figure in PUBLISHED.about("qwen3.5-27b-nvfp4") if figure.kind == "code" and figure.users == 1]
    assert code.acceptance_length == 1 + 5.5
    for figure in PUBLISHED.figures:
        if figure.acceptance_rate and figure.k:
            assert figure.acceptance_length == pytest.approx(1 + figure.acceptance_rate * figure.k, abs=0.01)
        if figure.acceptance_length and figure.k:
            assert 1 < figure.acceptance_length <= 1 + figure.k


def test_no_figure_is_faster_than_memory() -> None:
    """A figure far above its limit has wrong sizes, another quantization, or another unit of acceptance."""
    shares = {
        (name, figure.kind, figure.drafted_by): limit.share or 0
        for name, model in MODELS.items()
        for figure in PUBLISHED.about(name)
        if (limit := figure_limit(model, PUBLISHED, figure))
    }
    assert len(shares) > 60
    # "Around" 70, of SGLang in 2025: more than 16-bit attention and head allow; nobody says what it read.
    unexplained = {("gpt-oss-20b", "prose", "none")}
    assert {row for row, share in shares.items() if share > 1.03} == unexplained


def test_a_position_of_a_draft_counts_from_one() -> None:
    """AEON-7 counts from 0: its position 8, of which less than 3 % are accepted, is the ninth."""
    [decay] = [figure.accepted_at for figure in PUBLISHED.about("qwen3.5-27b-nvfp4") if figure.accepted_at]
    assert decay == ((1, 0.78), (9, 0.03))


def test_an_acceptance_alone_is_a_figure() -> None:
    found = {
        figure.kind: (figure.acceptance_length, figure.speedup) for figure in PUBLISHED.about("gpt-oss-120b-dflash")
    }
    assert found["mt-bench"] == (3.7, None)
    assert sorted(found) == ["gsm8k", "humaneval", "math500", "mbpp", "mt-bench"]


def test_no_model_of_one_spark_is_without_a_speed_that_somebody_published() -> None:
    without = {
        name
        for name, model in MODELS.items()
        if model.memory and not any(figure.tokens_per_second for figure in PUBLISHED.about(name))
    }
    assert without == {"gpt-oss-120b-dflash"}, "its drafter's card has speed-ups only"


def test_every_model_that_somebody_measured_on_a_spark_has_a_limit_beside_it() -> None:
    for name, model in MODELS.items():
        alone = [figure for figure in PUBLISHED.about(name) if figure.gpu.endswith(SPARK) and figure.users == 1]
        if speeds := [figure for figure in alone if figure.tokens_per_second and not figure.cold]:
            limits = [figure_limit(model, PUBLISHED, figure) for figure in speeds]
            unknown = {figure.drafter for figure, limit in zip(speeds, limits, strict=True) if limit is None}
            own = {drafter.method for drafter in model.drafters}
            assert not unknown & own, f"{name}: {unknown}"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "needs a speed"),
        ({"tokens_per_second": 30, "range": [31, 40]}, "within `range`"),
        ({"tokens_per_second": 30, "drafter": "none", "acceptance_length": 2}, "nothing is drafted"),
    ],
)
def test_a_figure_that_contradicts_itself_is_refused(wrong: dict[str, Any], why: str) -> None:
    row = {"source": "a", "models": ["tiny"], "gpu": "GB10", "drafter": "dflash", "kind": "code"}
    with pytest.raises(ValidationError, match=why):
        PublishedFigure.model_validate({**row, **wrong})


def test_by_context_and_by_users_speeds_fall_and_rise() -> None:
    """Typing errors in tables show as rows out of order."""
    for figures in ("qwen3.5-27b-nvfp4", "qwen3.5-27b-nvfp4-tq"):
        by_users: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for figure in PUBLISHED.about(figures):
            if figure.tokens_per_second and figure.source == "aeon-7" and not figure.context:
                row = figure.users, figure.tokens_per_second
                by_users.setdefault((figure.kind, figure.conditions.partition(",")[0][:7]), []).append(row)
        for rows in by_users.values():
            assert all(before < after for before, after in pairwise(sorted(rows)))
