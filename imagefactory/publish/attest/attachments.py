"""Attaching the SBOM to an image, and signed statements with SBOM and provenance.

Everything is attached to the manifest's digest, so it is in place before a tag points at the image.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from imagefactory.errors.store import DigestMismatchError
from imagefactory.locks.project import Project
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload, contents
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository, StoredManifest
from imagefactory.plan.plan import Plan
from imagefactory.publish.attest import bundles, provenance, sbom
from imagefactory.publish.attest.bundles import BadBundleError, Bundle, Statement
from imagefactory.publish.attest.signing import NotTrustedError, Signer, read_trusted
from imagefactory.store.digests import Digest

SBOM_NAME: Final = "sbom.cdx.json"
_TITLE: Final = "org.opencontainers.image.title"
_CONTENT: Final = "dev.sigstore.bundle.content"
_PREDICATE: Final = "dev.sigstore.bundle.predicateType"
_LARGEST_BUNDLE: Final = 2 * sbom.LARGEST
"""A bundle holds its statement in base64."""


def attach_all(
    repository: Repository,
    project: Project,
    plan: Plan,
    manifest: StoredManifest | Descriptor,
    signer: Signer | None,
) -> list[Digest]:
    """Attach SBOM, provenance and signature to an image; return the digests of what is attached now.

    Without a signer there is only the SBOM: a statement that anybody could have made proves nothing. Statements that
    the same signer attached earlier stay as they are.
    """
    descriptor = _descriptor(manifest)
    document = sbom.make_sbom(project, plan)
    payload = Payload(sbom.MEDIA_TYPE, document, {_TITLE: SBOM_NAME})
    attached = [
        referrers.attach(repository, descriptor, sbom.MEDIA_TYPE, [payload], {_TITLE: SBOM_NAME}).digest
    ]
    if signer is None:
        return attached
    there = {
        (statement.predicate_type, statement.subject): (digest, statement)
        for digest, statement in _statements_of(repository, descriptor.digest, signer)
    }
    for statement in _statements(project, plan, repository.reference.name, descriptor.digest, document):
        digest, old = there.get((statement.predicate_type, statement.subject), (None, None))
        if digest is not None and old is not None and _says_the_same(old, statement):
            attached.append(digest)
        else:
            attached.append(_attach_statement(repository, descriptor, statement, signer))
    return attached


def attached_bundles(repository: Repository, subject: Digest) -> Iterator[tuple[Digest, Bundle | str]]:
    """Iterate over the signed statements of an image: a bundle, or the reason why it cannot be read."""
    for descriptor in referrers.find(repository, subject, bundles.MEDIA_TYPE):
        for digest, content in attached_contents(repository, descriptor, bundles.MEDIA_TYPE):
            if isinstance(content, str):
                yield digest, content
                continue
            try:
                yield digest, Bundle.read(content)
            except BadBundleError as error:
                yield digest, str(error)


def attached_contents(
    repository: Repository, descriptor: Descriptor, media_type: str
) -> Iterator[tuple[Digest, bytes | str]]:
    """Iterate over the contents of an attached artifact, with its digest; a string is the reason why one is missing."""
    try:
        manifest = repository.manifest(descriptor.digest)
        if manifest is None:
            yield descriptor.digest, "it is listed, but not there"
            return
        for held in contents(repository, manifest):
            if held.media_type == media_type:
                yield descriptor.digest, repository.blob(held.digest, _LARGEST_BUNDLE)
    except DigestMismatchError as error:
        yield descriptor.digest, f"its bytes are not what its name says: {error.why}"


def _statements(project: Project, plan: Plan, name: str, subject: Digest, document: bytes) -> list[Statement]:
    run = provenance.read_run(project.matrix.source)
    made = provenance.make_provenance(project, plan, source=provenance.read_source(project.root), run=run)
    predicates: Mapping[str, dict[str, Any]] = {
        provenance.PREDICATE_TYPE: made,
        sbom.PREDICATE_TYPE: json.loads(document),
        bundles.SIGNATURE_PREDICATE: {},
    }
    return [Statement(kind, predicate, subject, name) for kind, predicate in predicates.items()]


def _statements_of(
    repository: Repository, subject: Digest, signer: Signer
) -> Iterator[tuple[Digest, Statement]]:
    """Find the statements that this signer attached to an image before."""
    for digest, bundle in attached_bundles(repository, subject):
        if isinstance(bundle, Bundle):
            try:
                statement, _ = read_trusted(bundle, signer.verifier)
            except NotTrustedError:
                continue
            yield digest, statement


def _says_the_same(old: Statement, new: Statement) -> bool:
    """Compare statements. Provenance may name another run: a later one only built the same image again."""
    if new.predicate_type != provenance.PREDICATE_TYPE:
        return old.predicate == new.predicate
    same = "buildDefinition"
    return bool(old.predicate.get(same) == new.predicate[same])


def _attach_statement(
    repository: Repository, subject: Descriptor, statement: Statement, signer: Signer
) -> Digest:
    annotations = {_CONTENT: "dsse-envelope", _PREDICATE: statement.predicate_type}
    payload = Payload(bundles.MEDIA_TYPE, signer.sign(statement))
    return referrers.attach(repository, subject, bundles.MEDIA_TYPE, [payload], annotations).digest


def _descriptor(manifest: StoredManifest | Descriptor) -> Descriptor:
    if isinstance(manifest, Descriptor):
        return manifest
    return Descriptor(manifest.media_type, manifest.digest, manifest.size)
