"""Where an image stands on the way to its tags: what it still needs, and what refuses it.

`Gate.look_up` asks the registry; `standing` decides by what it said, and asks nothing. Publishing and promoting do so
before they write; the nightly does to find out what is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from textwrap import shorten
from typing import TYPE_CHECKING, Final, Literal

from imagefactory.check.answers.record import AnswersRecord
from imagefactory.check.smoke.record import Level, SmokeRecord, required_levels
from imagefactory.errors import CheckError, FactoryError, TrustError
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.plan import Plan
from imagefactory.project.locks.kernels import AUDIT_LABEL, recorded_audit
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Catalog, Event, now
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.history import misplaced_tags
from imagefactory.publish.stored_catalog import Snapshot, read_catalog
from imagefactory.publish.tag_owners import tagged_version, tags_of
from imagefactory.publish.tags import Tags
from imagefactory.publish.vulnerabilities import VulnerabilityRecord
from imagefactory.store.digests import Digest

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Verifier

Need = Literal["tests", "signature", "scan", "answers"]
_LONGEST: Final = 300
"""Characters of a failure; the record, attached to the image, has every test that failed."""


@dataclass(frozen=True)
class Terms:
    """What decides about tags beside the facts: the checkout, and what was asked for."""

    project: Project
    again: bool = field(default=False, kw_only=True)
    """Whether an image that a rollback left may return."""
    retry: bool = field(default=False, kw_only=True)
    """Whether what failed will be tested again, so that no failure lasts."""
    answers_changed: str = field(default="", kw_only=True)
    """Why answers may change."""


@dataclass(frozen=True)
class Facts:
    """What was looked up about an image; without `image`, what is known before it is built."""

    reference: Reference
    catalog: Catalog
    tags: Tags
    """Those that it may get today."""
    named: Mapping[str, Digest | None] = field(default_factory=dict)
    """What tags name in the registry, as far as that matters."""
    image: Digest | None = None
    smoke: SmokeRecord | None = None
    answers: AnswersRecord | None = None
    scan: VulnerabilityRecord | None = None
    unsigned: tuple[str, ...] = ()
    """Statements about it that nobody trusted has signed."""

    @property
    def place(self) -> str:
        return str(self.reference.at(self.image) if self.image else self.reference.tagged(self.tags.fixed))


@dataclass(frozen=True)
class Gate(Terms):
    """The terms, and the registry as this run found it."""

    repository: Repository
    trust: Verifier | None = None
    """Whose signatures count; without it, unsigned images pass too."""
    nightly: bool = False
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

    def tagged_version(self, model: str, arch: str, platform: str) -> str:
        """Return the version that a model's short tags follow today."""
        return tagged_version(self.project.matrix, self.snapshot.catalog, model, arch, platform)

    def look_up(self, plan: Plan, dossier: Dossier | None = None) -> Facts:
        """Ask the registry all that decides about the image of a plan."""
        catalog = self.snapshot.catalog
        matrix, day = self.project.matrix, self.time.date()
        tags = tags_of(matrix, catalog, plan.cell, plan.key, day, nightly=self.nightly)
        # Each tag is a request. Where moving tags point matters if the catalog has them here, or a rollback moved them.
        asked = tags.moving if _is_published(catalog, tags, plan) or _rollback(catalog, tags, plan) else ()
        if dossier:
            asked = (*asked, *tags.dated, *(() if tags.fixed in catalog.owners else (tags.fixed,)))
        facts = Facts(self.repository.reference, catalog, tags, {tag: self.resolve(tag) for tag in asked})
        if dossier is None:
            return facts
        return replace(
            facts,
            image=dossier.image,
            smoke=dossier.smoke(plan.key),
            answers=dossier.answers(plan.key),
            scan=dossier.scan if self.project.matrix.vulnerabilities else None,
            unsigned=tuple(_unsigned(dossier, self.trust)) if self.trust else (),
        )


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
    taking: tuple[str, ...]
    """Tags that an image under the tag of its version takes from another one, since they are its own by now."""
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


