"""Converts files to text and back without changing a byte."""

import base64
import hashlib
from pathlib import Path

from images.shipped.errors import ModError


def read_text(file: Path, path: str) -> str | None:
    """Read a file, or None if there is none; errors name it `path`."""
    return decoded(file.read_bytes(), path) if file.is_file() else None


def decoded(data: bytes, path: str) -> str:
    """Decode UTF-8, keeping line ends."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ModError(
            "mod-file",
            f"{path} is not text.",
            where=f"{path}:{data[: error.start].count(10) + 1}",
            why=f"Mods can change only UTF-8 text ({error.reason}).",
            fix="Remove the file from the mod.",
        ) from None


def record_row(path: str, text: str) -> list[str]:
    """Return a file's row in RECORD (https://packaging.python.org/specifications/recording-installed-packages/)."""
    data = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return [path, f"sha256={digest}", str(len(data))]
