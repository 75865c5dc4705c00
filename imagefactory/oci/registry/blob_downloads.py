"""Downloading blobs: continued where a connection broke, hashed once, written whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import requests

from imagefactory.environment.progress import Progress
from imagefactory.errors.registry import ContentMissingError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.wire import BLOCK, Answer, judge_answer
from imagefactory.store.atomic import writing
from imagefactory.store.digests import Digest
from imagefactory.store.retry import Again

Take = Callable[[bytes], None]


def read_range(connection: Connection, digest: Digest, offset: int, length: int | None) -> bytes:
    """Read some bytes of a blob into memory: up to `length`, or to the end."""
    data = bytearray()
    end = None if length is None else offset + length
    if end == offset:
        return b""
    _Reading(connection, digest, (offset, end), data.extend).run()
    return bytes(data)


def download(connection: Connection, digest: Digest, size: int, path: Path, progress: Progress) -> None:
    """Download a blob to a file."""
    hashed, received = hashlib.sha256(), 0
    with writing(path) as file:

        def take(data: bytes) -> None:
            nonlocal received
            received += len(data)
            hashed.update(data)
            file.write(data)
            progress(received)

        # One byte more than expected is enough to know that it is something else.
        _Reading(connection, digest, (0, size + 1), take, whole=True).run()
        check_arrived(
            f"{connection.reference.name}@{digest}",
            (size, digest),
            (received, f"sha256:{hashed.hexdigest()}"),
        )


def check_arrived(where: str, expected: tuple[int, str], found: tuple[int, str]) -> None:
    """Refuse what has another size or digest than it should have."""
    if found != expected:
        raise DigestMismatchError(
            "The registry sent something else than it was asked for.",
            where=where,
            why=f"What came has {found[0]:,} bytes (expected: {expected[0]:,}) and the digest {found[1]}.",
            fix="Try again; if it stays, do not use this registry or the proxy in front of it.",
        )


class _Reading:
    """A part of a blob on its way here."""

    def __init__(
        self,
        connection: Connection,
        digest: Digest,
        span: tuple[int, int | None],
        take: Take,
        *,
        whole: bool = False,
    ) -> None:
        self._connection = connection
        self._digest = digest
        self._position, self._end = span
        self._reached = self._position
        self._take = take
        self._whole = whole

    def run(self) -> None:
        """Read everything; a broken connection is continued, and one that gets further is not given up."""
        with self._connection.naming_failures():
            answer = self._connection.retry.run(self._request, later=self._judge)
        if answer is not None:
            raise self._failure(answer)

    def _judge(self, outcome: Answer | OSError | None) -> Again | None:
        again = judge_answer(outcome) if outcome is not None else None
        advanced, self._reached = self._position > self._reached, self._position
        return replace(again, advanced=advanced) if again is not None else None

    def _request(self) -> Answer | None:
        """Ask for what is missing; return the answer if it is something else."""
        url = self._connection.url(f"blobs/{self._digest}")
        scopes = (self._connection.scope(write=False),)
        # Storage behind a registry may know no ranges: do not ask for one without need.
        from_start = self._position == 0 and (self._end is None or self._whole)
        headers = {} if from_start else {"Range": self._range()}
        with self._connection.stream(url, scopes=scopes, headers=headers) as response:
            if isinstance(response, Answer):
                nothing_left = response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                return None if nothing_left else response
            skip = self._skip(response)
            length = response.headers.get("Content-Length", "")
            due = int(length) if length.isdecimal() else None
            came = 0
            for piece in response.iter_content(BLOCK):
                came += len(piece)
                wanted = piece[skip:]
                skip = max(0, skip - len(piece))
                if self._end is not None:
                    wanted = wanted[: self._end - self._position]
                if wanted:
                    self._position += len(wanted)
                    self._take(wanted)
                if self._position == self._end:
                    return None
            if due is not None and came < due:
                raise requests.ConnectionError("the connection ended early")
        return None

    def _range(self) -> str:
        last = "" if self._end is None else str(self._end - 1)
        return f"bytes={self._position}-{last}"

    def _skip(self, response: requests.Response) -> int:
        """Return how many bytes precede the wanted ones: a server may ignore ranges and send everything."""
        if response.status_code != HTTPStatus.PARTIAL_CONTENT:
            return self._position
        start = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
        if not start.isdecimal() or int(start) > self._position:
            raise requests.exceptions.InvalidHeader("the registry does not say which range it sends")
        return self._position - int(start)

    def _failure(self, answer: Answer) -> Exception:
        if answer.status == HTTPStatus.NOT_FOUND and not answer.has_error("NAME_UNKNOWN"):
            return ContentMissingError(
                "The repository does not have that blob.",
                where=f"{self._connection.reference.name}@{self._digest}",
                why=f"The registry answered {answer.said()}.",
                fix="Check the reference; what names the blob may have been deleted, or pushed to another repository.",
            )
        return self._connection.failure(answer, "read a blob")
