"""Reads files as text without changing a byte, and updates RECORDs."""

import base64
import csv
import hashlib
import io
from collections.abc import Mapping
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


def updated_record(text: str, changed: Mapping[str, str]) -> bytes:
    """Return a RECORD with rows for changed and added files: sorted, with RECORD itself last.

    https://packaging.python.org/specifications/recording-installed-packages/
    """
    *others, itself = (row for row in csv.reader(io.StringIO(text)) if row)
    rows = {row[0]: row for row in others}
    for path, content in changed.items():
        data = content.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        rows[path] = [path, f"sha256={digest}", str(len(data))]
    record = io.StringIO()
    csv.writer(record, lineterminator="\n").writerows([*(rows[path] for path in sorted(rows)), itself])
    return record.getvalue().encode()
