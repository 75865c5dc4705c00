"""The speed that memory allows, against what was measured."""

from typing import Any

import pytest

from imagefactory.check.bench.limits import GB, figure_limit, model_limits, read_per_step, speed_limit
from imagefactory.check.bench.published import PublishedFigure, load_published
from imagefactory.project.matrix import load_matrix
from imagefactory.project.served_model import Experts, Memory
from imagefactory.site.figures import reported_of, speeds_of
from tests.fixtures.checkouts import REPOSITORY

PUBLISHED = load_published(REPOSITORY)
MODELS = load_matrix(REPOSITORY / "matrix.yaml").models


@pytest.mark.parametrize(
    ("read", "accepted", "predicted", "measured"),
    [
        (24, 5.5, 62.8, 64.0),  # AEON-7, code: 20 GB of weights and 4 GB of drafter
        (24, 2.0, 29.0, 29.5),  # prose
        (24, 3.0, 38.7, 38.4),  # dialogue
    ],
)
def test_it_predicts_a_dense_model_within_two_percent(
    read: float, accepted: float, predicted: float, measured: float
) -> None:
    limit = speed_limit(232 * GB, read * GB, 1 + accepted)
    assert limit == pytest.approx(predicted, abs=0.05)
    assert limit == pytest.approx(measured, rel=0.02)


def test_a_dense_model_reads_all_weights_and_the_drafter_once() -> None:
    memory = Memory(weights_gb=20, drafter_gb=4, kv_bytes_per_token=1, context=1)
    assert [read_per_step(memory, drafted=drafted) / GB for drafted in (0, 1, 15)] == [20, 24, 24]


def test_a_mixture_reads_more_experts_for_a_longer_draft_and_never_more_than_all() -> None:
    experts = Experts(gb=16, chosen=8, of=256)
    memory = Memory(weights_gb=20, kv_bytes_per_token=1, context=1, active_gb=2.5, experts=experts)
    reads = [read_per_step(memory, drafted=drafted) / GB for drafted in (0, 1, 15, 10_000)]
    assert reads[0] == 2.5, "one token: the active bytes"
    # The experts that neither of two tokens chooses are (1 - 1/32)^2 of all.
    assert reads[1] == pytest.approx(2.0 + 16 * (1 - (31 / 32) ** 2))
    assert reads == sorted(reads)
    assert reads[-1] == pytest.approx(2.0 + 16), "all experts, and what every token reads"
    with_layer = memory.model_copy(update={"drafter_gb": 4.0})
    assert read_per_step(with_layer, drafted=1, own_layer=True) / GB - reads[1] == pytest.approx(4 * 2.5 / 20)


def test_a_figure_has_a_limit_under_its_own_conditions() -> None:
    [code] = [figure for figure in PUBLISHED.about("qwen3.5-27b-nvfp4") if figure.kind == "code" and figure.users == 1]
    limit = figure_limit(MODELS["qwen3.5-27b-nvfp4"], PUBLISHED, code)
    assert limit
    assert (limit.read, limit.supposed) == (24 * GB, False)
    assert limit.share == pytest.approx(64.0 / 62.8, abs=0.001)
    untold = figure_limit(MODELS["qwen3.5-27b-nvfp4"], PUBLISHED, code.model_copy(update={"acceptance_length": None}))
    assert untold
    assert (untold.tokens, untold.supposed) == (16, True)
    assert untold.fewest_tokens == pytest.approx(6.62, abs=0.01), "as many tokens per step explain the figure"
    changes: list[dict[str, Any]] = [{"users": 4}, {"gpu": "H100"}, {"cold": True}, {"drafter": "eagle3", "k": None}]
    for change in changes:
        assert figure_limit(MODELS["qwen3.5-27b-nvfp4"], PUBLISHED, code.model_copy(update=change)) is None


def test_two_sparks_read_twice_as_fast() -> None:
    alone, pair = (model_limits(MODELS[f"qwen3.8-flash-next{name}"], PUBLISHED) for name in ("", "-pair"))
    assert [limit.tokens for limit in pair] == [1, 4]
    for one, two in zip(alone, pair, strict=True):
        assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second)


def test_other_weights_than_ours_have_a_limit_of_their_own() -> None:
    """The figures of gpt-oss-120b are of a build that quantizes attention and head: ours could not reach them."""
    model = MODELS["gpt-oss-120b"]
    [plain] = [limit.tokens_per_second for limit in model_limits(model, PUBLISHED) if not limit.supposed]
    row: dict[str, Any] = {
        "source": "kubis",
        "models": (),
        "gpu": "GB10",
        "drafter": "none",
        "kind": "random",
        "tokens_per_second": 57.5,
    }
    limits = [
        figure_limit(model, PUBLISHED, PublishedFigure.model_validate(row | more)) for more in ({}, {"read_gb": 2.7})
    ]
    assert [limit.share > 1 for limit in limits if limit and limit.share] == [True, False]
    assert 40 < plain < 57.5
    [alone, *_] = speeds_of(reported_of(model, "gpt-oss-120b", PUBLISHED), drafted=False)["gb10"]
    assert alone.fastest < plain, "a page shows what its own weights reached"
