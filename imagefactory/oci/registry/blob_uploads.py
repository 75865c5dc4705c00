"""Uploading a blob: look it up first, then send it in one streamed request, and never twice without need.

GHCR's form is a POST that starts an upload and one PUT with the whole body; it limits chunks with Content-Range to
4 MiB. A PUT with an unclear answer (cut off, 5xx, or BLOB_UPLOAD_UNKNOWN for a committed upload) may have succeeded,
so the blob is looked up before anything is sent again. Abandoned uploads are left to the registry, because cancelling
one needs permission to delete.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import BinaryIO, Literal

import requests

from imagefactory.environment.progress import Progress
from imagefactory.errors.layers import ImageMissingError
from imagefactory.errors.registry import BlobTooLargeError, RegistryError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.wire import BLOCK, Answer, RegistryRequest, judge_answer
from imagefactory.store.digests import Digest
from imagefactory.store.retry import Again

UploadOutcome = Literal["present", "uploaded"]
OpenStream = Callable[[], BinaryIO]

LARGEST = {"ghcr.io": 10_000_000_000}
"""The largest blob in bytes that a registry documents."""
LONGEST = {"ghcr.io": 600.0}
"""The longest upload in seconds that a registry documents."""
_TIMEOUT = (60.0, 300.0)
"""Seconds to send a block, and for the registry to commit: GHCR needs about 10 s for a large layer."""
_CHECKS = 3
"""How often to look up a blob that was sent whole: the commit may still be running behind an early error."""


@dataclass(frozen=True)
class Upload:
    """The upload of one blob."""

    connection: Connection
    digest: Digest
    size: int
    open_stream: OpenStream
    progress: Progress
    stopped: threading.Event

    def run(self) -> UploadOutcome:
        """Upload the blob, unless the repository already has it."""
        self._check_size()
        if self._is_present():
            return "present"
        failures, asked = 0, 0.0
        while True:
            location = self._start()
            body = _Counted(self)
            started = time.monotonic()
            problem = self._put(location, body)
            if problem is None:
                return "uploaded"
            seconds = time.monotonic() - started
            failures += 1
            if self._arrived(problem, failures, asked, whole=body.is_spent):
                return "uploaded"
            self._give_up_if_too_slow(seconds)
            asked = self._give_up_if_hopeless(problem, failures, asked)

    # --- the steps -------------------------------------------------------------------------------

    def _is_present(self) -> bool:
        # A token to write also allows reading: this saves a request to the token server.
        return self.connection.has_blob(self.digest, self.connection.writing, self.stopped)

    def _start(self) -> str:
        """Start an upload and return its URL."""
        connection = self.connection
        request = RegistryRequest("POST", connection.url("blobs/uploads/"), body=b"")
        answer = connection.ask(request, connection.writing, self.stopped)
        if not answer.ok:
            raise connection.failure(answer, "start an upload", write=True)
        location = answer.headers.get("Location")
        if answer.status != HTTPStatus.ACCEPTED or not location:
            why = f"It answered {answer.said()}, without a Location to upload to."
            raise connection.nonsense(connection.reference.name, why)
        with connection.naming_failures():
            return connection.wire.locate(location, answer.url)

    def _put(self, location: str, body: _Counted) -> Answer | requests.RequestException | None:
        """Send the blob; return the problem, if any."""
        separator = "&" if "?" in location else "?"  # a Location keeps its own query
        request = RegistryRequest(
            "PUT",
            f"{location}{separator}digest={self.digest.replace(':', '%3A')}",
            {"Content-Type": "application/octet-stream"},
            # requests would not send the length of an empty stream.
            body=body if self.size else b"",
            timeout=_TIMEOUT,
        )
        try:
            with body.stream:
                answer = self.connection.ask_once(request, self.connection.writing, replay=False)
        except requests.RequestException as error:
            return error
        return None if answer.ok else answer

    def _arrived(
        self, problem: Answer | requests.RequestException, failures: int, asked: float, *, whole: bool
    ) -> bool:
        """Return whether the blob arrived although the registry did not confirm it."""
        unclear = not isinstance(problem, Answer) or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        again = judge_answer(problem) or Again()
        if asked + again.after > self.connection.retry.patience:
            again = Again()  # another upload is hopeless, but this one may have arrived
        for check in range(_CHECKS if whole and unclear else 1):
            self.connection.retry.wait(failures + check, again if check == 0 else Again(), self.stopped)
            if self._is_present():
                self.progress(self.size)
                return True
        return False

    def _give_up_if_hopeless(
        self, problem: Answer | requests.RequestException, failures: int, asked: float
    ) -> float:
        """Raise the problem if another upload cannot help; return the seconds that the registry asked for so far."""
        if isinstance(problem, Answer) and problem.has_error("DIGEST_INVALID"):
            self._check_content()
        again = self._judge(problem)
        if again is not None and not self.connection.retry.is_spent(failures, again, asked):
            return asked + again.after
        if isinstance(problem, Answer):
            raise self.connection.failure(problem, "write a blob", write=True)
        with self.connection.naming_failures():
            raise problem

    def _give_up_if_too_slow(self, seconds: float) -> None:
        """Do not repeat an upload that failed because it exceeded the registry's time limit."""
        registry = self.connection.reference.registry
        most = LONGEST.get(registry)
        if most is None or seconds < most:
            return
        raise RegistryError(
            f"A layer of {self.size:,} bytes takes longer to upload than {registry} waits.",
            where=f"{self.connection.reference.name}@{self.digest}",
            why=f"It failed after {seconds:.0f} s; {registry} ends uploads after {most:.0f} s.",
            fix=f"Push over a faster connection: this layer needs {self.size / most / 1e6:.1f} MB/s, and up to four "
            "are sent in parallel. Completed uploads are kept.",
        )

    @staticmethod
    def _judge(problem: Answer | requests.RequestException) -> Again | None:
        """Judge whether another upload may succeed."""
        if not isinstance(problem, Answer):
            return judge_answer(problem)
        # An expired token, a forgotten upload, or a body that was damaged in transit.
        may_pass = problem.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND) or problem.has_error(
            "BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID", "BLOB_UNKNOWN", "DIGEST_INVALID", "SIZE_INVALID"
        )
        return problem.again() or (Again() if may_pass else None)

    # --- checks ----------------------------------------------------------------------------------

    def _check_size(self) -> None:
        registry = self.connection.reference.registry
        largest = LARGEST.get(registry)
        if largest is not None and self.size > largest:
            raise BlobTooLargeError(
                f"A layer of {self.size:,} bytes is too large for {registry}.",
                where=self.digest,
                why=f"It accepts at most {largest:,} bytes per layer.",
                fix="Split the layer: large wheels get one each.",
            )

    def _check_content(self) -> None:
        """After the registry refused the digest, check whether the local file is wrong."""
        with self.open_stream() as stream:
            hashed = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]  # BinaryIO lacks readinto
            found = f"sha256:{hashed.hexdigest()}"
            size = stream.seek(0, os.SEEK_END)
        if (size, found) == (self.size, self.digest):
            return
        raise DigestMismatchError(
            "A blob does not match its digest.",
            where=getattr(stream, "name", None) or self.digest,
            why=f"It has {size:,} bytes with the digest {found}, not {self.digest}.",
            fix="The cache is damaged: delete that file, and build the image again.",
        )


