"""A repository in a registry: its blobs, manifests and tags.

Everything that is read is checked against its digest, and nothing is held in memory that may be large.
https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
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
from imagefactory.oci.registry.wire import MOST_TEXT, Answer
from imagefactory.store.digests import Digest, sha256_of
from imagefactory.store.retry import Retry

DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
_ACCEPTED = f"{MANIFEST_TYPE}, {INDEX_TYPE}, {DOCKER_MANIFEST_TYPE}, {DOCKER_INDEX_TYPE}"
_PAGE = 1000
_NEXT = re.compile(r"<([^>]+)>\s*;[^,]*\brel=\"?next\"?")


@dataclass(frozen=True)
class StoredManifest:
    """A manifest or an index, exactly as the registry keeps it."""

    digest: Digest
    media_type: str
    body: bytes

    @property
    def size(self) -> int:
        """Count its bytes."""
        return len(self.body)

    def document(self) -> dict[str, Any]:
        """Read it."""
        document: dict[str, Any] = json.loads(self.body)
        return document

    def descriptor(self) -> Descriptor:
        """Describe it for an index, or as a subject."""
        return Descriptor(self.media_type, self.digest, self.size)


class Repository:
    """What a registry keeps under one name. May be used by several threads."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reference = connection.reference
        self._read = (connection.scope(write=False),)
        self._write = (connection.scope(write=True),)

    @classmethod
    def open(
        cls,
        reference: Reference | str,
        *,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
    ) -> Self:
        """Get ready to talk to a repository; nothing is asked yet. Its tag or digest is not looked at."""
        if isinstance(reference, str):
            reference = Reference.parse(reference)
        return cls(Connection(reference, credentials=credentials, retry=retry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self.connection.close()

    # --- blobs -----------------------------------------------------------------------------------

    def has_blob(self, digest: Digest) -> bool:
        """Ask whether a blob is there."""
        answer = self.connection.ask("HEAD", self._blob(digest), scopes=self._read)
        if answer.ok or answer.status == HTTPStatus.NOT_FOUND:
            return answer.ok
        raise self.connection.failure(answer, "ask for a blob")

    def upload(
        self,
        digest: Digest,
        size: int,
        open_stream: OpenStream,
        *,
        mount_from: Sequence[str] = (),
        progress: Progress | None = None,
        stopped: threading.Event | None = None,
    ) -> UploadOutcome:
        """Bring a blob into the repository, unless it is there; `open_stream` is called only to send it.

        `mount_from` names repositories of the same registry that may have it. Setting `stopped` ends the upload
        with a CancelledError.
        """
        others = [name for name in mount_from if name != self.reference.repository]
        quiet = progress or (lambda _: None)
        stop = stopped or threading.Event()
        return Upload(self.connection, digest, size, open_stream, others, quiet, stop).run()

    def read(self, digest: Digest, offset: int = 0, length: int | None = None) -> bytes:
        """Read a part of a blob. Only a whole blob can be checked: parts are for content that says what it is."""
        data = blob_downloads.read_range(self.connection, digest, offset, length)
        if offset == 0 and length is None:
            self._check(digest, data)
        return data

    def blob(self, digest: Digest, limit: int = 4 * 1024 * 1024) -> bytes:
        """Read a small blob into memory, checked."""
        data = blob_downloads.read_range(self.connection, digest, 0, limit + 1)
        if len(data) > limit:
            raise BlobTooLargeError(
                "A blob is larger than expected.",
                where=f"{self.reference.name}@{digest}",
                why=f"It has more than {limit:,} bytes.",
                fix="Check what the reference names.",
            )
        self._check(digest, data)
        return data

    def download(self, digest: Digest, size: int, path: Path, *, progress: Progress | None = None) -> None:
        """Bring a blob into a file, checked; the file is there whole, or not at all."""
        blob_downloads.download(self.connection, digest, size, path, progress or (lambda _: None))

    # --- manifests and tags ----------------------------------------------------------------------

    def manifest(self, name: str) -> StoredManifest | None:
        """Read a manifest or index by tag or digest; None when there is none."""
        answer = self.connection.ask(
            "GET", self._manifest(name), scopes=self._read, headers={"Accept": _ACCEPTED}
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if not answer.ok:
            raise self.connection.failure(answer, "read a manifest")
        if len(answer.body) > MOST_TEXT:
            raise self._nonsense(name, f"The manifest has more than {MOST_TEXT:,} bytes.")
        told = answer.headers.get("Docker-Content-Digest")
        expected = name if is_digest(name) else told
        digest = Digest(expected if expected and is_digest(expected) else f"sha256:{sha256_of(answer.body)}")
        self._check(digest, answer.body)
        return StoredManifest(digest, self._media_type(name, answer), answer.body)

    def require_manifest(self, name: str) -> StoredManifest:
        """Read a manifest or index that has to be there."""
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
        """Ask which digest a tag points at; None when there is no such tag."""
        headers = {"Accept": _ACCEPTED}
        answer = self.connection.ask("HEAD", self._manifest(name), scopes=self._read, headers=headers)
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if not answer.ok:
            raise self.connection.failure(answer, "ask for a manifest")
        told = answer.headers.get("Docker-Content-Digest", "")
        if is_digest(told):
            return Digest(told)
        manifest = self.manifest(name)  # a registry need not tell the digest of what it sends
        return manifest.digest if manifest else None

    def put_manifest(self, body: bytes, media_type: str, tag: str | None = None) -> Digest:
        """Write a manifest or index: by its digest, or (in the same step) as what a tag points at."""
        return self.write_manifest(body, media_type, tag)[0]

    def write_manifest(
        self, body: bytes, media_type: str, tag: str | None = None
    ) -> tuple[Digest, Mapping[str, str]]:
        """Write a manifest, and give the headers of the answer, too. Writing the same twice does no harm."""
        digest = Digest(f"sha256:{sha256_of(body)}")
        if tag is not None:
            self.reference.tagged(tag)
        answer = self.connection.ask(
            "PUT",
            self._manifest(tag or digest),
            scopes=self._write,
            headers={"Content-Type": media_type},
            body=body,
        )
        if not answer.ok:
            if answer.has_error("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"):
                raise ContentMissingError(
                    f"{self.reference.registry} does not take a manifest before what it names.",
                    where=f"{self.reference.name}@{digest}",
                    why=f"It answered {answer.said()}.",
                    fix="Push the image again: it brings what is missing.",
                )
            raise self.connection.failure(answer, "take a manifest", write=True)
        told = answer.headers.get("Docker-Content-Digest")
        if told and is_digest(told) and told != digest:
            raise DigestMismatchError(
                "The registry keeps another manifest than the one that was sent.",
                where=f"{self.reference.name}@{digest}",
                why=f"It answered with the digest {told}.",
                fix="Do not use what was pushed. A proxy on the way, or the registry, changes what it is sent.",
            )
        return digest, answer.headers

    def tags(self) -> list[str]:
        """List all tags."""
        found: list[str] = []
        url, seen = f"{self.connection.url('tags/list')}?n={_PAGE}", set[str]()
        while url not in seen:
            seen.add(url)
            answer = self.connection.ask("GET", url, scopes=self._read)
            if not answer.ok:
                raise self.connection.failure(answer, "list its tags")
            try:
                found += [str(tag) for tag in json.loads(answer.body).get("tags") or []]
            except (ValueError, AttributeError, TypeError):
                raise self._nonsense("tags/list", "It is not a list of tags in JSON.") from None
            following = _NEXT.search(answer.headers.get("Link", ""))
            if following is None:
                break
            with self.connection.naming_failures():
                url = self.connection.wire.locate(following[1], url)
        return list(dict.fromkeys(found))

    def delete(self, name: Digest | str) -> bool:
        """Delete a manifest by digest (and with it all tags that point at it); say whether it was there."""
        scopes = (Scope.to(self.reference.repository, "pull", "push", "delete"),)
        answer = self.connection.ask("DELETE", self._manifest(name), scopes=scopes)
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED or answer.has_error("UNSUPPORTED"):
            raise RegistryError(
                f"{self.reference.registry} does not delete manifests.",
                where=f"{self.reference.name}@{name}",
                why=f"It answered {answer.said()}.",
                fix="Delete it where the registry lets you: on its web pages, or through an interface of its own.",
            )
        if not answer.ok:
            raise self.connection.failure(answer, "delete a manifest", write=True)
        return True

    # --- names and checks ------------------------------------------------------------------------

    def _blob(self, digest: Digest) -> str:
        return self.connection.url(f"blobs/{digest}")

    def _manifest(self, name: str) -> str:
        return self.connection.url(f"manifests/{name}")

    def _check(self, digest: Digest, data: bytes) -> None:
        found = f"sha256:{sha256_of(data)}"
        if found != digest:
            raise DigestMismatchError(
                "The registry sent something else than it was asked for.",
                where=f"{self.reference.name}@{digest}",
                why=f"What came has the digest {found}.",
                fix="Try again; if it stays, do not use this registry or the proxy in front of it.",
            )

    def _media_type(self, name: str, answer: Answer) -> str:
        try:
            written = json.loads(answer.body).get("mediaType")
        except (ValueError, AttributeError):
            raise self._nonsense(name, "The manifest is not a JSON object.") from None
        told = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        return str(written or told or MANIFEST_TYPE)

    def _nonsense(self, name: str, why: str) -> RegistryError:
        return RegistryError(
            f"{self.reference.registry} answers with something that cannot be used.",
            where=f"{self.reference.name}/{name}",
            why=why,
            fix="Check that the address is that of a container registry.",
        )
