"""In what the sides of a comparison differ, and which images a run refuses."""

import pytest

from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import Bench
from imagefactory.check.bench.running import asked_differences, bench_url, refuse_other_servers
from imagefactory.check.smoke.subject import Subject
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

DIGEST = Digest(f"sha256:{'a' * 64}")
TINY = Cell("tiny", "0.32.0", "cpu", "linux/arm64")


def subject(cell: Cell = TINY) -> Subject:
    return Subject(cell=cell, name="x", digest=DIGEST, config=DIGEST, plan_key=Sha256("c" * 64))


SGLANG = "gemma4-31b@sglang-0.5.21"


def bench(**settings: str) -> Bench:
    return Bench(Project(REPOSITORY), "quick", settings)


@pytest.mark.parametrize(
    ("left", "right", "asked"),
    [
        ({"MAX_NUM_SEQS": "1"}, {"MAX_NUM_SEQS": "2"}, {"setting MAX_NUM_SEQS"}),
        ({}, {"DFLASH_DRAFTER": "off"}, {"setting DFLASH_DRAFTER", "drafter"}),
    ],
)
def test_settings_may_differ_where_they_were_asked_to(
    left: dict[str, str], right: dict[str, str], asked: set[str]
) -> None:
    assert asked_differences((bench(**left), subject()), (bench(**right), subject())) == asked


def test_profiles_that_need_vllm_refuse_images_of_other_servers() -> None:
    cell = select_one(Project(REPOSITORY).matrix, SGLANG)
    with raises("bad-option", match="needs an image with vLLM"):
        refuse_other_servers(bench(), cell)
    refuse_other_servers(Bench(Project(REPOSITORY), "start", {}), cell)
    with raises("bad-option", match="needs an image with vLLM"):
        bench_url(bench(), Endpoint("http://127.0.0.1:9"), subject(cell), print)
