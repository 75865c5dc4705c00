"""Uploading a blob: ask first, mount where possible, else one streamed request; never twice without need.

The form is the one that GHCR takes: a POST that opens an upload and one PUT with the whole body. Chunks with
Content-Range are limited to 4 MiB there. A PUT whose answer is unclear (cut off, 5xx, or BLOB_UPLOAD_UNKNOWN for an
upload that was committed) may have succeeded, so the registry is asked for the blob before anything is sent again.
Uploads that are given up are left to the registry, which forgets them: to cancel one takes a right to delete.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO, Literal, Self

import requests

from imagefactory.environment.progress import Progress
from imagefactory.errors import FactoryError
from imagefactory.errors.layers import ImageMissingError
from imagefactory.errors.registry import BlobTooLargeError, RegistryError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.registry.auth import Scope
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.wire import BLOCK, Answer, judge_answer
from imagefactory.store.digests import Digest
from imagefactory.store.retry import Again

UploadOutcome = Literal["present", "mounted", "uploaded"]
OpenStream = Callable[[], BinaryIO]

LARGEST = {"ghcr.io": 10_000_000_000}
"""Bytes that a registry takes as one blob, where it says so."""
LONGEST = {"ghcr.io": 600.0}
"""Seconds after which a registry ends an upload, where it says so."""
_TIMEOUT = (60.0, 300.0)
"""Seconds for a block to be taken, and for the registry to commit: GHCR needs some 10 s for a large layer."""
_CHECKS = 3
"""How often to ask for a blob that was sent whole: a commit may still be going on behind an early error."""


@dataclass(frozen=True)
class Upload:
    """A blob that a repository is to have."""

    connection: Connection
    digest: Digest
    size: int
    open_stream: OpenStream
    mount_from: Sequence[str]
    progress: Progress
    stopped: threading.Event

    def run(self) -> UploadOutcome:
        """Bring the blob into the repository, unless it is there."""
        self._check_size()
        if self._is_there():
            return "present"
        failures = 0
        while True:
            location = self._open()
            if location is None:
                return "mounted"
            body = _Counted(self)
            started = time.monotonic()
            problem = self._put(location, body)
            if problem is None:
                return "uploaded"
            seconds = time.monotonic() - started
            failures += 1
            if self._arrived(problem, failures, whole=body.is_spent):
                return "uploaded"
            self._give_up_if_too_slow(seconds)
            self._give_up_if_hopeless(problem, failures)

    # --- the steps -------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        # The token to write is good for asking, too: one request to the token server instead of two.
        url = self.connection.url(f"blobs/{self.digest}")
        answer = self.connection.ask("HEAD", url, scopes=self._scopes(), stopped=self.stopped)
        if answer.ok:
            return True
        if answer.status == HTTPStatus.NOT_FOUND:
            return False
        raise self.connection.failure(answer, "ask for a blob", write=True)

    def _open(self) -> str | None:
        """Open an upload and return its address; None if the blob was mounted instead."""
        location: str | None = None
        for other in self.mount_from:
            answer = self._try_mount(other)
            if answer is None or not answer.ok:
                continue
            if answer.status == HTTPStatus.CREATED:
                return None
            location = self._location(answer)
        return location or self._location(self._post({}, self._scopes()))

    def _try_mount(self, other: str) -> Answer | None:
        """Ask for a blob of another repository. A registry may refuse for any reason: then it is uploaded."""
        scopes = (*self._scopes(), Scope.to(other, "pull"))
        try:
            return self._post({"mount": self.digest, "from": other}, scopes)
        except CancelledError:
            raise
        except FactoryError:
            return None

    def _post(self, params: dict[str, str | list[str]], scopes: tuple[Scope, ...]) -> Answer:
        url = self.connection.url("blobs/uploads/")
        answer = self.connection.ask(
            "POST", url, scopes=scopes, params=params, body=b"", stopped=self.stopped
        )
        if answer.status not in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
            raise self.connection.failure(answer, "open an upload", write=True)
        return answer

    def _location(self, answer: Answer) -> str:
        location = answer.headers.get("Location")
        if answer.status != HTTPStatus.ACCEPTED or not location:
            raise RegistryError(
                f"{self.connection.reference.registry} does not say where to upload to.",
                where=self.connection.reference.name,
                why=f"It answered {answer.said()}, without a Location.",
                fix="Check that the address is that of a container registry.",
            )
        with self.connection.naming_failures():
            return self.connection.wire.locate(location, answer.url)

    def _put(self, location: str, body: _Counted) -> Answer | requests.RequestException | None:
        """Send the blob; return what went wrong, if anything."""
        separator = "&" if "?" in location else "?"  # a Location keeps the query that it came with
        try:
            with body:
                answer = self.connection.ask_once(
                    "PUT",
                    f"{location}{separator}digest={self.digest.replace(':', '%3A')}",
                    scopes=self._scopes(),
                    headers={"Content-Type": "application/octet-stream"},
                    # Of an empty body, requests would not tell the length.
                    body=body if self.size else b"",
                    timeout=_TIMEOUT,
                    replay=False,
                )
        except requests.RequestException as error:
            return error
        return None if answer.ok else answer

    def _arrived(self, problem: Answer | requests.RequestException, failures: int, *, whole: bool) -> bool:
        """Determine whether a blob is there although the registry did not say so."""
        unclear = not isinstance(problem, Answer) or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        again = judge_answer(problem) or Again()
        for check in range(_CHECKS if whole and unclear else 1):
            self.connection.retry.wait(failures + check, again, self.stopped)
            if self._is_there():
                self.progress(self.size)
                return True
        return False

    def _give_up_if_hopeless(self, problem: Answer | requests.RequestException, failures: int) -> None:
        if isinstance(problem, Answer) and problem.has_error("DIGEST_INVALID"):
            self._check_content()
        again = self._judge(problem)
        if again is not None and not self.connection.retry.is_spent(failures, again):
            return
        if isinstance(problem, Answer):
            raise self.connection.failure(problem, "take a blob", write=True)
        with self.connection.naming_failures():
            raise problem

    def _give_up_if_too_slow(self, seconds: float) -> None:
        """Do not send for ten minutes again what was not taken because it took ten minutes."""
        registry = self.connection.reference.registry
        most = LONGEST.get(registry)
        if most is None or seconds < most:
            return
        raise RegistryError(
            f"A layer of {self.size:,} bytes takes longer to upload than {registry} waits.",
            where=f"{self.connection.reference.name}@{self.digest}",
            why=f"It was not taken after {seconds:.0f} s; {registry} ends uploads after {most:.0f} s.",
            fix=f"Push over a faster connection: this layer needs {self.size / most / 1e6:.1f} MB/s, and up to four "
            "are sent at once. What was uploaded before stays there.",
        )

    @staticmethod
    def _judge(problem: Answer | requests.RequestException) -> Again | None:
        """Judge whether another upload may end better."""
        if not isinstance(problem, Answer):
            return judge_answer(problem)
        # A token that expired, an upload that was forgotten, a body that was damaged on its way.
        may_pass = problem.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND) or problem.has_error(
            "BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID", "BLOB_UNKNOWN", "DIGEST_INVALID", "SIZE_INVALID"
        )
        return problem.again() or (Again() if may_pass else None)

    # --- what is sent ----------------------------------------------------------------------------

    def _scopes(self) -> tuple[Scope, ...]:
        return (self.connection.scope(write=True),)

    def _check_size(self) -> None:
        registry = self.connection.reference.registry
        largest = LARGEST.get(registry)
        if largest is not None and self.size > largest:
            raise BlobTooLargeError(
                f"A layer of {self.size:,} bytes is too large for {registry}.",
                where=self.digest,
                why=f"It takes {largest:,} bytes at most as one layer.",
                fix="Split the layer: large wheels get one each.",
            )

    def _check_content(self) -> None:
        """After the registry refused a digest: find out whose fault it is."""
        hashed, size = hashlib.sha256(), 0
        with self.open_stream() as stream:
            while data := stream.read(BLOCK):
                hashed.update(data)
                size += len(data)
        if size == self.size and self.digest == f"sha256:{hashed.hexdigest()}":
            return
        raise DigestMismatchError(
            "A blob is not what its digest says.",
            where=getattr(stream, "name", None) or self.digest,
            why=f"It has {size:,} bytes with the digest sha256:{hashed.hexdigest()}, not {self.digest}.",
            fix="The cache is damaged: remove that file, and build the image again.",
        )


class _Counted:
    """A stream of known length that reports its progress and can be stopped."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._sent = 0
        with self._reading():
            self._stream = upload.open_stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def __len__(self) -> int:
        return self._upload.size

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read(BLOCK):
            yield data

    @property
    def is_spent(self) -> bool:
        """True when everything was handed to the network."""
        return self._sent >= self._upload.size

    def read(self, size: int = -1, /) -> bytes:
        """Read on, never beyond the length that was announced."""
        if self._upload.stopped.is_set():
            raise CancelledError
        left = self._upload.size - self._sent
        with self._reading():
            data = self._stream.read(left if size < 0 else min(size, left))
        if left and not data:
            raise self._unreadable(f"It ends after {self._sent:,} of {self._upload.size:,} bytes.")
        self._sent += len(data)
        self._upload.progress(self._sent)
        return data

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep apart what the disk says from what the network says: both are OSErrors."""
        try:
            yield
        except OSError as error:
            raise self._unreadable(f"{error.strerror or error}.") from None

    def _unreadable(self, why: str) -> ImageMissingError:
        name = getattr(getattr(self, "_stream", None), "name", None)
        return ImageMissingError(
            "A blob of the image cannot be read.",
            where=str(name or self._upload.digest),
            why=why,
            fix="Build the image again: `invoke build --target ...`. Perhaps the cache was cleaned meanwhile.",
        )
