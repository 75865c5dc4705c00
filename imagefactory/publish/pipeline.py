"""The steps from a plan to its tags: stage, smoke-test, attest, pass the gate, promote.

Each step takes a `Staged` image and hands it on. `./inv publish` takes all steps in one process. The nightly takes the
same steps, one per job, and finds in the registry what an earlier job staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.assemble.images_here import lay_out_if_here
from imagefactory.assemble.watch import Watcher
from imagefactory.check.smoke.record import Level, SmokeRecord, required_levels
from imagefactory.errors import CheckError, FactoryError
from imagefactory.oci.registry.image_push import PushWatcher
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project, locked_cells
from imagefactory.publish.answers import answers_in, attach_answers, measure_answers, pulled
from imagefactory.publish.history import current_images
from imagefactory.publish.promote import Promotion, promotable, promote
from imagefactory.publish.records import attach_record, read_records
from imagefactory.publish.staging import Outcomes, Staged, stage
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.vulnerabilities import Scan, attach_scan
from imagefactory.store.digests import Digest
from imagefactory.store.progress import Say

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Signer, Verifier


def publish(
    project: Project,
    repository: Repository,
    plans: Outcomes[Plan],
    watch: Watcher,
    say: Say,
    *,
    signer: Signer | None,
    trust: Verifier | None,
    pushing: PushWatcher | None = None,
    nightly: bool = False,
    again: bool = False,
    retest: bool = False,
    answers: bool = False,
    answers_changed: str = "",
) -> Promotion:
    """Take every step. An image that fails its smoke tests gets no tag; its record goes to the registry.

    `answers` also measures answers if the level `gpu` does not run; `answers_changed` is why they may change.
    """

    def test_and_attest(one: Staged) -> Staged:
        say(f"{one.plan.target}: {one.digest}")
        lay_out_if_here(project, one.plan, one.image)
        record = smoke_test(project, repository, one, say, retest=retest)
        failed = record is not None and record.missing(())
        if not failed and (answers or (record and "gpu" in record.passed)):
            measure_answers(project, repository, one, say, retest=retest)
        folders = [project.root / "build" / "smoke"]
        return attest(project, repository, one, [record] if record else [], signer, folders=folders)

    plans = plans.then(promotable(project, repository, again=again), say)
    staged = stage(project, repository, plans, watch, say, pushing=pushing)
    attested = staged.then(test_and_attest, say)
    return promote(project, repository, attested, trust, nightly=nightly, again=again, answers_changed=answers_changed)


def smoke_test(
    project: Project,
    repository: Repository,
    staged: Staged,
    say: Say,
    *,
    levels: Sequence[Level] = (),
    must_pass: bool = False,
    retest: bool = False,
) -> SmokeRecord | None:
    """Test an image at the levels that it has not passed yet, by the registry's records and by this machine's.

    Returns what is not in the registry yet: the new record, this machine's earlier one, or both in one; None if there
    is nothing. Without `levels`, the arch decides what to test. With `must_pass`, fail unless every level that ran
    passed. `retest` tests every level.
    """
    wanted = levels or required_levels(project.matrix, staged.plan.arch)
    published = None if retest else read_records(repository, staged.digest, staged.plan.key)
    lacking = _not_passed(wanted, published, staged, say)
    if not lacking:
        return None
    here = None if retest else _tested_here(project, staged)
    left = _not_passed(lacking, here, staged, say)
    if here and not left:
        return here
    from imagefactory.check.smoke.runner import refuse_failed, results_folder  # noqa: PLC0415 - with Docker's client

    record = run_levels(project, repository, staged, left, say)
    if must_pass:
        refuse_failed(record, left, by_name=True, folder=results_folder(project, staged.digest))
    return record.with_earlier(here) if here else record


def run_levels(
    project: Project, repository: Repository, staged: Staged, levels: Sequence[Level], say: Say
) -> SmokeRecord:
    from imagefactory.check.smoke.runner import smoke  # noqa: PLC0415 - with Docker's client

    return smoke(project, pulled(project, repository, staged.digest), levels, say)


def _not_passed(levels: Sequence[Level], record: SmokeRecord | None, staged: Staged, say: Say) -> Sequence[Level]:
    passed = [level for level in levels if record and level in record.passed]
    if record and passed:
        say(f"{staged.plan.target}: passed on {record.started:%Y-%m-%d}: {', '.join(passed)}")
    return [level for level in levels if level not in passed]


def _tested_here(project: Project, staged: Staged) -> SmokeRecord | None:
    from imagefactory.check.smoke.runner import recorded  # noqa: PLC0415 - with Docker's client

    with suppress(CheckError):  # there is none, or it is damaged
        record = recorded(project, staged.digest)
        if (record.digest, record.plan_key) == (staged.digest, staged.plan.key):
            return record
    return None


def attest(
    project: Project,
    repository: Repository,
    staged: Staged,
    records: Iterable[SmokeRecord],
    signer: Signer | None,
    *,
    folders: Iterable[Path] = (),
) -> Staged:
    """Attach smoke records, passed or not, SBOM, provenance and signature, and answers from `folders` of machines."""
    from imagefactory.publish.attest.attachments import attach_all  # noqa: PLC0415 - with cryptography

    for record in records:
        attach_record(repository, record)
    for folder in (one / staged.digest.removeprefix("sha256:") for one in folders):
        for answers in answers_in([folder]):
            attach_answers(repository, answers, folder)
    attach_all(repository, project, staged.plan, staged.pushed.descriptor, signer)
    return staged


def attach_scans(project: Project, repository: Repository, scan: Scan, staged: Iterable[Digest], say: Say) -> None:
    """Attach what a scan says to staged images and to those that tags name; one that fails stops no other."""
    from imagefactory.publish.attest.components import package_urls  # noqa: PLC0415 - with cryptography
    from imagefactory.publish.image_contents import contents_in_registry  # noqa: PLC0415 - with cryptography

    given = package_urls(project, locked_cells(project))
    current = [one.image.digest for one in current_images(read_catalog(repository).catalog)]
    for digest in dict.fromkeys([*staged, *current]):
        try:
            found = contents_in_registry(repository, digest)
            if found.packages is None:
                say(f"{digest}: not scanned, since no SBOM is attached")
                continue
            record = scan.record(digest, found.packages, given)
            attach_scan(repository, record)
            say(f"{found.cell}/{found.cell.machine}: known vulnerabilities: {record.line}")
        except FactoryError as error:
            say(f"{digest}: {error.what} {error.why}")


def bench_pulled(project: Project, repository: Repository, staged: Staged, say: Say) -> SmokeRecord:
    """Measure an image by the profile `quick`, and add its throughput to its smoke record, as a test that may fail."""
    from imagefactory.check.bench.measuring import Bench  # noqa: PLC0415 - with Docker's client
    from imagefactory.check.bench.profiles import load_profiles  # noqa: PLC0415
    from imagefactory.check.bench.running import bench_image  # noqa: PLC0415
    from imagefactory.check.smoke.runner import RECORD, recorded, results_folder  # noqa: PLC0415
    from imagefactory.publish.records import judged, with_throughput  # noqa: PLC0415

    bench, subject = Bench(project, "quick", {}), pulled(project, repository, staged.digest)
    test = judged(project, lambda: bench_image(bench, subject, say)[0], load_profiles(project.root).hold)
    record = with_throughput(recorded(project, staged.digest), test)
    record.write(results_folder(project, staged.digest) / RECORD)
    return record
