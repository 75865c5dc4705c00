"""Benchmarks and publishing: results attached to images, and a promotion held when an image became slower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final

from imagefactory.bench.measuring import refuse_wrong_answers
from imagefactory.bench.result import BenchResult
from imagefactory.bench.submission import baseline_for, held_by, shared_results
from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.smoke.record import LevelResult, SmokeRecord, TestResult
from imagefactory.store.digests import Digest

BENCH_TYPE: Final = "application/vnd.imagefactory.bench.v1+json"
THROUGHPUT: Final = "throughput"
_MEANS: Final = "The image generates fewer tokens per second than the one before."


def attach_result(repository: Repository, result: BenchResult) -> Descriptor:
    """Attach a benchmark result to its image in the registry."""
    subject = repository.require_manifest(Digest(result.bound.digest)).descriptor()
    payload = Payload(BENCH_TYPE, result.to_json().encode(), {TITLE: f"bench-{result.profile}.json"})
    created = {"org.opencontainers.image.created": result.started.isoformat(timespec="seconds")}
    return referrers.attach(repository, subject, BENCH_TYPE, [payload], created)


def judged(project: Project, measure: Callable[[], BenchResult], share: float) -> TestResult:
    """Measure an image, and return a smoke test of its throughput against the newest shared result.

    Without one, it passes; a benchmark that ends early or finds wrong answers fails.
    """
    try:
        result = measure()
        refuse_wrong_answers(result, Path("build", "bench"))
        baseline = baseline_for(result, shared_results(project.root))
        message = (
            held_by(result, baseline, share) if baseline else "there is no shared result to compare with"
        )
    except FactoryError as error:
        return TestResult(
            name=THROUGHPUT, outcome="failed", message=f"{error.what} {error.why}", means=_MEANS
        )
    measured = {"tokens_per_second": round(fmean(result.throughput()), 2)}
    return TestResult(name=THROUGHPUT, outcome="passed", message=message, means=_MEANS, measured=measured)


def with_throughput(record: SmokeRecord, test: TestResult) -> SmokeRecord:
    """Add the test to the gpu level of a smoke record: a level that fails gets its image no tag."""
    level = record.levels.get("gpu")
    others = [one for one in level.tests if one.name != THROUGHPUT] if level else []
    added = LevelResult.of([*others, test], seconds=level.seconds if level else 0.0)
    return record.model_copy(update={"levels": {**record.levels, "gpu": added}})
