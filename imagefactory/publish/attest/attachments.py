"""Attaching the SBOM to an image, and signed statements with SBOM and provenance.

Everything is attached to the manifest's digest, so it is in place before a tag points at the image.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from imagefactory.errors import REGISTRY_OUTAGES, InputError, RegistryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import TITLE, Payload, contents
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import Attachment
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project
from imagefactory.publish.attest import bundles, provenance, sbom
from imagefactory.publish.attest.bundles import BadBundleError, Bundle, Statement
from imagefactory.publish.attest.signing import NotTrustedError, Signer, Verifier, read_trusted
from imagefactory.store.digests import Digest

STATEMENTS: Final = {
    provenance.PREDICATE_TYPE: "provenance",
    sbom.PREDICATE_TYPE: "SBOM",
    bundles.SIGNATURE_PREDICATE: "signature",
}
"""What must be attached to an image and signed, by the type of the statement."""
_CONTENT: Final = "dev.sigstore.bundle.content"
_PREDICATE: Final = "dev.sigstore.bundle.predicateType"
_LARGEST_BUNDLE: Final = 2 * sbom.LARGEST
"""A bundle holds its statement in base64."""
_MOST: Final = 1000
"""How many attachments of one type are read."""
_MOST_BYTES: Final = 2 * _LARGEST_BUNDLE
"""What they may have in all; whoever may write to a registry can attach anything to an image."""

Bundles = Iterator[tuple[Digest, Bundle | str]]
"""Attached statements: bundles, or the reasons why they cannot be read."""


def attach_all(repository: Repository, project: Project, plan: Plan, image: Descriptor, signer: Signer | None) -> None:
    """Attach SBOM, provenance and signature to an image.

    Without a signer there is only the SBOM: a statement that anybody could have made proves nothing. Statements that
    the same signer attached earlier stay as they are.
    """
    document, title = sbom.make_sbom(project, plan), {TITLE: "sbom.cdx.json"}
    listed = [Attachment(sbom.MEDIA_TYPE, [Payload(sbom.MEDIA_TYPE, document, title)], title)]
    if signer is not None:
        own = list(trusted_statements(attached_bundles(repository, image.digest), signer.verifier))
        wanted = _statements(project, plan, repository.reference.name, image.digest, document)
        new = [one for one in wanted if not any(_says_the_same(old, one) for _, old in own)]
        listed += [signed_attachment(one, signer.sign(one)) for one in new]
    referrers.attach_many(repository, image, listed)


def attached_bundles(repository: Repository, subject: Digest) -> Bundles:
    return bundles_among(repository, referrers.find(repository, subject, bundles.MEDIA_TYPE))


def bundles_among(repository: Repository, attached: Iterable[Descriptor]) -> Bundles:
    for digest, content in contents_among(repository, attached, bundles.MEDIA_TYPE):
        try:
            yield digest, content if isinstance(content, str) else Bundle.read(content)
        except BadBundleError as error:
            yield digest, str(error)


def contents_among(
    repository: Repository, attached: Iterable[Descriptor], media_type: str
) -> Iterator[tuple[Digest, bytes | str]]:
    """Iterate over the contents of attached artifacts of one type, each once, with the artifact's digest.

    A string is the reason why one is missing. What cannot be read stays without effect: only what is required must be
    there.
    """
    read: set[Digest] = set()
    left = _MOST_BYTES
    for number, descriptor in enumerate(one for one in attached if one.artifact_type == media_type):
        if number == _MOST or left <= 0:
            yield descriptor.digest, f"it is not read, nor what follows: {number} others have all that is read"
            return
        try:
            manifest = repository.manifest(descriptor.digest)
            if manifest is None:
                yield descriptor.digest, "it is listed, but not there"
                continue
            for held in contents(repository, manifest):
                if held.media_type == media_type and held.digest not in read:
                    read.add(held.digest)
                    content = repository.blob(held.digest, max(0, min(left, _LARGEST_BUNDLE)))
                    left -= len(content)
                    yield descriptor.digest, content
        except InputError as error:
            yield descriptor.digest, f"its bytes are not what its name says: {error.why}"
        except RegistryError as error:
            if error.name in REGISTRY_OUTAGES:
                raise
            yield descriptor.digest, f"it cannot be read: {error.what} {error.why}"


def _statements(project: Project, plan: Plan, name: str, subject: Digest, document: bytes) -> list[Statement]:
    source, run = provenance.read_source(project.root), provenance.read_run(project.matrix.source)
    predicates = {
        provenance.PREDICATE_TYPE: provenance.make_provenance(project, plan, source=source, run=run),
        sbom.PREDICATE_TYPE: json.loads(document),
        bundles.SIGNATURE_PREDICATE: {},
    }
    return [Statement(kind, predicate, subject, name) for kind, predicate in predicates.items()]


def trusted_statements(there: Bundles, verifier: Verifier) -> Iterator[tuple[Digest, Statement]]:
    for digest, bundle in there:
        with suppress(NotTrustedError):
            if isinstance(bundle, Bundle):
                yield digest, read_trusted(bundle, verifier)[0]


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
