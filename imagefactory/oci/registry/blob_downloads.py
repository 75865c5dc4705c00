"""Downloading blobs: broken transfers continue, content is hashed once, and files appear whole or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import requests

from imagefactory.errors.registry import ContentMissingError
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.wire import BLOCK, Answer, RegistryRequest, judge_answer
from imagefactory.store.atomic import writing
from imagefactory.store.digests import Digest
from imagefactory.store.retry import Again

_SIZE = re.compile(r"[0-9]{1,18}")


def read_range(connection: Connection, digest: Digest, offset: int, length: int) -> bytes:
    """Read up to `length` bytes of a blob into memory."""
    data = bytearray()
    if length:
        _Transfer(connection, digest, offset, offset + length, data.extend).run()
    return bytes(data)


def download(connection: Connection, digest: Digest, size: int, path: Path) -> None:
    """Download a blob to a file."""
    hashed, received = hashlib.sha256(), 0
    with writing(path) as file:

        def take(data: bytes) -> None:
            nonlocal received
            received += len(data)
            hashed.update(data)
            file.write(data)

        # One byte more than expected is enough to see that the blob is too long.
        _Transfer(connection, digest, 0, size + 1, take, whole=True).run()
        found = f"sha256:{hashed.hexdigest()}"
        if (received, found) != (size, digest):
            why = f"It sent {received:,} bytes (expected: {size:,}) with the digest {found}."
            raise connection.mismatch(digest, why)


@dataclass
class _Transfer:
    """The transfer of a blob, or of a part of it."""

    connection: Connection
    digest: Digest
    position: int
    end: int
    take: Callable[[bytes], object]
    whole: bool = False
    """Whether `end` lies beyond the blob, so that a first request needs no range."""

    def __post_init__(self) -> None:
        self._reached = self.position

    def run(self) -> None:
        """Read everything; continue after a broken connection for as long as there is progress."""
        with self.connection.naming_failures():
            answer = self.connection.retry.run(self._request, later=self._judge)
        if answer is not None:
            raise self._failure(answer)

    def _judge(self, outcome: Answer | OSError | None) -> Again | None:
        again = judge_answer(outcome) if outcome is not None else None
        advanced, self._reached = self.position > self._reached, self.position
        return replace(again, advanced=advanced) if again is not None else None

    def _request(self) -> Answer | None:
        """Request the missing bytes; return the answer if it has none."""
        url = self.connection.url(f"blobs/{self.digest}")
        # Storage behind a registry may not support ranges: request one only if necessary.
        from_start = self.position == 0 and self.whole
        headers = {} if from_start else {"Range": f"bytes={self.position}-{self.end - 1}"}
        with self.connection.stream(
            RegistryRequest("GET", url, headers), self.connection.reading
        ) as response:
            if isinstance(response, Answer):
                nothing_left = response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                return None if nothing_left else response
            skip = self._skip(response)
            length = response.headers.get("Content-Length", "")
            expected = int(length) if _SIZE.fullmatch(length) else 0
            received = 0
            for piece in response.iter_content(BLOCK):
                received += len(piece)
                wanted = piece[skip:][: self.end - self.position]
                skip = max(0, skip - len(piece))
                if wanted:
                    self.position += len(wanted)
                    self.take(wanted)
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

    def _failure(self, answer: Answer) -> Exception:
        if answer.status == HTTPStatus.NOT_FOUND and not answer.has_error("NAME_UNKNOWN"):
            return ContentMissingError(
                "The repository does not have that blob.",
                where=f"{self.connection.reference.name}@{self.digest}",
                why=f"The registry answered {answer.said()}.",
                fix="Check the reference; the content may have been deleted, or pushed to another repository.",
            )
        return self.connection.failure(answer, "read a blob")