def standing(terms: Terms, plan: Plan, facts: Facts) -> Standing:
    """Judge the image of a plan by what was looked up; nothing is asked here."""
    catalog, tags = facts.catalog, facts.tags
    required = required_levels(terms.project.matrix, plan.arch)
    published, rollback = _is_published(catalog, tags, plan), _rollback(catalog, tags, plan)
    taking = tuple(_taken_over(catalog, tags, plan)) if published and not rollback else ()
    answers = facts.answers
    if answers and terms.answers_changed and _is_held(answers, required):
        answers = answers.model_copy(update={"accepted": terms.answers_changed})
    if facts.image:
        # The first image of a day keeps the day's tag.
        free = tuple(tag for tag in tags.dated if facts.named[tag] in (None, facts.image))
        tags = replace(tags, dated=free)
    return Standing(
        tags=tags,
        current=published and not taking,
        taking=taking,
        rollback=rollback,
        misplaced=tuple(misplaced_tags(facts.named, catalog, tags.moving)) if published or rollback else (),
        smoke=facts.smoke,
        answers=answers,
        refusals=(
            *_by_evidence(terms, plan, facts, required),
            *_by_catalog(terms, plan, facts, tags, rollback),
            *_by_scan(terms, plan, facts),
            *_by_answers(terms, plan, facts, answers, required),
        ),
    )


def _is_published(catalog: Catalog, tags: Tags, plan: Plan) -> bool:
    """Whether the most specific of its tags names the image of a plan."""
    image = catalog.current(tags.moving, plan.platform)
    return image is not None and image.plan_key == plan.key


def _taken_over(catalog: Catalog, tags: Tags, plan: Plan) -> Iterator[str]:
    """List the tags that name another image, but for those that somebody set back to it."""
    for tag in tags.moving:
        image = catalog.current([tag], plan.platform)
        is_here = image is not None and image.plan_key == plan.key
        if not is_here and not catalog.was_set_back(tag, plan.platform):
            yield tag


def _rollback(catalog: Catalog, tags: Tags, plan: Plan) -> Event | None:
    """Return the rollback that holds the image of a plan back."""
    holds = catalog.holds(tags.moving).items()
    return next((event for digest, event in holds if catalog.made_from(digest, plan.key)), None)


def _by_evidence(terms: Terms, plan: Plan, facts: Facts, required: tuple[Level, ...]) -> Iterator[Refusal]:
    """Refuse an image that is not audited, tested and signed; name all that is missing in one error."""
    smoke = facts.smoke
    audit = [f"audit: {reason}" for reason in audit_verdict(terms.project, plan)]
    tests: list[str] = []
    if facts.image and smoke is None:
        tests = [f"smoke: no record for this digest ({', '.join(required)} are required)"]
    elif smoke:
        tests = [f"smoke {shorten(level, _LONGEST, placeholder=' ...')}" for level in smoke.missing(required)]
    missing = [*tests, *audit]
    if not missing and not facts.unsigned:
        return
    name, what = "not-promotable", f"{plan.target} may not be published yet."
    fix = (
        "Fix what failed: the records attached to the image (and build/smoke) have the details. To run what was not "
        f"run: `./inv publish --target {plan.cell.full_target}`."
    )
    if not missing:
        name, what = "unsigned", f"{plan.target} is not signed, and gets no tag."
        fix = (
            "Whoever publishes must sign: `./inv publish` does, with a key or as a CI job. A key that signed earlier "
            "must be in keys/*.pub. A private registry may go without: --unsigned."
        )
    why = "; ".join([*missing, *facts.unsigned]).rstrip(".") + "."
    error = TrustError(name, what, where=facts.place, why=why, fix=fix)
    failed = smoke is not None and any(result.outcome == "failed" for result in smoke.levels.values())
    lasting = bool(audit) or (failed and not terms.retry)
    yield Refusal(error, None if lasting else "tests" if missing else "signature")


def _unsigned(dossier: Dossier, trust: Verifier) -> Iterator[str]:
    from imagefactory.publish.attest.attachments import STATEMENTS, trusted_statements  # noqa: PLC0415 - cryptography

    signed = {
        statement.predicate_type
        for statement in trusted_statements(dossier, trust)
        if statement.subject == dossier.image
    }
    yield from (f"signed: no trusted {name}" for kind, name in STATEMENTS.items() if kind not in signed)


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


