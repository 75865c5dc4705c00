"""A benchmark of the real server with the tiny model, in Docker."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.bench.result import BenchResult
from tests.fixtures.tiny_image import TARGET, invoke

pytestmark = pytest.mark.engine
NGRAM = (
    "EXTRA_ARGS=--speculative-config "
    '\'{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 1}\''
)


@pytest.mark.usefixtures("tiny_image")
def test_the_tiny_image_is_measured_with_a_drafter(tiny_checkout: Path) -> None:
    printed = invoke(tiny_checkout, "bench", "--target", TARGET, "--repeats", "1", "--set", NGRAM)
    found = BenchResult.read(tiny_checkout / printed.strip().splitlines()[-1])
    assert found.complete
    assert [one.kind for one in found.measurements] == ["code", "prose", "dialogue", "maths", "tools"]
    assert all(one.tokens_per_second > 0 and one.acceptance and one.failed == 0 for one in found.measurements)
    assert found.bound.digest.startswith("sha256:")
    assert found.starts[0].steps.keys() >= {"imports", "engine", "ready"}
    assert {check.outcome for check in found.sanity} == {"passed", "not-applicable"}
