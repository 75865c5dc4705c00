"""Reads what a daemon sends in chunks as a file."""

from __future__ import annotations

import io
from collections.abc import Iterator


class ChunkStream(io.RawIOBase):
    """A file over chunks, read once from start to end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly as many bytes as requested, or what is left."""
        parts: list[bytes] = []
        while size != 0:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    break
            taken = self._left[:size] if size > 0 else self._left
            self._left = self._left[len(taken) :]
            parts.append(bytes(taken))
            size -= len(taken) if size > 0 else 0
        return b"".join(parts)
