"""Where an image stands on the way to its tags: what it still needs, and what refuses it.

One function decides, from the plan, what is attached to the image, and the catalog. Publishing and promoting ask it
before they write; the nightly asks it what is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING, Final, Literal

from imagefactory.check.answers.record import AnswersRecord
from imagefactory.check.smoke.record import Level, SmokeRecord, required_levels
from imagefactory.errors import CheckError, FactoryError, TrustError
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.plan import Plan
from imagefactory.project.locks.kernels import AUDIT_LABEL, recorded_audit
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Catalog, Event, now
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.history import misplaced_tags
from imagefactory.publish.stored_catalog import Snapshot, read_catalog
from imagefactory.publish.tags import Tags, fixed_tag, tags_of
from imagefactory.store.digests import Digest

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Verifier

Need = Literal["tests", "signature", "scan", "answers"]
_LONGEST: Final = 300
"""Characters of a failure; the record, attached to the image, has every test that failed."""


@dataclass(frozen=True)
class Gate:
    """What decides about tags beside the image: the checkout, the registry as this run found it, and what was asked."""

    project: Project
    repository: Repository
    trust: Verifier | None = None
    """Whose signatures count; without it, unsigned images pass too."""
    nightly: bool = False
    again: bool = False
    """Whether an image that a rollback left may return."""
    retry: bool = False
    """Whether what failed will be tested again, so that no failure lasts."""
    answers_changed: str = ""
    """Why answers may change."""
    moment: datetime | None = None
    first: bool = False
    """Nothing was ever published: the registry is not asked."""
    _tags: dict[str, Digest | None] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The catalog, read once."""
        return Snapshot(Catalog(), None) if self.first else read_catalog(self.repository)

    @property
    def time(self) -> datetime:
        return self.moment or now()

    def resolve(self, tag: str) -> Digest | None:
        """Return what a tag names; each is asked for once."""
        if tag not in self._tags:
            self._tags[tag] = None if self.first else self.repository.resolve(tag)
        return self._tags[tag]


@dataclass(frozen=True)
class Refusal:
    """A reason why an image gets no tag."""

    error: FactoryError
    lifted_by: Need | None = None
    """The step of a later run that may lift it; None if only a person can."""


@dataclass(frozen=True)
class Standing:
    """What an image still needs, and what refuses it, the first reason first."""

    tags: Tags
    """Those that it gets; of the day's tag, only if no other image has it."""
    current: bool
    """Whether users of its tags get it already."""
    rollback: Event | None
    """The rollback that holds it back."""
    misplaced: tuple[str, ...]
    """Moving tags that are not where the catalog has them: the last change was interrupted."""
    smoke: SmokeRecord | None
    answers: AnswersRecord | None
    """What is known about its answers; newly accepted if they changed and somebody gave a reason."""
    refusals: tuple[Refusal, ...]

    @property
    def needs(self) -> tuple[Need, ...]:
        """What a run can still do for it."""
        return tuple(refusal.lifted_by for refusal in self.refusals if refusal.lifted_by)

    @property
    def lasting(self) -> FactoryError | None:
        """The first reason that only a person can lift."""
        return next((refusal.error for refusal in self.refusals if refusal.lifted_by is None), None)

    @property
    def is_held_back(self) -> bool:
        return any(refusal.error.name == "held-back" for refusal in self.refusals)

    def require_promotable(self) -> None:
        for refusal in self.refusals:
            raise refusal.error


def standing(gate: Gate, plan: Plan, dossier: Dossier | None) -> Standing:
    """Judge the image of a plan; without a dossier, by what is known before it is built."""
    matrix, catalog = gate.project.matrix, gate.snapshot.catalog
    tags = tags_of(matrix, plan.cell, plan.key, gate.time.date(), nightly=gate.nightly)
    image = catalog.current(tags.moving, plan.platform)
    current = image is not None and image.plan_key == plan.key
    holds = catalog.holds(tags.moving).items()
    rollback = next((event for digest, event in holds if catalog.made_from(digest, plan.key)), None)
    settled = current or rollback is not None
    required = required_levels(matrix, plan.arch)
    smoke = dossier.smoke(plan.key) if dossier else None
    answers = _accepted(dossier.answers(plan.key), gate, required) if dossier else None
    if dossier:
        # The first image of a day keeps the day's tag.
        free = tuple(tag for tag in tags.dated if gate.resolve(tag) in (None, dossier.image))
        tags = replace(tags, dated=free)
    return Standing(
        tags=tags,
        current=current,
        rollback=rollback,
        misplaced=tuple(misplaced_tags(gate.resolve, catalog, tags.moving)) if settled else (),
        smoke=smoke,
        answers=answers,
        refusals=(
            *_by_evidence(gate, plan, dossier, smoke),
            *_by_catalog(gate, plan, dossier, tags, rollback),
            *(_by_scan(gate, plan, dossier) if dossier else ()),
            *(_by_answers(gate, plan, dossier, answers, required) if dossier else ()),
        ),
    )


