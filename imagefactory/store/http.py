"""Requests of the network: which failures to retry and when, bounded answers, and parts of remote files."""

from __future__ import annotations

import io
import random
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

import requests
import urllib3

T = TypeVar("T")

_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504, 522})
"""Statuses after which the same request may succeed."""


@dataclass(frozen=True)
class Again:
    """The verdict that a failure is worth another attempt."""

    after: float = 0.0
    """Seconds that the server asks us to wait."""
    advanced: bool = False
    """Whether the attempt made progress, which resets the count of failures."""


@dataclass(frozen=True)
class Retry:
    """How often to retry, and how long to wait in between."""

    attempts: int = 4
    pause: float = 0.5
    """Seconds before the second attempt; the wait doubles with each further one."""
    longest: float = 30.0
    """The longest wait, unless the server asks for more."""
    patience: float = 120.0
    """The most seconds that a server may ask us to wait, in all answers to one request; beyond them, we give up."""

    def run(
        self,
        attempt: Callable[[], T],
        *,
        later: Callable[[T | OSError], Again | None],
        stopped: threading.Event | None = None,
    ) -> T:
        """Call `attempt` until `later` returns None; return or raise the outcome of the last attempt.

        Args:
            attempt: only an OSError (such as those of requests) is retried; other exceptions are final.
            later: judges what was returned or raised; None means that another attempt would not help.
            stopped: when set, ends the wait with a CancelledError.
        """
        failures, asked = 0, 0.0
        while True:
            if stopped is not None and stopped.is_set():
                raise CancelledError
            outcome: T | OSError
            try:
                outcome = attempt()
            except OSError as error:
                outcome = error
            again = later(outcome)
            failures = 1 if again is not None and again.advanced else failures + 1
            if again is None or failures >= self.attempts or asked + again.after > self.patience:
                if isinstance(outcome, OSError):
                    raise outcome
                return outcome
            asked += again.after
            self.wait(failures, again, stopped)

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures, with jitter against simultaneous retries."""
        delay = min(self.pause * 2.0 ** (failures - 1), self.longest)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def wait(self, failures: int, again: Again, stopped: threading.Event | None = None) -> None:
        """Wait at least as long as the server asks for, within limits."""
        asked = min(again.after, self.patience)
        if (stopped or threading.Event()).wait(max(self.delay(failures), asked)):
            raise CancelledError


def judge(outcome: object) -> Again | None:
    """Judge the outcome of a request; anything but a response or an exception is final."""
    if isinstance(outcome, requests.HTTPError) and outcome.response is not None:
        outcome = outcome.response
    if isinstance(outcome, requests.Response):
        return judge_status(outcome.status_code, outcome.headers)
    # Errors of the disk are final, and so are bad certificates and URLs (which are ValueErrors in requests).
    passing = isinstance(outcome, requests.RequestException | ConnectionError | TimeoutError)
    final = isinstance(outcome, requests.exceptions.SSLError | ValueError)
    return Again() if passing and not final else None


def judge_status(status: int, headers: Mapping[str, str]) -> Again | None:
    """Judge an HTTP status; the headers may ask for a wait."""
    return Again(retry_after(headers) or 0.0) if status in _LATER else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the Retry-After header; None if it is missing or malformed."""
    try:
        return urllib3.Retry().parse_retry_after(headers.get("Retry-After", ""))
    except (urllib3.exceptions.InvalidHeader, ValueError, TypeError, OverflowError):
        return None


MOST = 128 * 1024 * 1024
"""More than any page of an index, or any list of Debian packages, has."""
_BLOCK = 256 * 1024


class TooLargeError(requests.RequestException, ValueError):
    """A response is larger than the limit; asking again would not help."""


def get_bounded(
    get: Callable[..., requests.Response],
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: tuple[float, float],
    limit: int = MOST,
) -> requests.Response:
    """Send a GET request and read its whole body, unpacked; raise TooLargeError beyond the limit."""
    return read_bounded(get(url, headers=headers, timeout=timeout, stream=True), limit)


def read_bounded(answer: requests.Response, limit: int) -> requests.Response:
    """Read the whole body of a streamed response, unpacked; raise TooLargeError beyond the limit."""
    with answer:
        body = bytearray()
        for piece in answer.iter_content(_BLOCK):
            body += piece
            if len(body) > limit:
                raise TooLargeError(f"the answer has more than {limit:,} bytes", response=answer)
        answer._content = bytes(body)  # noqa: SLF001 - requests itself cannot limit a body
        return answer


TIMEOUT = 60
WINDOW = 64 * 1024
"""The least that is fetched: one request usually covers a zip's end record and its directory."""
WIDEST = 16 * 1024 * 1024
"""The most that is fetched at a time and held in memory."""
SMALL = 16 * WINDOW
"""A file up to this size is read whole from a server that does not support ranges."""


class RangesRefusedError(OSError):
    """The server answers a range request with a whole large file, or does not say which range it sends."""


class RangeFile(io.RawIOBase):
    """Reads parts of a URL on demand, and keeps the last part in memory."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url = url
        self._session = session
        self._position = 0
        self._ahead = WINDOW
        self.size = 0
        self._start, self._window = self._fetch(f"bytes=-{WINDOW}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position without fetching anything."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read from the window, or fetch a new window first."""
        end = self.size if size < 0 else min(self._position + size, self.size)
        if end <= self._position:
            return b""
        if self._position < self._start or end > self._start + len(self._window):
            # Sequential reads get larger windows: a large member would take thousands of requests.
            sequential = self._start <= self._position <= self._start + len(self._window)
            self._ahead = min(self._ahead * 2, WIDEST) if sequential else WINDOW
            last = min(max(end, self._position + self._ahead), self.size) - 1
            self._start, self._window = self._fetch(f"bytes={self._position}-{last}")
        begin = self._position - self._start
        self._position = end
        return self._window[begin : begin + end - (self._start + begin)]

    def _fetch(self, ranges: str) -> tuple[int, bytes]:
        # identity: a compressed answer would have other offsets.
        headers = {"Range": ranges, "Accept-Encoding": "identity"}
        with self._session.get(self._url, headers=headers, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                length = answer.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > SMALL:
                    raise RangesRefusedError(f"the server ignores ranges (status {answer.status_code})")
                self.size = int(length)
                return 0, answer.content
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            if span is None:
                raise RangesRefusedError("the server does not say which range it sends")
            self.size = int(span[2])
            return int(span[1]), answer.content
