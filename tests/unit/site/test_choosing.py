"""Which model for which question: the order by use, and the start that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.cells import Cell
from imagefactory.site.choosing import HARD, Candidate, Fit, best_first, best_start, program_image, ranked
from imagefactory.site.picker import MEMORY
from tests.fixtures.picker import PROJECT

MODELS = (
    Candidate("slow-chat", ["chat"], tools=True, speed=16, hard=60),
    Candidate("agent", ["agents", "chat", "coding"], tools=True, speed=58),
    Candidate("coder", ["coding"], tools=True, speed=36, hard=70),
    Candidate("fast-coder", ["coding"], tools=False, speed=99),
)
Starts = Callable[..., Fit]


@pytest.fixture(scope="module")
def start() -> Starts:
    """How an image of this checkout starts on a DGX Spark with so many gigabytes left."""

    def found(model: str, version: str = "0.32.0", *, free: float = 122.4, context: int = 0, users: int = 1) -> Fit:
        image = program_image(describe_cell(PROJECT, Cell(model, version, "gb10", "linux/arm64")))
        spark: dict[str, Any] = {**MEMORY["gb10"], "title": "GB10", "capability": "12.1", "free": int(free * 1e9)}
        return best_start(image, spark, context, users)

    return found


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("coding", ["coder", "fast-coder", "agent"]),  # mainly for it, then tools, then speed
        ("chat", ["agent", "slow-chat"]),  # what it is mainly for does not count
        (HARD, ["coder", "slow-chat"]),
        ("vision", []),
    ],
)
def test_models_are_ordered_by_use(use: str, expected: list[str]) -> None:
    assert ranked(use, MODELS) == expected
    assert ranked(use, reversed(MODELS)) == expected


def test_an_image_keeps_its_defaults_where_they_fit(start: Starts) -> None:
    found = start("qwen3.6-35b-a3b-nvfp4")
    assert found.given == {}
    assert found.room > 1


def test_a_question_changes_what_it_has_to(start: Starts) -> None:
    # 0.85 of 128.5 GB is more than the 100 GB that are left: 96 GB, as 4 GB have to remain.
    found = start("laguna-s-2.1-nvfp4", free=100, context=65_536)
    assert found.given == {"MAX_MODEL_LEN": "65536", "GPU_MEMORY_UTILIZATION": "0.74"}
    assert found.place(1) == 0
    many = start("qwen3.6-35b-a3b-nvfp4", context=262_144, users=32)
    assert {"MAX_NUM_SEQS", "GPU_MEMORY_UTILIZATION"} <= set(many.given)
    assert many.room > start("qwen3.6-35b-a3b-nvfp4", context=262_144).room
    assert many.place(many.room) == 0
    assert many.place(many.room + 1) == 1


def test_what_does_not_fit_comes_last(start: Starts) -> None:
    fits = {
        "too large": start("gpt-oss-120b", free=60),
        "too long": start("gpt-oss-120b", context=262_144),
        "one of them": start("gemma4-31b", context=131_072, users=32),
        "all": start("gemma4-31b", context=4096, users=2),
    }
    assert [fit.place(32 if name == "one of them" else 2) for name, fit in fits.items()] == [2, 2, 1, 0]
    assert best_first(fits, fits, 2)[-2:] == ["too large", "too long"]
