"""The gate before promotion: only images that are audited, tested and signed get their tags."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from imagefactory.check.smoke.record import SmokeRecord, required_levels
from imagefactory.errors import TrustError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.plan import Plan
from imagefactory.project.locks.kernels import AUDIT_LABEL, recorded_audit
from imagefactory.project.project import Project
from imagefactory.publish.catalog import ImagePart, Published
from imagefactory.publish.records import merge_records, records_among
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import KEY_DIGITS, fixed_tag
from imagefactory.store.digests import Digest

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Verifier

_LONGEST = 300
_BUNDLES = ("pure-bundle", "platform-bundle")


def pass_gate(project: Project, repository: Repository, staged: Staged, trust: Verifier | None) -> Published:
    """Describe a staged image for the catalog, or raise with all that is missing; without `trust`, unsigned pass."""
    plan, attached = staged.plan, referrers.find(repository, staged.digest)
    record = merge_records(records_among(repository, attached), staged.digest, plan.key)
    missing = _untested(project, plan, record)
    missing += [f"audit: {reason}" for reason in audit_verdict(project, plan)]
    unsigned = _unsigned(repository, staged.digest, attached, trust) if trust else []
    if record and not missing and not unsigned:
        return _describe(staged, record)
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
    raise TrustError(name, what, where=f"{repository.reference.name}@{staged.digest}", why=why, fix=fix)


def _untested(project: Project, plan: Plan, record: SmokeRecord | None) -> list[str]:
    required = required_levels(project.matrix, plan.arch)
    if record is None:
        return [f"smoke: no record for this digest ({', '.join(required)} are required)"]
    # The record itself, attached to the image, has every test that failed.
    return [f"smoke {shorten(missing, _LONGEST, placeholder=' ...')}" for missing in record.missing(required)]


def _unsigned(repository: Repository, digest: Digest, attached: Sequence[Descriptor], trust: Verifier) -> list[str]:
    from imagefactory.publish.attest import attachments  # noqa: PLC0415 - with cryptography

    found = attachments.trusted_statements(attachments.bundles_among(repository, attached), trust)
    there = {statement.predicate_type for _, statement in found if statement.subject == digest}
    return [f"signed: no trusted {name}" for kind, name in attachments.STATEMENTS.items() if kind not in there]


def _describe(staged: Staged, record: SmokeRecord) -> Published:
    plan, image = staged.plan, staged.image
    mods = plan.config.labels["imagefactory.mods"]
    return Published(
        digest=image.digest,
        model=plan.model,
        version=plan.version,
        arch=plan.arch,
        platform=plan.platform,
        plan_key=plan.key,
        tag=fixed_tag(plan.cell, plan.key),
        kernels=plan.kernels,
        mods=() if mods == "none" else tuple(mods.split()),
        size=len(image.manifest) + len(image.config) + sum(layer.size for layer in image.layers),
        made_of=made_of(plan),
        smoke={level: result.outcome for level, result in record.levels.items()},
    )


def made_of(plan: Plan) -> tuple[ImagePart, ...]:
    """List the parts that tell one image from another, in the order of its layers."""
    found: dict[str, ImagePart] = {}
    for layer in plan.layers:
        version = layer.inputs[0].name.split("-")[1] if layer.kind == "wheel" else ""
        name = layer.kind if layer.kind in _BUNDLES else f"{layer.kind} {layer.name}"
        found[name] = ImagePart(name, layer.key[:KEY_DIGITS], version)
    return tuple(found.values())


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
