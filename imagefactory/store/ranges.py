"""A seekable remote file, read with HTTP range requests."""

from __future__ import annotations

import io
import re
from http import HTTPStatus

import requests

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
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
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