def _by_evidence(gate: Gate, plan: Plan, dossier: Dossier | None, smoke: SmokeRecord | None) -> Iterator[Refusal]:
    """Refuse an image that is not audited, tested and signed; name all that is missing in one error."""
    required = required_levels(gate.project.matrix, plan.arch)
    audit = [f"audit: {reason}" for reason in audit_verdict(gate.project, plan)]
    untested = smoke.missing(required) if smoke else [f"no record for this digest ({', '.join(required)} are required)"]
    failed = smoke is not None and any(result.outcome == "failed" for result in smoke.levels.values())
    tests = [f"smoke{':' if smoke is None else ''} {shorten(one, _LONGEST, placeholder=' ...')}" for one in untested]
    missing = [*(tests if dossier else ()), *audit]
    unsigned = _unsigned(dossier, gate.trust) if dossier and gate.trust else []
    if not missing and not unsigned:
        return
    name, what = "not-promotable", f"{plan.target} may not be published yet."
    fix = (
        "Fix what failed: the records attached to the image (and build/smoke) have the details. To run what was not "
        f"run: `./inv publish --target {plan.target}/{plan.cell.machine}`."
    )
    if not missing:
        name, what = "unsigned", f"{plan.target} is not signed, and gets no tag."
        fix = (
            "Whoever publishes must sign: `./inv publish` does, with a key or as a CI job. A key that signed earlier "
            "must be in keys/*.pub. A private registry may go without: --unsigned."
        )
    why = "; ".join([*missing, *unsigned]).rstrip(".") + "."
    error = TrustError(name, what, where=_place(gate, plan, dossier), why=why, fix=fix)
    lasting = bool(audit) or (failed and not gate.retry)
    yield Refusal(error, None if lasting else "tests" if missing else "signature")


def _unsigned(dossier: Dossier, trust: Verifier) -> list[str]:
    from imagefactory.publish.attest.attachments import STATEMENTS, trusted_statements  # noqa: PLC0415 - cryptography

    signed = {one.predicate_type for one in trusted_statements(dossier, trust) if one.subject == dossier.image}
    return [f"signed: no trusted {name}" for kind, name in STATEMENTS.items() if kind not in signed]


def audit_verdict(project: Project, plan: Plan) -> list[str]:
    """List the reasons why the kernels of an image do not allow publishing it."""
    lock, arch = project.wheel_lock(plan.cell), project.matrix.archs[plan.arch]
    audit = recorded_audit(lock, arch, project.kernel_lock)
    reasons = [f"{verdict.library}: {verdict.why}" for verdict in audit.verdicts if not verdict.passes]
    if audit.result == "not-audited":
        reasons.append(f"{audit.summary}; `./inv lock` does that")
    stated = plan.config.labels.get(AUDIT_LABEL)
    if stated != audit.result:
        reasons.append(f"the image says {stated or 'nothing'}, and the record now says {audit.result}")
    return reasons


