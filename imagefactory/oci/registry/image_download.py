"""Downloading images by digest: the blobs that the store lacks, in parallel, and a layout of links to them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from imagefactory.errors import BuildError
from imagefactory.oci.image import INDEX_TYPE, Blob, Image
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.oci.registry.artifacts import contents
from imagefactory.oci.registry.image_push import PARALLEL
from imagefactory.oci.registry.repository import DOCKER_INDEX_TYPE, Repository
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, parse_json


def read_image(repository: Repository, digest: Digest) -> Image:
    """Read the documents of an image; both are checked against their digests."""
    reference = str(repository.reference.at(digest))
    manifest = repository.require_manifest(digest)
    if manifest.media_type in (INDEX_TYPE, DOCKER_INDEX_TYPE):
        raise BuildError(
            "no-image",
            f"{reference} is an index of several images.",
            where=reference,
            why="A single image is needed.",
            fix="Use the digest of one of its images; `docker manifest inspect` lists them.",
        )
    layers = contents(repository, manifest)
    try:
        config = repository.blob(Digest(manifest.document()["config"]["digest"]))
        document: Mapping[str, Any] = parse_json(config)
        platform, diff_ids = f"{document['os']}/{document['architecture']}", document["rootfs"]["diff_ids"]
        # How many bytes a layer unpacks to stands in no document.
        blobs = [
            Blob(Digest(diff_id), layer.digest, layer.size, unpacked=0)
            for diff_id, layer in zip(diff_ids, layers, strict=True)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"Its manifest or its configuration cannot be used ({type(error).__name__})."
        raise repository.error("unusable", reference, why) from None
    return Image(platform, config, manifest.body, tuple(blobs))


def download_image(repository: Repository, image: Image, store: Store, folder: Path) -> Layout:
    """Download the layers of an image that the store lacks, and lay it out in a folder."""
    hashed = store.hashed_files()
    layers = {layer.digest: layer for layer in image.layers}  # an image may have the same layer twice
    # The largest first: the last download should be a short one.
    missing = sorted(
        (layer for layer in layers.values() if not hashed.is_sound(store.blob(layer.digest))),
        key=lambda layer: -layer.size,
    )
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda layer: repository.download(layer.digest, layer.size, store.blob(layer.digest)), missing))
    hashed.remember(store.blob(layer.digest) for layer in missing)
    return write_layout(image, str(repository.reference.at(image.digest)), store, folder)
