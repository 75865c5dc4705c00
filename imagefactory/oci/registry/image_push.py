"""Pushing images: blobs first and several at once, the manifest last, tags only when asked for.

A manifest is written when everything that it names is in the repository, so that whatever is found by tag or digest
is complete, also after a crash at any point.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from imagefactory.errors.layers import ImageMissingError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE, Image
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry.blob_uploads import OpenStream, UploadOutcome
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest, canonical_json, sha256_of

PARALLEL = 4
"""Parallel uploads: with more, GHCR answers "too many requests"."""

UploadState = Literal["waiting", "uploading", "present", "mounted", "uploaded"]


class PushWatcher(Protocol):
    """Receives the progress of a push."""

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Announce the blobs and their labels."""

    def state(self, key: Digest, state: UploadState, done: int, total: int) -> None:
        """Report the progress of a blob."""


@dataclass(frozen=True)
class IndexEntry:
    """A blob of an image, which is opened only if the registry does not have it."""

    digest: Digest
    size: int
    label: str
    open: OpenStream


@dataclass(frozen=True)
class Pushable:
    """An image to push: its manifest, and the blobs that it names."""

    manifest: bytes
    parts: tuple[IndexEntry, ...]
    platform: str | None = None

    @classmethod
    def of_image(cls, image: Image, locate: Callable[[Digest], Path]) -> Pushable:
        """Prepare an image from its documents; `locate` finds or builds a layer that has to be sent."""
        history = json.loads(image.config).get("history", [])
        names = [str(entry.get("created_by", "layer")).removeprefix("imagefactory ") for entry in history]
        layers = [
            IndexEntry(blob.digest, blob.size, name, _opening(locate, blob.digest))
            for blob, name in zip(image.layers, names, strict=True)
        ]
        config = IndexEntry(
            image.config_digest, len(image.config), "config", lambda: io.BytesIO(image.config)
        )
        return cls(image.manifest, (*layers, config), image.platform)

    @classmethod
    def of_layout(cls, layout: Layout) -> Pushable:
        """Prepare the image of an OCI layout."""
        digest = layout.manifest_digest()
        config = layout.config()
        history = [str(entry.get("created_by", "layer")) for entry in config.get("history", [])]
        digests = layout.layer_digests()
        names = history if len(history) == len(digests) else [digest[7:19] for digest in digests]
        labelled = [*zip(digests, names, strict=True), (layout.config_digest(), "config")]
        try:
            manifest = layout.blob(digest).read_bytes()
        except FileNotFoundError:
            raise ImageMissingError(
                "There is no image here.",
                where=layout.folder,
                why="Its manifest is missing.",
                fix="Build it first: `invoke build --target ...`.",
            ) from None
        parts = (
            IndexEntry(
                blob, layout.size_of(blob), name.removeprefix("imagefactory "), _opening(layout.blob, blob)
            )
            for blob, name in labelled
        )
        return cls(manifest, tuple(parts), f"{config.get('os')}/{config.get('architecture')}")


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    digest: Digest
    descriptor: Descriptor
    outcomes: Mapping[Digest, UploadOutcome]
    uploaded: int
    """The total size of the blobs that had to be sent."""

    def count(self, outcome: UploadOutcome) -> int:
        """Count the blobs with an outcome."""
        return sum(value == outcome for value in self.outcomes.values())


def push_image(
    repository: Repository,
    image: Pushable | Layout,
    *,
    tag: str | None = None,
    mount_from: Sequence[str] = (),
    watcher: PushWatcher | None = None,
    parallel: int = PARALLEL,
) -> Pushed:
    """Push an image by digest, and then point a tag at it if one is given."""
    if isinstance(image, Layout):
        image = Pushable.of_layout(image)
    watcher = watcher or _Nobody()
    # A manifest may name the same blob twice.
    parts = {part.digest: part for part in image.parts}
    watcher.blobs({digest: part.label for digest, part in parts.items()})
    outcomes = _upload_all(repository, list(parts.values()), mount_from, watcher, parallel)
    digest = Digest(f"sha256:{sha256_of(image.manifest)}")
    if repository.resolve(tag or digest) != digest:
        repository.put_manifest(image.manifest, MANIFEST_TYPE, tag)
    system, _, machine = (image.platform or "").partition("/")
    platform = {"architecture": machine, "os": system} if machine else None
    return Pushed(
        digest,
        Descriptor(MANIFEST_TYPE, digest, len(image.manifest), platform=platform),
        outcomes,
        sum(parts[digest].size for digest, outcome in outcomes.items() if outcome == "uploaded"),
    )


def index_document(images: Sequence[Descriptor], annotations: Mapping[str, str] | None = None) -> bytes:
    """Return an index of images for several platforms; registries show the annotations of the index."""
    index: dict[str, object] = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [image.document() for image in images],
    }
    if annotations:
        index["annotations"] = dict(annotations)
    return canonical_json(index)


def _upload_all(
    repository: Repository,
    parts: Sequence[IndexEntry],
    mount_from: Sequence[str],
    watcher: PushWatcher,
    parallel: int,
) -> dict[Digest, UploadOutcome]:
    """Upload blobs, the largest first. If one fails, stop the others and raise its error."""
    stopped = threading.Event()

    def upload(part: IndexEntry) -> UploadOutcome:
        outcome = repository.upload(
            part.digest,
            part.size,
            part.open,
            mount_from=mount_from,
            progress=lambda done: watcher.state(part.digest, "uploading", done, part.size),
            stopped=stopped,
        )
        watcher.state(part.digest, outcome, part.size, part.size)
        return outcome

    with ThreadPoolExecutor(parallel) as pool:
        ordered = sorted(parts, key=lambda part: -part.size)
        futures: dict[Digest, Future[UploadOutcome]] = {
            part.digest: pool.submit(upload, part) for part in ordered
        }
        try:
            wait(futures.values(), return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() for future in futures.values()):
                stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)
    failures = [future.exception() for future in futures.values() if not future.cancelled()]
    for failure in failures:
        if failure is not None and not isinstance(failure, CancelledError):
            raise failure
    return {digest: future.result() for digest, future in futures.items()}


def _opening(locate: Callable[[Digest], Path], digest: Digest) -> Callable[[], BinaryIO]:
    return lambda: locate(digest).open("rb")


class _Nobody:
    def blobs(self, labels: Mapping[Digest, str]) -> None:
        pass

    def state(self, key: Digest, state: UploadState, done: int, total: int) -> None:
        pass
