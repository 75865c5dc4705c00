"""The steps from a plan to its tags: stage, test, attest, judge, write.

Each step takes a `Staged` image and hands it on, with what it attached. `./inv publish` takes all steps in one process.
The nightly takes the same steps, one per job, and finds in the registry what an earlier job staged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from textwrap import shorten

from imagefactory.assemble.images_here import lay_out_if_here
from imagefactory.errors import clean
from imagefactory.plan.plan import Plan
from imagefactory.publish.answers import LONGEST, answers_attachment, measure_answers
from imagefactory.publish.catalog import Published
from imagefactory.publish.run import PublishRun
from imagefactory.publish.staging import Outcomes, Staged, stage
from imagefactory.publish.standing import Standing, standing
from imagefactory.publish.tags import refuse_ambiguous
from imagefactory.publish.testing import attach_results, smoke_test
from imagefactory.publish.write import Manifests, Promotion, Ready, set_tags, write


def publish(run: PublishRun, plans: Outcomes[Plan]) -> Promotion:
    """Take every step. An image that fails its smoke tests gets no tag; its record goes to the registry."""
    refuse_ambiguous(run.project.matrix)
    allowed = plans.then(partial(refuse_early, run), run.say)
    staged = stage(run, allowed)
    tested = staged.then(partial(test, run), run.say)
    attested = tested.then(partial(attest, run), run.say)
    return promote(run, attested)


def promote(run: PublishRun, staged: Outcomes[Staged]) -> Promotion:
    """Move tags to staged images; one that is refused does not stop the others."""
    refuse_ambiguous(run.project.matrix)
    judged = staged.then(partial(judge, run))
    return Promotion(write(run.gate, list(judged.finished.values())), list(judged.failed.values()))


def refuse_early(run: PublishRun, plan: Plan) -> Plan:
    """Refuse, before hours of work, what no image of the plan could mend: its tags, a rollback, its kernels."""
    _require_promotable(run, plan, None)
    return plan


def test(run: PublishRun, staged: Staged) -> Staged:
    """Test an image as users get it, and attach what was found."""
    run.say(f"{staged.plan.target}: {staged.digest}")
    lay_out_if_here(run.project, staged.plan, staged.image)
    record = smoke_test(run, staged)
    failed = record is not None and record.missing(())
    measured = not failed and bool(run.answers or (record and "gpu" in record.passed))
    if measured:
        measure_answers(run, staged)
    if record or measured:
        # It took a while. A failure that another machine attached meanwhile has to count.
        staged = replace(staged, dossier=staged.dossier.as_of_now())
    return attach_results(run, staged, [record] if record else [])


def attest(run: PublishRun, staged: Staged) -> Staged:
    """Attach the SBOM, and sign SBOM, provenance and image."""
    from imagefactory.publish.attest.attachments import attach_all  # noqa: PLC0415 - with cryptography

    return replace(staged, dossier=attach_all(run.project, staged.plan, staged.dossier, run.signer))


def judge(run: PublishRun, staged: Staged) -> Ready:
    """Describe an image for the catalog, or raise if it may not have its tags."""
    stands = _require_promotable(run, staged.plan, staged)
    answers, attached = stands.answers, staged.dossier.answers(staged.plan.key)
    if answers and answers != attached:  # somebody accepts now that they changed
        staged = replace(staged, dossier=staged.dossier.attach(answers_attachment(answers)))
    line = shorten(clean(answers.line), LONGEST, placeholder=" ...") if answers else ""
    image = Published.of(staged.plan, staged.image, stands.smoke)
    # A text of the catalog is printable ASCII.
    return Ready(staged, image, stands.tags, line.encode("ascii", "replace").decode())


def _require_promotable(run: PublishRun, plan: Plan, staged: Staged | None) -> Standing:
    stands = standing(run.gate, plan, run.gate.look_up(plan, staged.dossier if staged else None))
    for reason in staged.dossier.left_out if staged else ():
        run.say(f"{plan.target}: {reason}")
    if stands.is_held_back and stands.misplaced:
        # The rollback was interrupted before it moved them all.
        set_tags(run.repository, Manifests(run.repository), run.gate.snapshot, stands.misplaced, ())
    stands.require_promotable()
    return stands
