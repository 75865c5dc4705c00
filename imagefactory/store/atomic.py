"""Writing files whole: a reader or a crash never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from imagefactory.store.cache import translating_disk_full


def write_text_atomically(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader or a crash never sees half of it."""
    with translating_disk_full(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
