"""Finds the images of an index, and refuses an index that the factory would not publish."""

from collections.abc import Mapping

from imagefactory.errors import TrustError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE, Repository, StoredManifest

_MOST = 32
"""More images than there are platforms."""


def images_of(
    repository: Repository, manifest: StoredManifest
) -> list[tuple[StoredManifest, Mapping[str, str] | None]]:
    """Return an image, or all images of an index with the platforms that it lists them for; raise if it has others."""
    if manifest.media_type not in (INDEX_TYPE, DOCKER_INDEX_TYPE):
        return [(manifest, None)]
    try:
        children = [Descriptor.of(child) for child in manifest.document()["manifests"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"its list of images cannot be read ({type(error).__name__})"
        raise unfit_index(repository, manifest, why) from None
    if not children:
        raise unfit_index(repository, manifest, "it is empty: it lists no image that could be checked")
    if len(children) > _MOST:
        raise unfit_index(repository, manifest, f"it lists {len(children):,} images")
    found: list[tuple[StoredManifest, Mapping[str, str] | None]] = []
    for child in children:
        image = repository.manifest(child.digest)
        wrong = {child.media_type, image.media_type} - {MANIFEST_TYPE, DOCKER_MANIFEST_TYPE} if image else set()
        if image is None or wrong:
            why = f"which is no image: {wrong.pop()}" if wrong else "which the registry does not have"
            raise unfit_index(repository, manifest, f"it lists {child.digest}, {why}")
        found.append((image, child.platform))
    return found


def unfit_index(repository: Repository, index: StoredManifest, why: str) -> TrustError:
    return TrustError(
        "unfit-index",
        "The index is not one that the factory publishes.",
        where=str(repository.reference.at(index.digest)),
        why=f"About this index: {why}.",
        fix="You: do not use it; `./inv history` lists the digests that were published, check one of those. Whoever "
        "publishes: move the tag back (`./inv publish`), and find out who else may write to the repository.",
    )
