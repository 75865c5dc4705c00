"""Attaching the SBOM to an image, and signed statements with SBOM and provenance.

Everything is attached to the manifest's digest, so it is in place before a tag points at the image.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.referrers import Attachment
from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project
from imagefactory.publish.attest import bundles, provenance, sbom
from imagefactory.publish.attest.bundles import Bundle, Statement
from imagefactory.publish.attest.signing import NotTrustedError, Signer, Verifier, read_trusted
from imagefactory.publish.dossier import Dossier
from imagefactory.store.digests import Digest, parse_json

STATEMENTS: Final = {
    provenance.PREDICATE_TYPE: "provenance",
    sbom.PREDICATE_TYPE: "SBOM",
    bundles.SIGNATURE_PREDICATE: "signature",
}
"""What must be attached to an image and signed, by the type of the statement."""
_CONTENT: Final = "dev.sigstore.bundle.content"
_PREDICATE: Final = "dev.sigstore.bundle.predicateType"


def attach_all(project: Project, plan: Plan, dossier: Dossier, signer: Signer | None) -> Dossier:
    """Attach SBOM, provenance and signature to an image.

    Without a signer there is only the SBOM: a statement that anybody could have made proves nothing. Statements that
    the same signer attached earlier stay as they are.
    """
    document, title = sbom.make_sbom(project, plan), {TITLE: "sbom.cdx.json"}
    attachments = [Attachment(sbom.MEDIA_TYPE, [Payload(sbom.MEDIA_TYPE, document, title)], title)]
    if signer is not None:
        signed = list(trusted_statements(dossier, signer.verifier))
        statements = _statements(project, plan, dossier.repository.reference.name, dossier.image, document)
        new = [statement for statement in statements if not any(_says_the_same(old, statement) for old in signed)]
        attachments += [signed_attachment(statement, signer.sign(statement)) for statement in new]
    return dossier.attach(*attachments)


def _statements(project: Project, plan: Plan, name: str, subject: Digest, document: bytes) -> list[Statement]:
    source, run = provenance.read_source(project.root), provenance.read_run(project.matrix.effective_source)
    predicates = {
        provenance.PREDICATE_TYPE: provenance.make_provenance(project, plan, source=source, run=run),
        sbom.PREDICATE_TYPE: parse_json(document),
        bundles.SIGNATURE_PREDICATE: {},
    }
    return [Statement(kind, predicate, subject, name) for kind, predicate in predicates.items()]


def trusted_statements(dossier: Dossier, verifier: Verifier) -> Iterator[Statement]:
    """Iterate over the attached statements that a trusted signer made, whatever image they are about."""
    for _, bundle in dossier.bundles:
        with suppress(NotTrustedError):
            if isinstance(bundle, Bundle):
                yield read_trusted(bundle, verifier)[0]


def _says_the_same(old: Statement, new: Statement) -> bool:
    """Compare statements. Provenance may name another run: a later one only built the same image again."""
    if (old.predicate_type, old.subject) != (new.predicate_type, new.subject):
        return False
    if new.predicate_type != provenance.PREDICATE_TYPE:
        return old.predicate == new.predicate
    return bool(old.predicate.get("buildDefinition") == new.predicate["buildDefinition"])


def signed_attachment(statement: Statement, bundle: bytes) -> Attachment:
    annotations = {_CONTENT: "dsse-envelope", _PREDICATE: statement.predicate_type}
    return Attachment(bundles.MEDIA_TYPE, [Payload(bundles.MEDIA_TYPE, bundle)], annotations)