def _by_catalog(terms: Terms, plan: Plan, facts: Facts, tags: Tags, rollback: Event | None) -> Iterator[Refusal]:
    """Refuse tags that another image has, and images that a rollback left or a prune is deleting."""
    catalog, tagged, image = facts.catalog, facts.reference.tagged, facts.image
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
    if rollback and not terms.again:
        reason = f": {rollback.why}" if rollback.why else ""
        yield Refusal(
            TrustError(
                "held-back",
                f"{plan.cell} was rolled back from this very image.",
                where=rollback.left or "",
                why=f"On {rollback.time:%Y-%m-%d %H:%M} UTC its tags were set back to {rollback.image}{reason}.",
                fix="Fix what was wrong with the image. If it was right after all, promote it with --again.",
            )
        )
    owner = (catalog.owners.get(tags.fixed) or facts.named[tags.fixed]) if image else None
    if owner not in (None, image):
        yield Refusal(
            TrustError(
                "tag-taken",
                f"The tag {tags.fixed} belongs to another image, and never moves.",
                where=str(tagged(tags.fixed)),
                why=f"It names {owner}; this image is {image}.",
                fix="The same plan must give the same image: run `./inv verify`. Nothing was written.",
            )
        )
    if image and image in catalog.deleting:
        yield Refusal(being_pruned(tags.fixed, image))


def being_pruned(tag: str, image: Digest) -> TrustError:
    return TrustError(
        "being-pruned",
        f"{tag} is being deleted.",
        where=image,
        why="A prune found that nothing needed it, and has not finished.",
        fix="Run `./inv prune --delete` to finish it, then `./inv publish`. No tag was moved.",
    )


def _by_scan(terms: Terms, plan: Plan, facts: Facts) -> Iterator[Refusal]:
    """Refuse a vulnerability that `vulnerabilities` of matrix.yaml names; without that, none is. The next scan may."""
    rules = terms.project.matrix.vulnerabilities
    if rules is None or facts.image is None:
        return
    if facts.scan is None:
        what, why = "was not scanned for vulnerabilities", "`vulnerabilities` in matrix.yaml requires a scan of each."
        fix = "Run Grype on `./inv sbom --target all`, and hand its JSON to `./inv promote --scan FILE`."
    elif bad := facts.scan.refused_by(rules):
        what, why = "has vulnerabilities that matrix.yaml does not allow", "; ".join(bad) + "."
        fix = "Update the packages (`./inv lock --upgrade`), or name the vulnerability under `accept` with a reason."
    else:
        return
    what = f"{plan.target} {what}, and gets no tag."
    yield Refusal(CheckError("vulnerable", what, where=facts.place, why=why, fix=fix), "scan")


def _is_held(answers: AnswersRecord, required: tuple[Level, ...]) -> bool:
    """Whether answers keep an image from its tags; where the level `gpu` is required, they have to be known, too."""
    refused = ("changed", "cannot tell") if "gpu" in required else ("changed",)
    return answers.verdict in refused and not answers.accepted


def _by_answers(
    terms: Terms, plan: Plan, facts: Facts, answers: AnswersRecord | None, required: tuple[Level, ...]
) -> Iterator[Refusal]:
    if answers is None or not _is_held(answers, required):
        return
    changed = answers.verdict == "changed"
    what = "gives other answers" if changed else "may give other answers"
    error = TrustError(
        "answers-changed",
        f"{plan.target} {what} than the image that users have, and gets no tag.",
        where=facts.place,
        why=_figures(answers),
        fix=f"Find out what changed them (docs/answers.md). If they are meant to change: `./inv promote --target "
        f'{plan.cell.full_target} --answers-changed "REASON"`. The reason stays in the history.',
    )
    yield Refusal(error, None if changed and not terms.retry else "answers")


def _figures(record: AnswersRecord) -> str:
    figures, noise = record.figures, record.noise
    if figures is None:
        return f"{record.line}."
    apart = f"KL {figures.divergence:.1e}, {figures.same_choice:.2%} of first choices agree"
    if noise:
        apart += f"; between two starts of it: KL {noise.divergence:.1e}, {noise.same_choice:.2%}"
    return f"{record.line}. {apart}."
