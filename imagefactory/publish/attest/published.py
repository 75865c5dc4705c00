"""Attesting an image that is already in a registry: it has to be the one that this checkout plans."""

from __future__ import annotations

import json

from imagefactory.errors.layers import VerificationError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.make import make_plan
from imagefactory.publish.attest.attachments import attach_all
from imagefactory.publish.attest.signing import Signer
from imagefactory.store.digests import Digest


def attest(project: Project, cell: Cell, image: str, signer: Signer | None) -> list[Digest]:
    """Attach SBOM, provenance and signature to an image, if it is the one that this checkout plans."""
    plan = make_plan(project, cell)
    with Repository.open(image) as repository:
        reference = repository.reference
        manifest = repository.require_manifest(reference.digest or reference.tag or "latest")
        planned = _plan_label(repository, manifest)
        if planned != plan.key:
            raise VerificationError(
                f"The image is not {cell} as this checkout plans it.",
                where=str(reference),
                why=f"It was made from the plan {planned or '(none)'}; here it is {plan.key}.",
                fix="Name its target (--target), check out its commit, or push the image again.",
            )
        return attach_all(repository, project, plan, manifest, signer)


def _plan_label(repository: Repository, manifest: StoredManifest) -> str | None:
    try:
        config = json.loads(repository.blob(Digest(manifest.document()["config"]["digest"])))
        return str(config["config"]["Labels"]["imagefactory.plan"])
    except (ValueError, KeyError, TypeError):  # an index, or an image of somebody else
        return None
