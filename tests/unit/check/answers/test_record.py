"""The record of an image's answers: what became of them beside the image before."""

import gzip
import math
from datetime import UTC, datetime

import pytest

from imagefactory.check.answers.comparison import figures
from imagefactory.check.answers.record import AnswersRecord, judged
from imagefactory.check.answers.result import AnswersResult, Window
from imagefactory.check.bench.result import BenchMachine, GpuUse
from imagefactory.publish.answers import compact
from tests.unit.check.answers.test_comparison import PLACES, measured

BASE = measured(bound={"digest": f"sha256:{'1' * 64}"})
NEAR = measured([{6: math.log(0.51), 7: math.log(0.25)}, PLACES[1]])
"""As far away as other kernels may be."""
SHORTER = measured().model_copy(
    update={"windows": (Window(kind="code", tokens=(5, 6), own=(-1.0,), top=({6: -1.0},)),)}
)
RECORD = AnswersRecord(
    digest=f"sha256:{'2' * 64}",
    plan_key="3" * 64,
    target="m@0.32.0/gb10/arm64",
    panel=1,
    started=datetime(2026, 11, 17, tzinfo=UTC),
    verdict="cannot tell",
    why="it was not measured",
    base=f"sha256:{'1' * 64}",
)
SPARK = BenchMachine(
    platform="linux/arm64", kernel="6", cpus=20, memory=1, gpus=(GpuUse(name="NVIDIA GB10", driver="1"),)
)
COMPARED = "compared with sha256:111111111111, measured on linux/amd64, 2026-11-17"


@pytest.mark.parametrize(
    ("result", "base", "other_kernels", "line"),
    [
        (measured(), None, False, "answers measured on linux/amd64, 2026-11-17; there was nothing to compare with"),
        (measured(), BASE, False, "same answers as sha256:111111111111, measured on linux/amd64, 2026-11-17"),
        (NEAR, BASE, True, "same answers as sha256:111111111111, measured on linux/amd64, 2026-11-17"),
        (NEAR, BASE, False, f"answers changed: KL 1.5e-04 is above 1.0e-08; {COMPARED}"),
        (
            SHORTER,
            BASE,
            False,
            f"answers changed: the same texts became other tokens: tokenizer or context length differ; {COMPARED}",
        ),
    ],
)
def test_the_verdict_is_one_line(
    result: AnswersResult, base: AnswersResult | None, *, other_kernels: bool, line: str
) -> None:
    assert judged(RECORD, result, base=base, again=result, other_kernels=other_kernels).line == line


def test_a_line_names_gpus_the_reason_and_what_failed() -> None:
    changed = RECORD.model_copy(update={"verdict": "changed", "why": "KL", "machine": SPARK, "accepted": "new weights"})
    assert changed.line == (
        "answers changed: new weights (KL); compared with sha256:111111111111, measured on NVIDIA GB10, 2026-11-17"
    )
    assert RECORD.line.startswith("cannot tell whether answers changed: it was not measured; compared with sha256:111")
    assert RECORD.line.endswith("tried on 2026-11-17")


def test_what_is_attached_says_the_same_as_what_was_measured() -> None:
    certain = measured([{6: -1.1920928955078125e-07, 7: -15.942384719848633}, {7: -0.30000001192092896}])
    read = AnswersResult.model_validate_json(gzip.decompress(compact(certain)))
    assert figures(certain, read).divergence < 1e-12
    assert read.bound == certain.bound
