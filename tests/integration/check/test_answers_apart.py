"""Another version, a mod and a drafter leave the answers of the trained model as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.check.answers.comparison import change, figures, judge
from imagefactory.check.answers.result import AnswersResult
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.platforms import MACHINE
from tests.fixtures.tiny_image import copied_checkout, invoke, lock_or_skip
from tests.fixtures.trained import measured

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'"""
LAYER = "vllm/model_executor/models/qwen3.py"


def verdict(first: AnswersResult, second: AnswersResult) -> tuple[str, str]:
    """Judge by the noise of the first side, whose starts give the same bits."""
    found = figures(first, second)
    return change(first, second), ": ".join(judge(change(first, second), found, figures(first, first)))


def test_a_drafter_and_a_mod_that_adds_a_comment_change_nothing(
    served: AnswersResult, trained: Path, tiny_checkout: Path, tmp_path: Path
) -> None:
    comment = edit(LAYER, "class Qwen3MLP(", before="# This changes nothing.\n")
    write_mod(tmp_path, manifest("comment", comment, checks=[has(LAYER, "# This changes")], versions=">=0.32"))
    options = ("--volume", f"{tmp_path}:/mods:ro")
    both = measured(tiny_checkout, trained, more=options, MODS="comment", EXTRA_ARGS=NGRAM)
    assert verdict(served, both)[0] == "drafter"
    found = figures(served, both)
    assert (found.divergence, found.partings, found.continuations) == (0, 0, 8)


def test_an_older_version_says_the_same(served: AnswersResult, trained: Path, tmp_path: Path) -> None:
    root = copied_checkout(tmp_path)
    target = f"tiny@0.28.0/cpu/{MACHINE}"
    lock_or_skip(root, target)
    invoke(root, "build", "--target", target)
    what, told = verdict(measured(root, trained, target), served)
    assert what == "kernels"
    assert told.startswith("same"), told
