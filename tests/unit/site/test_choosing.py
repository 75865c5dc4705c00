"""The order of models by use."""

from __future__ import annotations

import pytest

from imagefactory.site.choosing import CODING_AGENT, HARD, Candidate, ordered_by, ranked

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
