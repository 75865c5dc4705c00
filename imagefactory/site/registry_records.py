"""What a registry says about images: the catalog, and what is attached to the images that tags point at."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from imagefactory.check.smoke.record import SmokeRecord
from imagefactory.errors import FactoryError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest.attachments import STATEMENTS, attached_bundles
from imagefactory.publish.attest.bundles import BadBundleError, Statement
from imagefactory.publish.catalog import Catalog, Published
from imagefactory.publish.history import current_images
from imagefactory.publish.image_contents import Contents, contents_in_registry
from imagefactory.publish.records import read_records
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE, VulnerabilityRecord, vulnerabilities_among
from imagefactory.store.digests import Digest

PARALLEL = 8
LISTED = 200
"""How many published images the page of upgrades describes, the newest."""


@dataclass(frozen=True)
class Evidence:
    """What is attached to an image."""

    smoke: SmokeRecord | None = None
    statements: tuple[str, ...] = ()
    """What somebody signed: signature, SBOM, provenance. Nobody has checked by whom."""
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""
    vulnerabilities: VulnerabilityRecord | None = None


@dataclass(frozen=True)
class RegistryRecords:
    """The records of a registry; without one that was asked, nothing is known to be published."""

    registry: str
    asked: bool = False
    catalog: Catalog = field(default_factory=Catalog)
    evidence: Mapping[Digest, Evidence] = field(default_factory=dict)
    contents: Mapping[Digest, Contents | str] = field(default_factory=dict)
    """What is in the newest images, or why that cannot be read."""


def ask_registry(repository: Repository) -> RegistryRecords:
    """Read the catalog, and the evidence for every image that a tag points at."""
    catalog = read_catalog(repository).catalog
    images = list({found.image.digest: found.image for found in current_images(catalog)}.values())
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = pool.map(lambda image: _evidence(repository, image), images)
        evidence = {image.digest: one for image, one in zip(images, found, strict=True)}
        listed = list(dict.fromkeys([*evidence, *(image.digest for image in catalog.images[-LISTED:])]))
        contents = dict(zip(listed, pool.map(lambda digest: _contents(repository, digest), listed), strict=True))
    return RegistryRecords(repository.reference.name, asked=True, catalog=catalog, evidence=evidence, contents=contents)


def _contents(repository: Repository, digest: Digest) -> Contents | str:
    try:
        return contents_in_registry(repository, digest)
    except FactoryError as error:
        return f"{error.what} {error.why}"


def _evidence(repository: Repository, image: Published) -> Evidence:
    """Read what is attached to an image; one unreadable record does not hide the others."""
    smoke: SmokeRecord | None = None
    statements: set[str] = set()
    problems: list[str] = []
    try:
        smoke = read_records(repository, image.digest, image.plan_key)
    except FactoryError as error:
        problems.append(f"smoke record: {error.what} {error.why}")
    try:
        for _, bundle in attached_bundles(repository, image.digest):
            if isinstance(bundle, str):
                problems.append(f"signed statement: {bundle}")
                continue
            try:
                kind = Statement.read(bundle.payload).predicate_type
                statements.add(STATEMENTS.get(kind, kind))
            except BadBundleError as error:
                problems.append(f"signed statement: {error}")
    except FactoryError as error:
        problems.append(f"attachments: {error.what} {error.why}")
        statements.clear()
    found: VulnerabilityRecord | None = None
    try:
        attached = referrers.find(repository, image.digest, VULNERABILITIES_TYPE)
        found = vulnerabilities_among(repository, attached, image.digest)
    except FactoryError as error:
        problems.append(f"vulnerabilities: {error.what} {error.why}")
    return Evidence(smoke, tuple(sorted(statements)), tuple(problems), found)
