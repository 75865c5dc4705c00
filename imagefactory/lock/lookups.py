"""Looks up what locks pin besides an image's own files: archives of releases, programs, images of others."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from imagefactory.errors import LockError, NetworkError, RegistryError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.locks.files import CompanionLock, LockedCompanion, LockedSource
from imagefactory.store.digests import Sha256
from imagefactory.store.http import RangeFile, new_session
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say

_PATTERNS = {
    "wheel": "*.whl",
    "sdist": "*.tar.gz",
    "amd64 wheel": "*manylinux*x86_64.whl",
    "arm64 wheel": "*manylinux*aarch64.whl",
}


def lock_archive(kind: str, project: str, release: str, indexes: Indexes, why: str) -> LockedSource:
    """Pin the first file of a kind; if there is none, the error says why it is needed."""
    offers = [
        offer
        for offer in indexes.files(project)
        if offer.sha256 and fnmatchcase(offer.file, _PATTERNS[kind]) and _version_of(offer.file) == Version(release)
    ]
    if not offers:
        raise LockError(
            "no-wheel",
            f"The index lacks the {kind} of {project} {release}.",
            where="matrix.yaml",
            why=why,
            fix="Choose another version, or check PIP_INDEX_URL and UV_INDEX_URL (`./inv doctor`).",
        )
    # The same one, in whatever order an index lists them.
    offer = min(offers, key=lambda offer: offer.file)
    with new_session() as session:
        size = offer.local.stat().st_size if offer.local else RangeFile(offer.url, session).size
    return LockedSource(name=project, version=release, file=offer.file, sha256=Sha256(str(offer.sha256)), size=size)


def _version_of(file: str) -> Version | None:
    try:
        return parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
    except ValueError:  # no name of either, or a version of thousands of digits
        return None


def lock_companions(images: Mapping[str, str], old: CompanionLock, say: Say) -> CompanionLock:
    """Pin what the tags of images name now; where a registry does not say, the old digest stays."""
    pinned = []
    digest: str | None
    for name, image in images.items():
        tag = image.rpartition(":")[2]
        digest, why = None, "The registry has no such tag."
        try:
            with Repository.open(image) as repository:
                digest = repository.resolve(tag)
        except (RegistryError, NetworkError) as error:
            why = error.what
        if digest is None:
            digest = old.digest_of(name, tag)
            say(f"- {image} keeps {digest or 'its tag'}: {why}")
        if digest:
            pinned.append(LockedCompanion(name=name, tag=tag, digest=digest))
    return CompanionLock(made_from={}, images=tuple(pinned))
