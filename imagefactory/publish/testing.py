"""The step `test`: smoke tests, answers and throughput of a staged image, and their records in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

from imagefactory.check.bench.comparison import refuse_incomparable
from imagefactory.check.bench.measuring import refuse_wrong_answers
from imagefactory.check.bench.result import BenchResult, baseline_for, shared_results
from imagefactory.check.smoke.record import Level, LevelResult, SmokeRecord, TestOutcome, TestResult, required_levels
from imagefactory.errors import CheckError, FactoryError
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.referrers import Attachment, dated
from imagefactory.project.project import Project
from imagefactory.publish.answers import answers_attachment, answers_in, pulled
from imagefactory.publish.dossier import SMOKE_TYPE
from imagefactory.publish.run import PublishRun
from imagefactory.publish.staging import Staged

THROUGHPUT: Final = "throughput"
_MEANS: Final = "The image generates fewer tokens per second than the one before."
_MAY_DIFFER: Final = ("image", "server", "mods", "model", "drafter", "tool", "kernel", "machine")


def smoke_test(run: PublishRun, staged: Staged) -> SmokeRecord | None:
    """Test an image at the levels that it has not passed yet, by the registry's records and by this machine's.

    Returns what is not in the registry yet: the new record, this machine's earlier one, or both in one; None if there
    is nothing.
    """
    levels = run.levels or required_levels(run.project.matrix, staged.plan.arch)
    earlier = None if run.retest else _tested_here(run.project, staged)
    left = list(levels)
    if not run.retest:
        left = _left(run, staged, left, staged.dossier.smoke(staged.plan.key))
        if not left:
            return None
        left = _left(run, staged, left, earlier)
    if earlier and not left:
        return earlier
    from imagefactory.check.smoke.runner import refuse_failed, results_folder  # noqa: PLC0415 - with Docker's client

    record = run_levels(run, staged, left)
    if run.must_pass:
        refuse_failed(record, left, by_name=True, folder=results_folder(run.project, staged.digest))
    return record.with_earlier(earlier) if earlier else record


def run_levels(run: PublishRun, staged: Staged, levels: Sequence[Level]) -> SmokeRecord:
    from imagefactory.check.smoke.runner import smoke  # noqa: PLC0415 - with Docker's client

    return smoke(run.project, pulled(run.project, run.repository, staged.digest), levels, run.say, run.settings)


def _left(run: PublishRun, staged: Staged, levels: Sequence[Level], record: SmokeRecord | None) -> list[Level]:
    """Leave out the levels that a record says were passed."""
    passed = [level for level in levels if record and level in record.passed]
    if record and passed:
        run.say(f"{staged.plan.target}: passed on {record.started:%Y-%m-%d}: {', '.join(passed)}")
    return [level for level in levels if level not in passed]


def _tested_here(project: Project, staged: Staged) -> SmokeRecord | None:
    from imagefactory.check.smoke.runner import recorded  # noqa: PLC0415 - with Docker's client

    with suppress(CheckError):  # there is none, or it is damaged
        record = recorded(project, staged.digest)
        if (record.digest, record.plan_key) == (staged.digest, staged.plan.key):
            return record
    return None


def attach_results(run: PublishRun, staged: Staged, records: Iterable[SmokeRecord]) -> Staged:
    """Attach smoke records, passed or not, and the answers in build/smoke."""
    from imagefactory.check.smoke.runner import results_folder  # noqa: PLC0415 - with Docker's client

    folder = results_folder(run.project, staged.digest)
    attachments = [smoke_attachment(record) for record in records]
    attachments += [answers_attachment(answers, folder) for answers in answers_in(folder)]
    return replace(staged, dossier=staged.dossier.attach(*attachments)) if attachments else staged


def attach_recorded(run: PublishRun, staged: Staged) -> Staged:
    """Attach what build/smoke has about an image."""
    from imagefactory.check.smoke.runner import records_here  # noqa: PLC0415 - with Docker's client

    return attach_results(run, staged, records_here(run.project, staged.digest))


def smoke_attachment(record: SmokeRecord) -> Attachment:
    """Make the attachment of a smoke record, without this machine's paths."""
    if (image := Path(record.image)).is_absolute():
        record = record.model_copy(update={"image": image.name})
    payload = Payload(SMOKE_TYPE, record.to_json().encode(), {TITLE: "smoke.json"})
    return Attachment(SMOKE_TYPE, [payload], dated(record.started))


def bench_pulled(run: PublishRun, staged: Staged) -> SmokeRecord:
    """Measure an image by the profile `quick`, and add its throughput to its smoke record, as a test that may fail."""
    from imagefactory.check.bench.measuring import Bench  # noqa: PLC0415 - with Docker's client
    from imagefactory.check.bench.profiles import load_profiles  # noqa: PLC0415
    from imagefactory.check.bench.running import bench_image  # noqa: PLC0415
    from imagefactory.check.smoke.runner import RECORD, recorded, results_folder  # noqa: PLC0415

    project = run.project
    bench, subject = Bench(project, "quick", {}), pulled(project, run.repository, staged.digest)
    test = judged(project, lambda: bench_image(bench, subject, run.say)[0], load_profiles(project.root).hold)
    record = with_throughput(recorded(project, staged.digest), test)
    record.write(results_folder(project, staged.digest) / RECORD)
    return record


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
    # 19: `sha256:` and twelve digits.
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
    others = [result for result in level.tests if result.name != THROUGHPUT] if level else []
    seconds, settings = (level.seconds, level.settings) if level else (0.0, {})
    added = LevelResult.of([*others, test], seconds=seconds, settings=settings)
    return record.model_copy(update={"levels": {**record.levels, "gpu": added}})
