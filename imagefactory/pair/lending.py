"""Lends files of this machine to the second Spark: a read-only web server on the loopback, which ssh forwards.

Docker trusts registries on the loopback without a certificate, and the download program of the images takes any hub: so
both fetch what they lack themselves, with their own checks of digests, and nothing has to be installed or configured.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A file, or a part of one, or bytes."""

    source: Path | bytes
    start: int = 0
    size: int = 0
    kind: str = "application/octet-stream"

    @classmethod
    def of(cls, source: Path | bytes, kind: str = "application/octet-stream") -> Piece:
        return cls(source, 0, len(source) if isinstance(source, bytes) else source.stat().st_size, kind)

    def blocks(self, skip: int) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            yield self.source[self.start + skip : self.start + self.size]
            return
        left = self.size - skip
        with self.source.open("rb") as file:
            file.seek(self.start + skip)
            while left and (block := file.read(min(BLOCK, left))):
                left -= len(block)
                yield block


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Lender

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        found = self.server.pieces.get(path)
        piece = found or Piece(b"")
        ranged = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if found else None
        skip = min(int(ranged[1]), piece.size) if ranged else 0
        status = HTTPStatus.PARTIAL_CONTENT if ranged else HTTPStatus.OK
        self.send_response(status if found else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", str(piece.size - skip))
        self.send_header("Content-Type", piece.kind)
        if ranged:
            self.send_header("Content-Range", f"bytes {skip}-{piece.size - 1}/{piece.size}")
        self.end_headers()
        for block in piece.blocks(skip) if body and found else ():
            self.wfile.write(block)
            self.server.sent[path] += len(block)

    def log_message(self, *_: object) -> None:
        """What was sent is counted; the rest is of no interest."""


class Lender(ThreadingHTTPServer):
    """A server that runs, and counts what was fetched from it."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pieces = pieces
        self.sent: Counter[str] = Counter()
        """Bytes by path."""

    def handle_error(self, *_: object) -> None:
        """Clients that go away, or that try TLS first as Docker does, are no failures."""


@contextmanager
def lent(pieces: Mapping[str, Piece]) -> Iterator[Lender]:
    """Serve pieces by path for the duration of the block."""
    with Lender(pieces) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
