"""A repository in a registry: its blobs, manifests and tags.

All content that is read is checked against its digest, and large content is never held in memory.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from imagefactory.environment.progress import Progress
from imagefactory.errors.registry import BlobTooLargeError, ContentMissingError, RegistryError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import blob_downloads
from imagefactory.oci.registry.auth import Scope
from imagefactory.oci.registry.blob_uploads import OpenStream, Upload, UploadOutcome
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.reference import Reference, is_digest
from imagefactory.oci.registry.wire import Answer, RegistryRequest
from imagefactory.store.digests import Digest, digest_of
from imagefactory.store.json_text import parse_json
from imagefactory.store.retry import Retry

DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
_ACCEPT = {"Accept": f"{MANIFEST_TYPE}, {INDEX_TYPE}, {DOCKER_MANIFEST_TYPE}, {DOCKER_INDEX_TYPE}"}
_PAGE = 1000
_MOST_PAGES = 1000
_MOST_LINK = 8192
_NEXT = re.compile(r"<([^>]+)>\s*;[^,]*\brel=\"?next\"?")


@dataclass(frozen=True)
class StoredManifest:
    """A manifest or an index, byte for byte as the registry stores it."""

    digest: Digest
    media_type: str
    body: bytes

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.body)

    def document(self) -> dict[str, Any]:
        """Return the parsed JSON."""
        document: dict[str, Any] = parse_json(self.body)
        return document

    def descriptor(self) -> Descriptor:
        """Return a descriptor for an index, or for a subject."""
        return Descriptor(self.media_type, self.digest, self.size)


class Repository:
    """The content that a registry stores under one name. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reference = connection.reference

    @classmethod
    def open(
        cls,
        reference: Reference | str,
        *,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
    ) -> Self:
        """Prepare for requests to a repository; send none yet, and ignore the reference's tag or digest."""
        if isinstance(reference, str):
            reference = Reference.parse(reference)
        return cls(Connection(reference, credentials, retry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.wire.close()

    # --- blobs -----------------------------------------------------------------------------------

    def has_blob(self, digest: Digest) -> bool:
        """Return whether the repository has a blob."""
        return self.connection.has_blob(digest, self.connection.reading)

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
        return Upload(self.connection, digest, size, open_stream, progress, stop).run()

    def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Read up to `length` bytes of a blob. The digest covers only whole blobs, so the caller has to check them."""
        return blob_downloads.read_range(self.connection, digest, offset, length)

    def blob(self, digest: Digest, limit: int = 4 * 1024 * 1024) -> bytes:
        """Read a small blob into memory and check it."""
        data = self.read(digest, 0, limit + 1)
        if len(data) > limit:
            raise BlobTooLargeError(
                "A blob is larger than expected.",
                where=f"{self.reference.name}@{digest}",
                why=f"It has more than {limit:,} bytes.",
                fix="Check what the reference names.",
            )
        self._check(digest, data)
        return data

    def download(self, digest: Digest, size: int, path: Path) -> None:
        """Download a blob to a file and check it; the file appears whole, or not at all."""
        blob_downloads.download(self.connection, digest, size, path)

    # --- manifests and tags ----------------------------------------------------------------------

    def manifest(self, name: str) -> StoredManifest | None:
        """Read a manifest or index by tag or digest; None if there is none."""
        answer = self._ask_for_manifest("GET", name)
        if answer is None:
            return None
        self.connection.refuse_large(answer.body, f"{self.reference.name}/{name}")
        told = answer.headers.get("Docker-Content-Digest")
        expected = name if is_digest(name) else told
        digest = Digest(expected) if expected and is_digest(expected) else digest_of(answer.body)
        self._check(digest, answer.body)
        return StoredManifest(digest, self._media_type(name, answer), answer.body)

    def require_manifest(self, name: str) -> StoredManifest:
        """Read a manifest or index, and raise an error if there is none."""
        manifest = self.manifest(name)
        if manifest is None:
            separator = "@" if is_digest(name) else ":"
            raise ContentMissingError(
                "There is no such image.",
                where=f"{self.reference.name}{separator}{name}",
                why="The registry has no manifest of that name.",
                fix="Check the tag or digest; `invoke history` lists what was published.",
            )
        return manifest

    def resolve(self, name: str) -> Digest | None:
        """Return the digest that a tag points at; None if there is no such tag."""
        answer = self._ask_for_manifest("HEAD", name)
        if answer is None:
            return None
        told = answer.headers.get("Docker-Content-Digest", "")
        if is_digest(told):
            return Digest(told)
        manifest = self.manifest(name)  # the header is optional
        return manifest.digest if manifest else None

    def put_manifest(
        self, body: bytes, media_type: str, tag: str | None = None, *, stopped: threading.Event | None = None
    ) -> Digest:
        """Write a manifest or index, and in the same step point a tag at it if one is given."""
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
        request = RegistryRequest(
            "PUT", self._manifest(tag or digest), {"Content-Type": media_type}, body=body
        )
        answer = self.connection.ask(request, self.connection.writing, stopped)
        if answer.has_error("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"):
            raise ContentMissingError(
                f"{self.reference.registry} does not accept a manifest before its content.",
                where=f"{self.reference.name}@{digest}",
                why=f"It answered {answer.said()}.",
                fix="Push the image again, which uploads what is missing.",
            )
        if not answer.ok:
            raise self.connection.failure(answer, "write a manifest", write=True)
        told = answer.headers.get("Docker-Content-Digest")
        if told and is_digest(told) and told != digest:
            raise DigestMismatchError(
                "The registry stored another manifest than the one that was sent.",
                where=f"{self.reference.name}@{digest}",
                why=f"It answered with the digest {told}.",
                fix="Do not use what was pushed. The registry, or a proxy in front of it, changes content.",
            )
        return digest, answer.headers

    def tags(self) -> list[str]:
        """List all tags."""
        found: list[str] = []
        url, seen = f"{self.connection.url('tags/list')}?n={_PAGE}", set[str]()
        while True:
            if url in seen or len(seen) == _MOST_PAGES:
                why = f"Its pages form a circle, or are more than {_MOST_PAGES:,}."
                raise self.connection.unbounded(f"{self.reference.name}/tags/list", why)
            seen.add(url)
            answer = self.connection.ask(RegistryRequest("GET", url), self.connection.reading)
            if not answer.ok:
                raise self.connection.failure(answer, "list tags")
            try:
                page = self.connection.parse(answer.body, f"{self.reference.name}/tags/list")
                found += [str(tag) for tag in page.get("tags") or []]
            except (ValueError, AttributeError, TypeError):
                raise self._nonsense("tags/list", "It is not a list of tags in JSON.") from None
            following = _NEXT.search(answer.headers.get("Link", "")[:_MOST_LINK])
            if following is None:
                return list(dict.fromkeys(found))
            with self.connection.naming_failures():
                url = self.connection.wire.locate(following[1], url)

    def delete(self, name: Digest | str) -> bool:
        """Delete a manifest by digest, and with it all its tags; return whether it existed."""
        scope = Scope.to(self.reference.repository, "pull", "push", "delete")
        answer = self.connection.ask(RegistryRequest("DELETE", self._manifest(name)), scope)
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED or answer.has_error("UNSUPPORTED"):
            raise RegistryError(
                f"{self.reference.registry} does not delete manifests.",
                where=f"{self.reference.name}@{name}",
                why=f"It answered {answer.said()}.",
                fix="Delete it on the registry's web pages, or through its own API.",
            )
        if not answer.ok:
            raise self.connection.failure(answer, "delete a manifest", write=True)
        return True

    # --- names and checks ------------------------------------------------------------------------

    def _manifest(self, name: str) -> str:
        return self.connection.url(f"manifests/{name}")

    def _ask_for_manifest(self, method: str, name: str) -> Answer | None:
        request = RegistryRequest(method, self._manifest(name), _ACCEPT)
        answer = self.connection.ask(request, self.connection.reading)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if not answer.ok:
            raise self.connection.failure(answer, "read a manifest")
        return answer

    def _check(self, digest: Digest, data: bytes) -> None:
        found = digest_of(data)
        if found != digest:
            raise self.connection.mismatch(digest, f"It sent content with the digest {found}.")

    def _media_type(self, name: str, answer: Answer) -> str:
        try:
            written = self.connection.parse(answer.body, f"{self.reference.name}/{name}").get("mediaType")
        except (ValueError, AttributeError):
            raise self._nonsense(name, "The manifest is not a JSON object.") from None
        told = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        return str(written or told or MANIFEST_TYPE)

    def _nonsense(self, name: str, why: str) -> RegistryError:
        return self.connection.nonsense(f"{self.reference.name}/{name}", why)
