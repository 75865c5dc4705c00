"""Smoke records in the registry, attached to the image that was tested; images that became slower fail there."""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Final

from imagefactory.check.bench.comparison import refuse_incomparable
from imagefactory.check.bench.measuring import refuse_wrong_answers
from imagefactory.check.bench.result import BenchResult, baseline_for, shared_results
from imagefactory.check.smoke.record import LevelResult, SmokeRecord, TestOutcome, TestResult
from imagefactory.errors import FactoryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, Sha256

SMOKE_TYPE: Final = "application/vnd.imagefactory.smoke.v1+json"


def attach_record(repository: Repository, record: SmokeRecord) -> Descriptor:
    """Attach a smoke record to its image, whether the image passed or not; without this machine's paths."""
    if (image := Path(record.image)).is_absolute():
        record = record.model_copy(update={"image": image.name})
    subject = repository.require_manifest(record.digest).descriptor()
    payload = Payload(SMOKE_TYPE, record.to_json().encode(), {TITLE: "smoke.json"})
    return referrers.attach(repository, subject, SMOKE_TYPE, [payload], record.started)


def read_records(repository: Repository, digest: Digest, key: Sha256) -> SmokeRecord | None:
    found = referrers.find(repository, digest, SMOKE_TYPE)
    return merge_records(records_among(repository, found), digest, key)


def records_among(repository: Repository, attached: Iterable[Descriptor]) -> list[SmokeRecord]:
    return [
        SmokeRecord.from_json(repository.blob(item.digest), where=f"{repository.reference.name}@{item.digest}")
        for item in referrers.items(repository, attached, SMOKE_TYPE)
    ]


def merge_records(records: Iterable[SmokeRecord], digest: Digest, key: Sha256) -> SmokeRecord | None:
    """Merge the records of an image; of a level that ran more than once, the last result counts."""
    # A record counts for the image that it names, whatever it is attached to.
    own = [record for record in records if (record.digest, record.plan_key) == (digest, key)]
    merged: SmokeRecord | None = None
    for record in sorted(own, key=lambda record: record.started):
        merged = record.with_earlier(merged) if merged else record
    return merged


THROUGHPUT: Final = "throughput"
_MEANS: Final = "The image generates fewer tokens per second than the one before."
_MAY_DIFFER: Final = ("image", "server", "mods", "model", "drafter", "tool", "kernel", "machine")


def judged(project: Project, measure: Callable[[], BenchResult], share: float) -> TestResult:
    """Measure an image, and return a smoke test of its throughput against the newest shared result.

    Without one, it passes; a benchmark that ends early or finds wrong answers fails, and so does one that is slower
    by more than `share`.
    """
    try:
        result = measure()
        refuse_wrong_answers(result, Path("build", "bench"))
        baseline = baseline_for(result, shared_results(project.root))
        if baseline:
            refuse_incomparable(baseline, result, _MAY_DIFFER)
    except FactoryError as error:
        return _test("failed", f"{error.what} {error.why}")
    speed = fmean(result.throughput())
    if baseline is None:
        return _test("passed", "there is no shared result to compare with", speed)
    before = fmean(baseline.throughput())
    change = speed / before - 1
    message = f"{speed:.1f} tokens/s, {change:+.1%} of {before:.1f} ({baseline.bound.digest[:19]})"
    if change < -share:
        return _test("failed", f"{message}; {share:.0%} less is allowed", speed)
    return _test("passed", message, speed)


def _test(outcome: TestOutcome, message: str, speed: float | None = None) -> TestResult:
    measured = {} if speed is None else {"tokens_per_second": round(speed, 2)}
    return TestResult(name=THROUGHPUT, outcome=outcome, message=message, means=_MEANS, measured=measured)


def with_throughput(record: SmokeRecord, test: TestResult) -> SmokeRecord:
    """Add the test to the gpu level of a smoke record: a level that fails gets its image no tag."""
    level = record.levels.get("gpu")
    others = [one for one in level.tests if one.name != THROUGHPUT] if level else []
    added = LevelResult.of([*others, test], seconds=level.seconds if level else 0.0)
    return record.model_copy(update={"levels": {**record.levels, "gpu": added}})
