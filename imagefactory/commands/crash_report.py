"""The report of an internal error, with everything needed to find the bug and no secrets."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from imagefactory.environment.index_config import redact

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_SECRET_SHAPE = re.compile(r"\b(?:hf_|gh[opsru]_|github_pat_|sk-)\w{8,}")
_SHORTEST = 6  # hiding shorter secrets would garble the text


def write_report(error: Exception, folders: Iterable[Path], where: str, root: Path) -> Path | None:
    """Write a report to the first writable folder and return its path, or None."""
    lines = [
        f"command:  {shlex.join(['inv', *sys.argv[1:]])}",
        f"where:    {where}",
        f"commit:   {_commit(root)}",
        f"python:   {sys.version.split()[0]} ({sys.executable})",
        f"platform: {platform.platform()}",
        *(f"setting:  {name}={value}" for name, value in sorted(os.environ.items()) if "FACTORY_" in name),
        "",
        "".join(traceback.format_exception(error)),
    ]
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix="imagefactory-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(hide("\n".join(lines)))
            return Path(name)
    return None


def hide(text: str) -> str:
    """Replace the secrets of the command line and the environment, and whatever looks like a token."""
    # Options may follow each other in one word: EXTRA_ARGS=--x-token VALUE.
    words = [word.strip("\"'") for word in re.split(r"[\s=]+", " ".join(sys.argv))]
    pairs = [*os.environ.items(), *(word.partition("=")[::2] for word in sys.argv), *pairwise(words)]
    secrets = {value for name, value in pairs if _SECRET_NAME.search(name) and not value.startswith("-")}
    # A key of several lines may be quoted in parts, or escaped as Python does.
    secrets |= {line for value in secrets for line in value.splitlines()}
    secrets |= {repr(value)[1:-1] for value in secrets}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "***")
    return _SECRET_SHAPE.sub("***", redact(text))


def _commit(root: Path) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5)  # noqa: S603
        return done.stdout.strip()
    return "unknown"
