"""A remote file that can be read in places: a seekable file object over HTTP range requests."""

from __future__ import annotations

import io
import re
from http import HTTPStatus

import requests

WINDOW = 64 * 1024
"""How much is fetched at least: one request then covers a zip's end record and mostly its directory."""
WIDEST = 16 * 1024 * 1024
"""How much is fetched at most at a time, and so held in memory."""
SMALL = 16 * WINDOW
"""A file up to this size is taken whole from a server that does not know ranges."""


class RangesRefusedError(OSError):
    """The server answers a range request with the whole of a large file, or with nonsense."""


class RangeFile(io.RawIOBase):
    """Reads parts of a URL on demand and keeps the last part in memory."""

    def __init__(self, url: str, session: requests.Session, *, timeout: float = 60) -> None:
        self._url = url
        self._session = session
        self._timeout = timeout
        self._position = 0
        self._ahead = WINDOW
        self.size = 0
        self._start, self._window = self._fetch(f"bytes=-{WINDOW}")

    def readable(self) -> bool:
        """Tell `io` that this can be read."""
        return True

    def seekable(self) -> bool:
        """Tell `io` that this can seek."""
        return True

    def tell(self) -> int:
        """Return where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is fetched before the next read."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read from the window, or fetch a new one that covers what is asked for."""
        end = self.size if size < 0 else min(self._position + size, self.size)
        if end <= self._position:
            return b""
        if self._position < self._start or end > self._start + len(self._window):
            # Whoever reads on and on gets more at a time: a large member would take thousands of requests.
            reads_on = self._start <= self._position <= self._start + len(self._window)
            self._ahead = min(self._ahead * 2, WIDEST) if reads_on else WINDOW
            last = min(max(end, self._position + self._ahead), self.size) - 1
            self._start, self._window = self._fetch(f"bytes={self._position}-{last}")
        begin = self._position - self._start
        self._position = end
        return self._window[begin : begin + end - (self._start + begin)]

    def _fetch(self, ranges: str) -> tuple[int, bytes]:
        # identity: a transparently compressed answer would have other offsets.
        headers = {"Range": ranges, "Accept-Encoding": "identity"}
        with self._session.get(self._url, headers=headers, timeout=self._timeout, stream=True) as answer:
            answer.raise_for_status()
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                length = answer.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > SMALL:
                    raise RangesRefusedError(
                        f"the server ignores range requests (status {answer.status_code})"
                    )
                self.size = int(length)
                return 0, answer.content
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range", ""))
            if span is None:
                raise RangesRefusedError("the server does not say which range it sends")
            self.size = int(span[2])
            return int(span[1]), answer.content
