"""The text of files, byte for byte: line ends stay what they are."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from images.shipped.errors import ModFileError


def read_text(file: Path, path: str) -> str | None:
    """Read a file of a tree; None when it is not there. `path` is what errors call it."""
    return decoded(file.read_bytes(), path) if file.is_file() else None


def decoded(data: bytes, path: str) -> str:
    """Turn a file's bytes into text that gives the same bytes again."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModFileError(
            f"{path} is not text.",
            where=f"{path}:{data[: error.start].count(10) + 1}",
            why=f"Mods change UTF-8 text only ({error.reason}).",
            fix="Leave the file alone.",
        ) from None


def record_row(path: str, text: str) -> list[str]:
    """Write a file's row of a RECORD (https://packaging.python.org/specifications/recording-installed-packages/)."""
    data = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return [path, f"sha256={digest}", str(len(data))]
