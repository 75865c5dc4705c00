"""Requests of the network: which failures to retry and when, bounded answers, and parts of remote files.

Every request of the factory to a server that it did not start goes through `new_session`: what such a server sends is
bounded in time by the pace that it must keep, and in size by whoever reads it.
"""

import http.client
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

_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504, 522})  # statuses after which the same request may succeed


@dataclass(frozen=True)
class Again:
    """The verdict that a failure is worth another attempt."""

    after: float = 0.0  # seconds that the server asks us to wait
    advanced: bool = False  # whether the attempt made progress, which resets the count of failures


@dataclass(frozen=True)
class Retry:
    """How often to retry, and how long to wait in between."""

    attempts: int = 4
    pause: float = 0.5  # seconds before the second attempt; the wait doubles with each further one
    longest: float = 30.0  # the longest wait, unless the server asks for more
    patience: float = 120.0
    """The most seconds that a server may ask us to wait, in all answers to one request; beyond them, we give up."""

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
    final = isinstance(outcome, requests.exceptions.SSLError | ValueError) or any(
        isinstance(cause, BadPaceError) for cause in causes(outcome)
    )
    return Again() if passing and not final else None


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
        error = next((one for one in inner if isinstance(one, BaseException)), None)


def reason_of(error: BaseException) -> str:
    *_, inner = causes(error)
    text = re.sub(r"^(<[^>]* object at 0x[^>]*>|\w+\(host=[^)]*\)): ", "", str(inner))
    return clean(text)[:300].rstrip(". ") or type(error).__name__


def short_reason(error: BaseException) -> str:
    """Return why a request failed, without anything of its URL, which may contain a password."""
    *_, inner = causes(error)
    return str(inner) if isinstance(inner, BadPaceError | TooLargeError) else type(error).__name__


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the length that a server announces; None if it announces none, or nonsense."""
    length = headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None


@dataclass
class Pace:
    """How slow a server may be, and how much of what it sends may be no content."""

    window: float = 60.0  # seconds of waiting after which to look whether enough came
    least: int = 256 * 1024  # bytes that must come in a window, unless the answer ends before
    overhead: int = 1024 * 1024
    """Bytes of headers, and of what frames and follows chunks; half as much as the content, if that is more."""
    clock: Callable[[], float] = time.monotonic


PACE = Pace()


class BadPaceError(OSError):
    """A server sends so slowly, or so much besides its content, that the answer is given up; it is not asked again."""


class _PacedSocket(io.RawIOBase):
    """Reads an answer from a socket, and gives up on one that keeps us waiting. The socket's timeout bounds silence."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._waited = 0.0
        self._lately = 0
        self.received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - collections.abc.Buffer is newer than Python 3.11
        began = PACE.clock()
        count: int | None = self._raw.readinto(buffer)
        if self.received:  # a server may think before its first byte, as long as the timeout allows
            self._waited += PACE.clock() - began
        self._lately += count or 0
        self.received += count or 0
        if self._waited >= PACE.window:
            if self._lately < PACE.least and count:
                raise BadPaceError(f"it sent only {self._lately:,} bytes in {self._waited:.0f} s")
            self._waited, self._lately = 0.0, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedReader(io.BufferedReader):
    """Reads lines of bounded length, and not endlessly many: they carry no content."""

    raw: _PacedSocket

    def __init__(self, raw: _PacedSocket) -> None:
        super().__init__(raw)
        self._overhead = 0

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(PACE.overhead if size is None or size < 0 else size)
        self._overhead += len(line)
        if self._overhead > max(PACE.overhead, self.raw.received // 2):
            raise BadPaceError(f"it sent {self._overhead:,} bytes that are no content")
        return line


class _PacedResponse(http.client.HTTPResponse):
    fp: Any

    def __init__(self, *positional: Any, **options: Any) -> None:  # noqa: ANN401 - theirs
        super().__init__(*positional, **options)
        self.fp = _PacedReader(_PacedSocket(self.fp.detach()))


class _HTTPConnection(urllib3.connection.HTTPConnection):
    response_class = _PacedResponse


class _HTTPSConnection(urllib3.connection.HTTPSConnection):
    response_class = _PacedResponse


class _HTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class _PacedAdapter(HTTPAdapter):
    """Reads answers at a pace, and sends bodies in larger blocks than http.client, which uses 16 KiB."""

    def init_poolmanager(self, *positional: Any, **options: Any) -> None:  # noqa: ANN401 - theirs
        super().init_poolmanager(*positional, blocksize=_BLOCK, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:  # noqa: ANN401 - theirs
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}
        return manager


class _Session(requests.Session):
    def request(self, *positional: Any, **options: Any) -> requests.Response:  # noqa: ANN401 - theirs
        try:
            return super().request(*positional, **options)
        except ValueError as error:  # a server redirects to something that is no URL
            if isinstance(error, requests.RequestException):
                raise
            raise requests.exceptions.InvalidURL(str(error)) from None


def new_session(connections: int = 10) -> requests.Session:
    """Return a session whose answers have to keep a pace, and whose redirects are few and small."""
    session = _Session()
    session.max_redirects = 5
    for scheme in ("http://", "https://"):
        session.mount(scheme, _PacedAdapter(pool_maxsize=connections))
    session.hooks["response"].append(_read_redirect)
    return session


def _read_redirect(answer: requests.Response, **_: object) -> None:
    """Read the body of a redirect, before requests does so without a bound."""
    if answer.is_redirect:
        read_bounded(answer, _BLOCK)


MOST = 128 * 1024 * 1024  # more than any page of an index, or any list of Debian packages, has
LONGEST = 600.0  # seconds to receive an answer that is kept in memory
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
    return read_bounded(get(url, headers=headers, timeout=timeout, stream=True), limit)


def read_bounded(answer: requests.Response, limit: int) -> requests.Response:
    """Read the whole body of a streamed response, unpacked; raise TooLargeError beyond the limit."""
    with answer:
        body = bytearray()
        for piece in pieces_of(answer):
            body += piece
            if len(body) > limit:
                raise TooLargeError(f"the answer has more than {limit:,} bytes", response=answer)
        answer._content = bytes(body)  # noqa: SLF001 - requests itself cannot limit a body
        return answer


def pieces_of(answer: requests.Response) -> Iterator[bytes]:
    """Iterate over the body of an answer that is to be kept in memory, for as long as that may take."""
    began = PACE.clock()
    for piece in answer.iter_content(_BLOCK):
        yield piece
        if PACE.clock() - began > LONGEST:
            raise requests.ConnectionError(BadPaceError(f"its answer takes longer than {LONGEST:.0f} s"))


TIMEOUT = 60
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
                return 0, read_bounded(answer, SMALL).content
            number = "([0-9]{1,18})"
            span = re.fullmatch(rf"bytes {number}-{number}/{number}", answer.headers.get("Content-Range", ""))
            if span is None:
                raise RangesRefusedError("the server does not say which range it sends")
            self.size = int(span[3])
            return int(span[1]), read_bounded(answer, most).content