class _Counted:
    """A stream of known length that reports its progress and can be stopped."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._sent = 0
        with self._reading():
            self.stream = upload.open_stream()

    def __len__(self) -> int:
        return self._upload.size

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read(BLOCK):
            yield data

    @property
    def is_spent(self) -> bool:
        """Whether everything was handed to the network."""
        return self._sent >= self._upload.size

    def read(self, size: int = -1, /) -> bytes:
        """Read the next bytes, never beyond the announced length."""
        if self._upload.stopped.is_set():
            raise CancelledError
        left = self._upload.size - self._sent
        with self._reading():
            data = self.stream.read(left if size < 0 else min(size, left))
        if left and not data:
            raise self._unreadable(f"It ends after {self._sent:,} of {self._upload.size:,} bytes.")
        self._sent += len(data)
        self._upload.progress(self._sent)
        return data

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Translate errors of the disk, which would look like errors of the network: both are OSErrors."""
        try:
            yield
        except OSError as error:
            raise self._unreadable(f"{error.strerror or error}.") from None

    def _unreadable(self, why: str) -> ImageMissingError:
        name = getattr(getattr(self, "stream", None), "name", None)
        return ImageMissingError(
            "A blob of the image cannot be read.",
            where=str(name or self._upload.digest),
            why=why,
            fix="Build the image again: `invoke build --target ...`. The cache may have been cleaned meanwhile.",
        )
