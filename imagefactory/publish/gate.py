"""What stands between an image and its tags: it must be this plan's image, locked, audited and tested."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from imagefactory.errors.publishing import NotPromotableError, NotStagedError
from imagefactory.locks.kernels import AUDIT_LABEL, recorded_audit
from imagefactory.locks.project import Project
from imagefactory.oci.blob import Blob
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import LOCKED_LABEL, Layer, Plan
from imagefactory.publish.catalog import ImagePart, Published
from imagefactory.publish.smoke_records import read_records
from imagefactory.publish.tags import KEY_DIGITS, fixed_tag, staging_tag
from imagefactory.smoke.levels import required_levels
from imagefactory.smoke.record import SmokeRecord
from imagefactory.store.digests import Digest

_LONGEST = 300
_BUNDLES = ("pure-bundle", "platform-bundle")


@dataclass(frozen=True)
class Candidate:
    """An image that may get its tags."""

    plan: Plan
    manifest: StoredManifest
    image: Published


def candidate(project: Project, repository: Repository, plan: Plan) -> Candidate:
    """Check what was pushed for a plan; refuse with everything that is missing at once."""
    manifest = staged(project, repository, plan)
    record = read_records(repository, manifest.digest, plan.key)
    missing = [*_unlocked(repository, plan, manifest), *_untested(project, plan, record)]
    passed, reasons = audit_verdict(project, plan)
    if not passed:
        missing += [f"audit: {reason}" for reason in reasons]
    if missing or record is None:
        raise NotPromotableError(
            f"{plan.target} may not be published yet.",
            where=f"{repository.reference.name}@{manifest.digest}",
            why="; ".join(missing).rstrip(".") + ".",
            fix="What failed has to be mended; the records attached to the image (and build/smoke) tell the whole "
            f"story. What was not run, `invoke publish --target {plan.target}/{plan.cell.machine}` runs.",
        )
    return Candidate(plan, manifest, describe(plan, manifest, record))


def staged(project: Project, repository: Repository, plan: Plan) -> StoredManifest:
    """Find what was pushed for a plan, and make sure that it is that."""
    tag = staging_tag(plan.key)
    manifest = repository.manifest(tag)
    if manifest is None:
        raise NotStagedError(
            f"{plan.target} has not been pushed as it is now.",
            where=str(repository.reference.tagged(tag)),
            why="The registry has no such tag; the matrix, a lock or a mod may have changed since the last push.",
            fix=f"Run `invoke push --target {plan.target}/{plan.cell.machine}`, or `invoke publish`.",
        )
    known = KnownLayers(project.known_layers).image(plan)
    expected = known.digest if known else _as_planned(repository, plan, manifest)
    if manifest.digest != expected:
        raise NotStagedError(
            f"What lies in the registry for {plan.target} is another image.",
            where=str(repository.reference.tagged(tag)),
            why=f"It is {manifest.digest}; the plan makes {expected or 'an image of another shape'}.",
            fix="Push it again. If that does not help, find out who writes to this repository.",
        )
    return manifest


def _as_planned(repository: Repository, plan: Plan, manifest: StoredManifest) -> Digest | None:
    """Work out the digest of a plan's image from the layers that a manifest names; None when that cannot be."""
    document = manifest.document()
    try:
        config = json.loads(repository.blob(Digest(document["config"]["digest"])))
        blobs = [
            Blob(diff_id=Digest(diff_id), digest=Digest(layer["digest"]), size=layer["size"], unpacked=0)
            for diff_id, layer in zip(config["rootfs"]["diff_ids"], document["layers"], strict=True)
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return make_image(plan, blobs).digest if len(blobs) == len(plan.layers) else None


def _unlocked(repository: Repository, plan: Plan, manifest: StoredManifest) -> list[str]:
    config = json.loads(repository.blob(Digest(manifest.document()["config"]["digest"])))
    labels = config.get("config", {}).get("Labels", {})
    if plan.locked and labels.get(LOCKED_LABEL) == "yes":
        return []
    return ["locked: the image has files that the lock does not name"]


def _untested(project: Project, plan: Plan, record: SmokeRecord | None) -> list[str]:
    required: Sequence[str] = required_levels(project.matrix, plan.arch)
    if record is None:
        return [f"smoke: no record for this digest ({', '.join(required)} are required)"]
    # The record itself, attached to the image, has every test that failed.
    return [f"smoke {shorten(missing, _LONGEST, placeholder=' ...')}" for missing in record.missing(required)]


def describe(plan: Plan, manifest: StoredManifest, record: SmokeRecord) -> Published:
    """Write down what the catalog keeps of an image."""
    document = manifest.document()
    mods = plan.config.labels["imagefactory.mods"]
    return Published(
        digest=manifest.digest,
        model=plan.model,
        vllm=plan.vllm,
        arch=plan.arch,
        platform=plan.platform,
        plan_key=plan.key,
        tag=fixed_tag(plan.cell, plan.key),
        kernels=plan.kernels,
        mods=() if mods == "none" else tuple(mods.split()),
        size=manifest.size + document["config"]["size"] + sum(layer["size"] for layer in document["layers"]),
        made_of=made_of(plan),
        smoke={level: result.outcome for level, result in record.levels.items()},
    )


def made_of(plan: Plan) -> dict[str, ImagePart]:
    """Say what an image is made of, in the order of its layers and as far as two images are told apart by it."""
    return dict(_part(layer) for layer in plan.layers)


def _part(layer: Layer) -> tuple[str, ImagePart]:
    version = layer.inputs[0].name.split("-")[1] if layer.kind == "wheel" else ""
    name = layer.kind if layer.kind in _BUNDLES else f"{layer.kind} {layer.name}"
    return name, ImagePart(key=layer.key[:KEY_DIGITS], version=version)


def audit_verdict(project: Project, plan: Plan) -> tuple[bool, list[str]]:
    """Say whether an image may be published as far as its kernels go, and if not, why."""
    lock, arch = project.wheel_lock(plan.cell), project.matrix.archs[plan.arch]
    audit = recorded_audit(lock, arch, project.kernel_lock)
    reasons = [f"{verdict.library}: {verdict.why}" for verdict in audit.verdicts if not verdict.passes]
    if audit.result == "not-audited":
        reasons.append(f"{audit.summary}; `invoke lock` does that")
    stated = plan.config.labels.get(AUDIT_LABEL)
    if stated != audit.result:
        reasons.append(f"the image says {stated or 'nothing'}, and the record now says {audit.result}")
    return not reasons, reasons