def _by_catalog(
    gate: Gate, plan: Plan, dossier: Dossier | None, tags: Tags, rollback: Event | None
) -> Iterator[Refusal]:
    """Refuse tags that another image has, and images that a rollback left or a prune is deleting."""
    catalog, tagged = gate.snapshot.catalog, gate.repository.reference.tagged
    mixed = [tag for tag in tags.moving if catalog.owners.get(tag)]
    mixed += [tag for tag in (tags.fixed, *tags.dated) if catalog.pointer(tag)]
    if mixed:
        yield Refusal(
            TrustError(
                "tag-taken",
                f"The tag {mixed[0]} belongs to another image.",
                where=str(tagged(mixed[0])),
                why="One of the two would move it, for the other it must never move.",
                fix="Rename the model in matrix.yaml. Nothing was written.",
            )
        )
    if rollback and not gate.again:
        yield Refusal(
            TrustError(
                "held-back",
                f"{plan.cell} was rolled back from this very image.",
                where=rollback.left or "",
                why=f"On {rollback.time:%Y-%m-%d %H:%M} UTC its tags were set back to {rollback.image}.",
                fix="Fix what was wrong with the image. If it was right after all, promote it with --again.",
            )
        )
    owner = (catalog.owners.get(tags.fixed) or gate.resolve(tags.fixed)) if dossier else None
    if dossier and owner not in (None, dossier.image):
        yield Refusal(
            TrustError(
                "tag-taken",
                f"The tag {tags.fixed} belongs to another image, and never moves.",
                where=str(tagged(tags.fixed)),
                why=f"It names {owner}; this image is {dossier.image}.",
                fix="The same plan must give the same image: run `./inv verify`. Nothing was written.",
            )
        )
    if dossier and dossier.image in catalog.deleting:
        yield Refusal(being_pruned(fixed_tag(plan.cell, plan.key), dossier.image))


def being_pruned(tag: str, image: Digest) -> TrustError:
    return TrustError(
        "being-pruned",
        f"{tag} is being deleted.",
        where=image,
        why="A prune found that nothing needed it, and has not finished.",
        fix="Run `./inv prune --delete` to finish it, then `./inv publish`. No tag was moved.",
    )


def _by_scan(gate: Gate, plan: Plan, dossier: Dossier) -> Iterator[Refusal]:
    """Refuse a vulnerability that `vulnerabilities` of matrix.yaml names; without that, none is. The next scan may."""
    rules = gate.project.matrix.vulnerabilities
    if rules is None:
        return
    if dossier.scan is None:
        what, why = "was not scanned for vulnerabilities", "`vulnerabilities` in matrix.yaml requires a scan of each."
        fix = "Run Grype on `./inv sbom --target all`, and hand its JSON to `./inv promote --scan FILE`."
    elif bad := dossier.scan.refused_by(rules):
        what, why = "has vulnerabilities that matrix.yaml does not allow", "; ".join(bad) + "."
        fix = "Update the packages (`./inv lock --upgrade`), or name the vulnerability under `accept` with a reason."
    else:
        return
    where = _place(gate, plan, dossier)
    error = CheckError("vulnerable", f"{plan.target} {what}, and gets no tag.", where=where, why=why, fix=fix)
    yield Refusal(error, "scan")


def _is_held(answers: AnswersRecord, required: tuple[Level, ...]) -> bool:
    """Whether answers keep an image from its tags; where the level `gpu` is required, they have to be known, too."""
    held = ("changed", "cannot tell") if "gpu" in required else ("changed",)
    return answers.verdict in held and not answers.accepted


def _accepted(answers: AnswersRecord | None, gate: Gate, required: tuple[Level, ...]) -> AnswersRecord | None:
    if answers and gate.answers_changed and _is_held(answers, required):
        return answers.model_copy(update={"accepted": gate.answers_changed})
    return answers


def _by_answers(
    gate: Gate, plan: Plan, dossier: Dossier, answers: AnswersRecord | None, required: tuple[Level, ...]
) -> Iterator[Refusal]:
    if answers is None or not _is_held(answers, required):
        return
    changed = answers.verdict == "changed"
    what = "gives other answers" if changed else "may give other answers"
    error = TrustError(
        "answers-changed",
        f"{plan.target} {what} than the image that users have, and gets no tag.",
        where=_place(gate, plan, dossier),
        why=_figures(answers),
        fix=f"Find out what changed them (docs/answers.md). If they are meant to change: `./inv promote --target "
        f'{plan.target}/{plan.cell.machine} --answers-changed "REASON"`. The reason stays in the history.',
    )
    yield Refusal(error, None if changed and not gate.retry else "answers")


def _figures(record: AnswersRecord) -> str:
    figures, noise = record.figures, record.noise
    if figures is None:
        return f"{record.line}."
    apart = f"KL {figures.divergence:.1e}, {figures.same_choice:.2%} of first choices agree"
    if noise:
        apart += f"; between two starts of it: KL {noise.divergence:.1e}, {noise.same_choice:.2%}"
    return f"{record.line}. {apart}."


def _place(gate: Gate, plan: Plan, dossier: Dossier | None) -> str:
    name = gate.repository.reference.name
    return f"{name}@{dossier.image}" if dossier else f"{name}:{fixed_tag(plan.cell, plan.key)}"
