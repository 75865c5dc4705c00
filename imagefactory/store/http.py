"""Requests of the network: which failures to retry and when, bounded answers, and parts of remote files.

Every request of the factory to a server that it did not start goes through `new_session`, and every body through
`pieces_of`: it has a size and a deadline. Silence is bounded by the timeout, headers by http.client, which takes
100 of 64 KiB each.
"""

import io
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import requests
import urllib3
from requests.adapters import HTTPAdapter

from imagefactory.errors import clean

T = TypeVar("T")

# Statuses after which the same request may succeed; 499 is nginx's, and 522 is Cloudflare's.
_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504, 522})


@dataclass(frozen=True)
class Again:
    """The verdict that a failure is worth another attempt."""

    after: float = 0.0  # seconds that the server asks us to wait
    advanced: bool = False  # whether the attempt made progress, which resets the count of failures
    unreached: bool = False  # whether no connection came about: the name is unknown, or nobody is there


@dataclass(frozen=True)
class Retry:
    """How often to retry, and how long to wait in between."""

    attempts: int = 4
    pause: float = 0.5  # seconds before the second attempt; the wait doubles with each further one
    longest: float = 30.0  # the longest wait, unless the server asks for more
    patience: float = 120.0
    """The most seconds that a server may ask us to wait, in all answers to one request; beyond them, we give up."""
    unreached: float = 10.0
    """The seconds without a connection after which no further attempt is made: many a machine has no way there."""

    def run(
        self,
        attempt: Callable[[], T],
        *,
        later: Callable[[T | OSError], Again | None],
        stopped: threading.Event | None = None,
    ) -> T:
        """Call `attempt` until `later` returns None for what it returned or raised; return or raise that of the last.

        Only an OSError, such as those of requests, is retried. Setting `stopped` ends the wait with a CancelledError.
        """
        failures, asked, reached = 0, 0.0, time.monotonic()
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
            if again is None or not again.unreached:
                reached = time.monotonic()
            gone = time.monotonic() - reached > self.unreached
            if again is None or gone or failures >= self.attempts or asked + again.after > self.patience:
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
        asked = min(again.after, self.patience)
        if (stopped or threading.Event()).wait(max(self.delay(failures), asked)):
            raise CancelledError


def judge(outcome: object) -> Again | None:
    """Judge the outcome of a request; anything but a response or an exception is final."""
    if isinstance(outcome, requests.HTTPError) and outcome.response is not None:
        outcome = outcome.response
    if isinstance(outcome, requests.Response):
        return judge_status(outcome.status_code, outcome.headers)
    if isinstance(outcome, Response):
        return judge_status(outcome.status, outcome.headers)
    # Errors of the disk are final, and so are bad certificates and URLs (which are ValueErrors in requests).
    passing = isinstance(outcome, requests.RequestException | ConnectionError | TimeoutError)
    final = isinstance(outcome, requests.exceptions.SSLError | ValueError | GivenUpError)
    return Again(unreached=_is_unreached(outcome)) if passing and not final else None


def _is_unreached(error: object) -> bool:
    refused = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
    return any(isinstance(cause, refused) for cause in causes(error))


def judge_status(status: int, headers: Mapping[str, str]) -> Again | None:
    return Again(retry_after(headers) or 0.0) if status in _LATER else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return urllib3.Retry().parse_retry_after(headers.get("Retry-After", ""))
    except (urllib3.exceptions.InvalidHeader, ValueError, TypeError, OverflowError):
        return None


def causes(error: object) -> Iterator[BaseException]:
    """Iterate over an exception and those that it wraps, outermost first: requests and urllib3 wrap several times."""
    while isinstance(error, BaseException):
        yield error
        inner = [getattr(error, "reason", None), *error.args]
        error = next((cause for cause in inner if isinstance(cause, BaseException)), None)


def reason_of(error: BaseException) -> str:
    *_, inner = causes(error)
    text = re.sub(r"^(<[^>]* object at 0x[^>]*>|\w+\(host=[^)]*\)): ", "", str(inner))
    return clean(text)[:300].rstrip(". ") or type(error).__name__


