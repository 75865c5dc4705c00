"""Pushing images: blobs first and in parallel, then the manifest, and a tag only if one is given.

A manifest is written only after all its blobs, so that an image found by tag or digest is complete, even after a crash.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE, Image
from imagefactory.oci.registry.blobs import OpenStream, UploadOutcome
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest, canonical_json, digest_of, parse_json
from imagefactory.store.paths import open_regular

PARALLEL = 4  # parallel uploads: with more, GHCR answers "too many requests"

UploadState = Literal["waiting", "uploading", "present", "uploaded"]


class PushWatcher(Protocol):
    """Receives the progress of a push."""

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Announce the blobs and their labels."""

    def state(self, key: Digest, state: UploadState, done: int, total: int) -> None:
        """Report the progress of a blob."""


@dataclass(frozen=True)
class PushableBlob:
    """A blob of an image, which is opened only if the registry does not have it."""

    digest: Digest
    size: int
    label: str
    open: OpenStream


@dataclass(frozen=True)
class Pushable:
    """An image to push: its manifest and its blobs."""

    manifest: bytes
    parts: Sequence[PushableBlob]
    platform: str

    @classmethod
    def of_image(cls, image: Image, locate: Callable[[Digest], Path]) -> Pushable:
        """Prepare an image; `locate` returns where the file of a layer is, which is opened only to be sent."""
        history = parse_json(image.config).get("history", [])
        names = [str(entry.get("created_by", "layer")).removeprefix("imagefactory ") for entry in history]
        layers = [
            PushableBlob(blob.digest, blob.size, name, partial(open_regular, locate(blob.digest)))
            for blob, name in zip(image.layers, names, strict=True)
        ]
        content = partial(io.BytesIO, image.config)
        config = PushableBlob(image.config_digest, len(image.config), "config", content)
        return cls(image.manifest, (*layers, config), image.platform)


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    digest: Digest
    descriptor: Descriptor
    outcomes: Mapping[Digest, UploadOutcome]
    uploaded: int  # the total size of the blobs that were sent

    def count(self, outcome: UploadOutcome) -> int:
        return sum(value == outcome for value in self.outcomes.values())


def push_image(
    repository: Repository, image: Pushable, *, tag: str | None = None, watcher: PushWatcher | None = None
) -> Pushed:
    # A manifest may name the same blob twice.
    parts = {part.digest: part for part in image.parts}
    if watcher:
        watcher.blobs({digest: part.label for digest, part in parts.items()})
    outcomes = _upload_all(repository, list(parts.values()), watcher)
    digest = digest_of(image.manifest)
    if repository.resolve(tag or digest) != digest:
        repository.put_manifest(image.manifest, MANIFEST_TYPE, tag)
    system, _, machine = image.platform.partition("/")
    platform = {"architecture": machine, "os": system}
    return Pushed(
        digest,
        Descriptor(MANIFEST_TYPE, digest, len(image.manifest), platform=platform),
        outcomes,
        sum(parts[digest].size for digest, outcome in outcomes.items() if outcome == "uploaded"),
    )


def index_document(images: Sequence[Descriptor], annotations: Mapping[str, str] | None = None) -> bytes:
    """Return an index of manifests; registries display its annotations."""
    index: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [image.document() for image in images],
    }
    if annotations:
        index["annotations"] = dict(annotations)
    return canonical_json(index)


def _upload_all(
    repository: Repository, parts: Sequence[PushableBlob], watcher: PushWatcher | None
) -> dict[Digest, UploadOutcome]:
    """Upload blobs, the largest first. If one fails, stop the others and raise its error."""
    stopped = threading.Event()

    def upload(part: PushableBlob) -> UploadOutcome:
        def tell(done: int, state: UploadState = "uploading") -> None:
            if watcher:
                watcher.state(part.digest, state, done, part.size)

        outcome = repository.upload(part.digest, part.size, part.open, progress=tell, stopped=stopped)
        tell(part.size, outcome)
        return outcome

    with ThreadPoolExecutor(PARALLEL) as pool:
        ordered = sorted(parts, key=lambda part: -part.size)
        futures = {part.digest: pool.submit(upload, part) for part in ordered}
        try:
            for future in as_completed(futures.values()):
                future.result()
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {digest: future.result() for digest, future in futures.items()}
