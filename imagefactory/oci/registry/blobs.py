"""Blobs: sent in one streamed request, and read in parts if a transfer breaks; never held in memory whole.

GHCR's form of upload is a POST that starts it and one PUT with the whole body; it limits chunks with Content-Range to
4 MiB. A PUT with an unclear answer (cut off, 5xx, or BLOB_UPLOAD_UNKNOWN for a committed upload) may have succeeded,
so the blob is looked up before anything is sent again. Abandoned uploads are left to the registry, because cancelling
one needs permission to delete.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import BinaryIO, Literal

import requests

from imagefactory.errors import BuildError, InputError
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.responses import BLOCK, RegistryRequest, RegistryResponse, judge_response
from imagefactory.store.digests import Digest
from imagefactory.store.http import Again, content_length, pieces_of, time_for
from imagefactory.store.progress import Progress

UploadOutcome = Literal["present", "uploaded"]
OpenStream = Callable[[], BinaryIO]
_Problem = RegistryResponse | requests.RequestException

_TIMEOUT = (60.0, 300.0)
"""Seconds to send a block, and for the registry to commit: GHCR needs about 10 s for a large layer."""
_CHECKS = 3  # how often to look up a blob that was sent whole: the commit may still be running behind an early error
_SIZE = re.compile(r"[0-9]{1,18}")


@dataclass
class Download:
    """The transfer of a blob, up to an end, which continues after a fault as long as there is progress."""

    connection: Connection
    digest: Digest
    end: int  # where to stop: a byte more than is expected shows that the blob is too long
    take: Callable[[bytes], object]
    position: int = 0
    _reached: int = 0

    def run(self) -> None:
        with self.connection.named_failures():
            answer = self.connection.retry.run(self._request, later=self._judge)
        if answer is None:
            return
        if answer.status == HTTPStatus.NOT_FOUND and not answer.has_error("NAME_UNKNOWN"):
            where = f"{self.connection.reference.name}@{self.digest}"
            raise self.connection.error("absent", where, f"It answered {answer.describe()}.")
        raise self.connection.failure(answer, "read a blob")

    def _judge(self, outcome: RegistryResponse | OSError | None) -> Again | None:
        again = judge_response(outcome) if outcome is not None else None
        advanced, self._reached = self.position > self._reached, self.position
        return replace(again, advanced=advanced) if again is not None else None

    def _request(self) -> RegistryResponse | None:
        url = self.connection.url(f"blobs/{self.digest}")
        # Storage behind a registry may not support ranges: request one only if necessary. Its last byte is included.
        headers = {"Range": f"bytes={self.position}-{self.end - 1}"} if self.position else {}
        with self.connection.stream(RegistryRequest("GET", url, headers=headers)) as response:
            if isinstance(response, RegistryResponse):
                nothing_left = response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                return None if nothing_left else response
            skip = self._skip(response)
            expected = content_length(response.headers) or 0
            received = 0
            # A block more than is wanted: that the blob is too long is for the caller to say.
            for piece in pieces_of(response, self.end + BLOCK, time_for(self.end)):
                received += len(piece)
                data = piece[skip:][: self.end - self.position]
                skip = max(0, skip - len(piece))
                if data:
                    self.position += len(data)
                    self.take(data)
                if self.position == self.end:
                    return None
            if received < expected:
                raise requests.ConnectionError("the connection ended early")
        return None

    def _skip(self, response: requests.Response) -> int:
        """Return how many bytes precede the wanted ones: a server may ignore ranges and send everything."""
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            return self.position
        start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if not _SIZE.fullmatch(start) or int(start) > self.position:
            raise requests.exceptions.InvalidHeader("the registry does not say which range it sends")
        return self.position - int(start)


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
        if self._is_present():
            return "present"
        problem = self.connection.retry.run(self._send, later=self._judge, stopped=self.stopped)
        if problem is None:
            return "uploaded"
        if isinstance(problem, RegistryResponse):
            raise self.connection.failure(problem, "write a blob")
        with self.connection.named_failures():
            raise problem

    def _send(self) -> _Problem | None:
        """Send the blob, and look it up if the registry did not confirm it; return the problem if it is not there."""
        location, body = self.start(), _Body(self)
        problem = self._put(location, body)
        if problem is None:
            return None
        unclear = not isinstance(problem, RegistryResponse) or problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        for check in range(_CHECKS if body.sent >= self.size and unclear else 1):
            self.connection.retry.wait(check + 1, Again(), self.stopped)
            if self._is_present():
                self.progress(self.size)
                return None
        return problem

    def _judge(self, problem: _Problem | OSError | None) -> Again | None:
        again = judge_response(problem) if problem is not None else None
        if again is not None or not isinstance(problem, RegistryResponse):
            return again
        if problem.has_error("DIGEST_INVALID"):
            self._check_content()
        # An expired token, a forgotten upload, or a body that was damaged in transit.
        passing = problem.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND) or problem.has_error(
            "BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID", "BLOB_UNKNOWN", "DIGEST_INVALID", "SIZE_INVALID"
        )
        return Again() if passing else None

    def _is_present(self) -> bool:
        # A token to write also allows reading: this saves a request to the token server.
        return self.connection.has_blob(self.digest, "pull,push", self.stopped)

    def start(self) -> str:
        """Return where the registry wants the content."""
        connection = self.connection
        url = connection.url("blobs/uploads/")
        answer = connection.ask(RegistryRequest("POST", url, "pull,push", body=b"", stopped=self.stopped))
        if not answer.ok:
            raise connection.failure(answer, "start an upload")
        location = answer.headers.get("Location")
        if answer.status != HTTPStatus.ACCEPTED or not location:
            why = f"It answered {answer.describe()}, without a Location to upload to."
            raise connection.error("unusable", connection.reference.name, why)
        with connection.named_failures():
            return connection.locate(location, answer.url)

    def _put(self, location: str, body: _Body) -> _Problem | None:
        separator = "&" if "?" in location else "?"  # a Location keeps its own query
        request = RegistryRequest(
            "PUT",
            f"{location}{separator}digest={self.digest.replace(':', '%3A')}",
            "pull,push",
            {"Content-Type": "application/octet-stream"},
            # requests would not send the length of an empty stream.
            body=body if self.size else b"",
            timeout=_TIMEOUT,
        )
        try:
            with body.stream:
                answer = self.connection.ask_once(request)
        except requests.RequestException as error:
            return error
        return None if answer.ok else answer

    def _check_content(self) -> None:
        """After the registry refused the digest, check whether the local file is wrong."""
        with self.open_stream() as stream:
            hashed = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]  # BinaryIO lacks readinto
            digest = f"sha256:{hashed.hexdigest()}"
            size = stream.seek(0, os.SEEK_END)
        if (size, digest) != (self.size, self.digest):
            raise InputError(
                "wrong-digest",
                "A blob does not match its digest.",
                where=getattr(stream, "name", None) or self.digest,
                why=f"It has {size:,} bytes with the digest {digest}, not {self.digest}.",
                fix="The cache is damaged: delete that file, and build the image again.",
            )


class _Body:
    """A stream of known length that reports its progress and can be stopped."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self.sent = 0
        with self._reading():
            self.stream = upload.open_stream()

    def __len__(self) -> int:
        return self._upload.size

    def __iter__(self) -> Iterator[bytes]:
        while left := self._upload.size - self.sent:  # never beyond the announced length
            if self._upload.stopped.is_set():
                raise CancelledError
            with self._reading():
                data = self.stream.read(min(BLOCK, left))
            if not data:
                raise self._unreadable(f"It ends after {self.sent:,} of {self._upload.size:,} bytes.")
            self.sent += len(data)
            self._upload.progress(self.sent)
            yield data

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Translate errors of the disk, which would look like errors of the network: both are OSErrors."""
        try:
            yield
        except OSError as error:
            raise self._unreadable(f"{error.strerror or error}.") from None

    def _unreadable(self, why: str) -> BuildError:
        name = getattr(getattr(self, "stream", None), "name", None)
        return BuildError(
            "no-image",
            "A blob of the image cannot be read.",
            where=str(name or self._upload.digest),
            why=why,
            fix="Build the image again: `./inv build --target ...`. The cache may have been cleaned meanwhile.",
        )
