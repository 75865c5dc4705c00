"""The order of models by use."""

from __future__ import annotations

import pytest

from imagefactory.check.bench.published import PublishedFigure, Source
from imagefactory.site.choosing import CODING_AGENT, HARD, Candidate, ordered_by, ranked
from imagefactory.site.figures import Reported, speeds_of

MODELS = (
    Candidate("slow-chat", ["chat"], tools=True, speed=16, hard=60),
    Candidate("agent", ["agents", "chat", "coding"], tools=True, speed=58),
    Candidate("coder", ["coding"], tools=True, speed=36, hard=70),
    Candidate("fast-coder", ["coding"], tools=False, speed=99),
)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("coding", ["coder", "fast-coder", "agent"]),  # mainly for it, then tools, then speed
        ("chat", ["agent", "slow-chat"]),  # what it is mainly for does not count
        (HARD, ["coder", "slow-chat"]),
        (CODING_AGENT, ["agent"]),  # for both, with tools
        ("vision", []),
    ],
)
def test_models_are_ordered_by_use(use: str, expected: list[str]) -> None:
    assert ranked(use, MODELS) == expected
    assert ranked(use, reversed(MODELS)) == expected


def test_readers_are_told_the_order() -> None:
    assert ordered_by(CODING_AGENT) == "fastest first"
    assert ordered_by(HARD) == "best in GPQA first"
    assert ordered_by("coding") == "made for it first, then fastest"


def test_a_speed_with_another_drafter_is_shown_and_orders_nothing() -> None:
    row = {"source": "a", "models": ["m"], "gpu": "GB10", "drafter": "none", "kind": "prose", "tokens_per_second": 70}
    reported = [Reported(PublishedFigure.model_validate(row), Source(title="a"), None)]
    [plain], [drafting] = (speeds_of(reported, drafted=drafted)["gb10"] for drafted in (False, True))
    assert (plain.rounded, plain.counts) == ("70", 70)
    assert (drafting.rounded, drafting.otherwise, drafting.counts) == ("70", "without a drafter", 0)
