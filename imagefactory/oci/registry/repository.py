"""A repository in a registry: its blobs, manifests and tags.

All content that is read is checked against its digest, and large content is never held in memory.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

import hashlib
import io
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from imagefactory.errors import RegistryError, clean
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.blobs import Download, OpenStream, Upload, UploadOutcome
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.reference import Descriptor, Reference, is_digest, is_tag
from imagefactory.oci.registry.responses import RegistryRequest, RegistryResponse
from imagefactory.store.atomic import writing
from imagefactory.store.digests import Digest, digest_of, parse_json
from imagefactory.store.http import Retry
from imagefactory.store.progress import Progress

DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
_TYPES = (MANIFEST_TYPE, INDEX_TYPE, DOCKER_MANIFEST_TYPE, DOCKER_INDEX_TYPE)
_ACCEPT = {"Accept": ", ".join(_TYPES)}
_PAGE = 1000  # tags that one request asks for
_MOST_PAGES = 1000
_MOST_LINK = 8192  # characters of a Link header that are searched
_NEXT = re.compile(r"<([^<>]+)>\s*;[^,<]*\brel=\"?next\"?")


@dataclass(frozen=True)
class WriteWindow:
    """Seconds of tag_writes.py: how long a write may take, and how long its writer waits for rivals after it.

    The wait is as long as the longest write wherever there may be rivals.
    """

    longest: float
    wait: float


WINDOW_HERE = WriteWindow(0.25, 0.25)  # for a registry on this machine
WINDOW_AWAY = WriteWindow(3.0, 3.0)


@dataclass(frozen=True)
class StoredManifest:
    """A manifest or an index, byte for byte as the registry stores it."""

    digest: Digest
    media_type: str
    body: bytes

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = parse_json(self.body)
        return document

    def descriptor(self) -> Descriptor:
        return Descriptor(self.media_type, self.digest, len(self.body))


def _type_of(document: Mapping[str, Any], served: str) -> str:
    """Return the media type of a document, which is read as an image by some and as an index by others otherwise."""
    written = document.get("mediaType")
    if written is not None and served in _TYPES and written != served:
        raise ValueError(f"It is served as {served}, and says that it is {clean(str(written)[:100])}.")
    default = INDEX_TYPE if "manifests" in document else MANIFEST_TYPE
    media_type = str(written or (served if served in _TYPES else default))
    foreign = {"config", "layers"} if media_type in (INDEX_TYPE, DOCKER_INDEX_TYPE) else {"manifests"}
    if fields := foreign & document.keys():
        raise ValueError(f"It is {clean(media_type[:100])}, and has {' and '.join(sorted(fields))}.")
    return media_type


class Repository(Connection):
    """The content that a registry stores under one name. Threads may share it."""

    @classmethod
    def open(
        cls, reference: Reference | str, *, credentials: Credentials | None = None, retry: Retry | None = None
    ) -> Self:
        """Prepare for requests to a repository; send none yet, and ignore the reference's tag or digest."""
        named = Reference.parse(reference) if isinstance(reference, str) else reference
        return cls(named, credentials, retry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def window(self) -> WriteWindow:
        return WINDOW_HERE if self.reference.is_local else WINDOW_AWAY

    # --- blobs -----------------------------------------------------------------------------------

    def upload(
        self,
        digest: Digest,
        size: int,
        open_stream: OpenStream,
        *,
        progress: Progress = lambda _: None,
        stopped: threading.Event | None = None,
    ) -> UploadOutcome:
        """Upload a blob, unless the repository has it; `open_stream` is called only to send it.

        Setting `stopped` ends the upload with a CancelledError.
        """
        stop = stopped or threading.Event()
        return Upload(self, digest, size, open_stream, progress, stop).run()

    def require_write(self) -> None:
        """Raise an error unless uploads are accepted: start one, and leave it to the registry."""
        Upload(self, digest_of(b""), 0, io.BytesIO, lambda _: None, threading.Event()).start()

    def blob(self, digest: Digest, limit: int = 4 * 1024 * 1024) -> bytes:
        data = bytearray()
        Download(self, digest, limit + 1, data.extend).run()
        if len(data) > limit:
            raise RegistryError(
                "blob-too-large",
                "A blob is larger than expected.",
                where=f"{self.reference.name}@{digest}",
                why=f"It has more than {limit:,} bytes.",
                fix="Check what the reference names.",
            )
        self._check(digest, bytes(data))
        return bytes(data)

    def download(self, digest: Digest, size: int, path: Path) -> None:
        """Download a blob to a file and check it; the file appears whole, or not at all."""
        hashed, received = hashlib.sha256(), 0
        with writing(path) as file:

            def take(data: bytes) -> None:
                nonlocal received
                received += len(data)
                hashed.update(data)
                file.write(data)

            # One byte more than expected is enough to see that the blob is too long.
            Download(self, digest, size + 1, take).run()
            actual = f"sha256:{hashed.hexdigest()}"
            if (received, actual) != (size, digest):
                why = f"It sent {received:,} bytes (expected: {size:,}) with the digest {actual}."
                raise self.error("mismatch", f"{self.reference.name}@{digest}", why)

    # --- manifests and tags ----------------------------------------------------------------------

    def manifest(self, name: str) -> StoredManifest | None:
        """Read a manifest or index by tag or digest; None if there is none."""
        answer = self._ask_for_manifest("GET", name)
        if answer is None:
            return None
        where = f"{self.reference.name}/{name}"
        try:
            document = parse_json(answer.body)
            served = answer.headers.get("Content-Type", "").partition(";")[0].strip()
            media_type = _type_of(document, served)
        except (ValueError, AttributeError) as error:
            raise self.error("unusable", where, f"The manifest cannot be used: {error}") from None
        header = answer.headers.get("Docker-Content-Digest")
        expected = name if is_digest(name) else header
        digest = Digest(expected) if expected and is_digest(expected) else digest_of(answer.body)
        self._check(digest, answer.body)
        return StoredManifest(digest, media_type, answer.body)

    def require_manifest(self, name: str) -> StoredManifest:
        manifest = self.manifest(name)
        if manifest is None:
            where = f"{self.reference.name}{'@' if is_digest(name) else ':'}{name}"
            raise self.error("absent", where, "It has no manifest of that name.")
        return manifest

    def resolve(self, name: str) -> Digest | None:
        answer = self._ask_for_manifest("HEAD", name)
        if answer is None:
            return None
        header = answer.headers.get("Docker-Content-Digest", "")
        if is_digest(header):
            return Digest(header)
        manifest = self.manifest(name)  # the header is optional
        return manifest.digest if manifest else None

    def put_manifest(
        self, body: bytes, media_type: str, tag: str | None = None, *, stopped: threading.Event | None = None
    ) -> Digest:
        return self.write_manifest(body, media_type, tag, stopped=stopped)[0]

    def write_manifest(
        self, body: bytes, media_type: str, tag: str | None = None, *, stopped: threading.Event | None = None
    ) -> tuple[Digest, Mapping[str, str]]:
        """Write a manifest or index; return its digest and the answer's headers. Repeating it is harmless.

        Setting `stopped` ends retries with a CancelledError.
        """
        digest = digest_of(body)
        if tag is not None:
            self.reference.tagged(tag)
        url = self.url(f"manifests/{tag or digest}")
        headers = {"Content-Type": media_type}
        answer = self.ask(RegistryRequest("PUT", url, "pull,push", headers, body=body, stopped=stopped))
        if answer.has_error("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"):
            why = f"It answered {answer.describe()} to a manifest that names it."
            raise self.error("absent", f"{self.reference.name}@{digest}", why)
        if not answer.ok:
            raise self.failure(answer, "write a manifest")
        header = answer.headers.get("Docker-Content-Digest")
        if header and is_digest(header) and header != digest:
            why = f"It stored a manifest as {header}."
            raise self.error("mismatch", f"{self.reference.name}@{digest}", why)
        return digest, answer.headers

    def tags(self) -> list[str]:
        where = f"{self.reference.name}/tags/list"
        tags: list[str] = []
        url = f"{self.url('tags/list')}?n={_PAGE}"
        for _ in range(_MOST_PAGES):
            answer = self.ask(RegistryRequest("GET", url))
            if not answer.ok:
                raise self.failure(answer, "list tags")
            try:
                page = list(parse_json(answer.body).get("tags") or [])
            except (ValueError, AttributeError, TypeError):
                page = [None]
            if not all(map(is_tag, page)):
                raise self.error("unusable", where, "It is not a list of tags in JSON.")
            tags += page
            if len(tags) > _PAGE * _MOST_PAGES:
                break
            following = _NEXT.search(answer.headers.get("Link", "")[:_MOST_LINK])
            if following is None:
                return list(dict.fromkeys(tags))
            with self.named_failures():
                url = self.locate(following[1], url)
        raise self.error("oversized", where, f"It has more than {_PAGE * _MOST_PAGES:,} tags.")

    def delete(self, name: Digest | str) -> bool:
        """Delete a manifest by digest, and with it all its tags; return whether it existed."""
        url = self.url(f"manifests/{name}")
        answer = self.ask(RegistryRequest("DELETE", url, "pull,push,delete"))
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if not answer.ok:
            raise self.failure(answer, "delete a manifest")
        return True

    def _ask_for_manifest(self, method: str, name: str) -> RegistryResponse | None:
        url = self.url(f"manifests/{name}")
        answer = self.ask(RegistryRequest(method, url, headers=_ACCEPT))
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if not answer.ok:
            raise self.failure(answer, "read a manifest")
        return answer

    def _check(self, digest: Digest, data: bytes) -> None:
        actual = digest_of(data)
        if actual != digest:
            where = f"{self.reference.name}@{digest}"
            raise self.error("mismatch", where, f"It sent content with the digest {actual}.")