def short_reason(error: BaseException) -> str:
    """Return why a request failed, without anything of its URL, which may contain a password."""
    if isinstance(error, GivenUpError):
        return str(error)
    return reason_of(error) if _is_unreached(error) else type(error).__name__


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the length that a server announces; None if it announces none, or nonsense."""
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None  # 18 digits fit into 64 bits


class GivenUpError(requests.RequestException):
    """An answer is given up; asking again would not help."""


class TooLargeError(GivenUpError):
    """An answer is larger than the limit."""


class TooSlowError(GivenUpError):
    """An answer takes longer than it may."""


class _Session(requests.Session):
    def request(self, *positional: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - theirs
        try:
            return super().request(*positional, **options)
        except ValueError as error:  # a server redirects to something that is no URL
            if isinstance(error, requests.RequestException):
                raise
            raise requests.exceptions.InvalidURL(str(error)) from None


def new_session(connections: int = 10) -> requests.Session:
    """Return a session for servers that nobody vouches for: few redirects, with small bodies."""
    session = _Session()
    session.max_redirects = 5
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=connections))
    session.hooks["response"].append(_drain_redirect)
    return session


def _drain_redirect(response: requests.Response, **_: object) -> None:
    """Read the body of a redirect, before requests does so without a bound."""
    if response.is_redirect:
        try:
            for _piece in pieces_of(response, _BLOCK):
                pass
        except requests.RequestException:
            response.close()
            raise


TIMEOUT = (5.0, 60.0)  # seconds to connect to each address of a host, and of silence
MOST = 128 * 1024 * 1024  # more than any page of an index, or any list of Debian packages, has
LONGEST = 600.0  # seconds for the body of an answer
SLOWEST = 16 * 1024  # bytes per second: a large file gets more seconds
_BLOCK = 256 * 1024


@dataclass(frozen=True)
class Response:
    """What a server answered, read into memory."""

    status: int
    headers: Mapping[str, str]  # looked up case-insensitively
    body: bytes
    url: str

    @property
    def ok(self) -> bool:
        return self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def status_line(self) -> str:
        """The status in numbers and in words, such as `404 Not Found`."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


def ask(
    session: requests.Session,
    method: str,
    url: str,
    *,
    limit: int = MOST,
    timeout: tuple[float, float] = TIMEOUT,
    **options: Any,  # noqa: ANN401 - those of requests
) -> Response:
    """Send a request, and read the answer into memory."""
    with session.request(method, url, timeout=timeout, stream=True, **options) as response:
        body = b"".join(pieces_of(response, limit))
        return Response(response.status_code, response.headers, body, response.url)


def time_for(size: int) -> float:
    """Return the seconds in which a file of this size has to arrive."""
    return LONGEST + size / SLOWEST


def pieces_of(response: requests.Response, limit: int, seconds: float | None = None) -> Iterator[bytes]:
    """Iterate over the body of a streamed response, unpacked, as it arrives; raise GivenUpError beyond the bounds."""
    longest = LONGEST if seconds is None else seconds
    received, until = 0, time.monotonic() + longest
    try:
        # Not `iter_content`, which waits until a block is full: byte by byte, that may take days.
        while piece := response.raw.read1(_BLOCK, decode_content=True):
            received += len(piece)
            if received > limit:
                raise TooLargeError(f"the answer has more than {limit:,} bytes", response=response)
            if time.monotonic() > until:
                raise TooSlowError(f"the answer takes longer than {longest:,.0f} s", response=response)
            yield piece
    except urllib3.exceptions.DecodeError as error:
        raise requests.exceptions.ContentDecodingError(error) from None
    except urllib3.exceptions.HTTPError as error:
        raise requests.ConnectionError(error) from None


WINDOW = 64 * 1024  # the least that is fetched: one request usually covers a zip's end record and its directory
WIDEST = 16 * 1024 * 1024  # the most that is fetched at a time and held in memory
SMALL = 16 * WINDOW  # a file up to this size is read whole from a server that does not support ranges


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
        # The last bytes: a zip's directory is at its end, and the answer tells the file's size.
        self._start, self._window = self._fetch(f"bytes=-{WINDOW}", WINDOW)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self._position + size, self.size)
        if end <= self._position:
            return b""
        if self._position < self._start or end > self._start + len(self._window):
            # Sequential reads get larger windows: a large member would take thousands of requests.
            sequential = self._start <= self._position <= self._start + len(self._window)
            self._ahead = min(self._ahead * 2, WIDEST) if sequential else WINDOW
            # A range includes its last byte (RFC 9110, 14.1.2).
            last = min(max(end, self._position + self._ahead), self.size) - 1
            most = last + 1 - self._position
            self._start, self._window = self._fetch(f"bytes={self._position}-{last}", most)
        begin = self._position - self._start
        self._position = end
        return self._window[begin : begin + end - (self._start + begin)]

    def _fetch(self, ranges: str, most: int) -> tuple[int, bytes]:
        # identity: a compressed answer would have other offsets.
        headers = {"Range": ranges, "Accept-Encoding": "identity"}
        with self._session.get(self._url, headers=headers, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                length = content_length(answer.headers)
                if length is None or length > SMALL:
                    raise RangesRefusedError(f"the server ignores ranges (status {answer.status_code})")
                self.size = length
                return 0, b"".join(pieces_of(answer, SMALL))
            number = "([0-9]{1,18})"
            span = re.fullmatch(rf"bytes {number}-{number}/{number}", answer.headers.get("Content-Range", ""))
            if span is None:
                raise RangesRefusedError("the server does not say which range it sends")
            self.size = int(span[3])
            return int(span[1]), b"".join(pieces_of(answer, most))
