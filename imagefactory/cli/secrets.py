"""Hides secrets in what commands print and in reports of bugs, which people attach to public issues."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from imagefactory.store.index_config import redact

_NAME = re.compile(r"key|token|secret|passw|credential|auth(?!or)|cookie|\bpin\b|_pin", re.IGNORECASE)
_SHAPE = re.compile(r"\b(?:hf_|gh[opsru]_|github_pat_|sk-)\w{8,}")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_SHORTEST = 6  # hiding shorter secrets would garble the text
_LONGEST = 64 * 1024  # bytes of a file that holds a secret


def hide(text: str) -> str:
    """Replace the secrets of the command line, the environment and their files, and whatever looks like one."""
    # The longest first: a secret may contain another.
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "***")
    return _SHAPE.sub("***", _PEM.sub("***", redact(text)))


def _secrets() -> Iterator[str]:
    # Options may follow each other in one word: EXTRA_ARGS=--x-token VALUE.
    words = [word.strip("\"'") for word in re.split(r"[\s=]+", " ".join(sys.argv))]
    # An assignment may follow an option: --set=VLLM_API_KEY=VALUE.
    named = [
        (match[1], word[match.end() :]) for word in sys.argv for match in re.finditer(r"(?<![\w-])([\w-]+)=", word)
    ]
    following = [(name, value) for name, value in pairwise(words) if not _OPTION.match(value)]
    for name, value in (*os.environ.items(), *named, *following):
        if not _NAME.search(name):
            continue
        content = _content(value)
        yield from _forms(value if content is None else content)


def _content(value: str) -> str | None:
    """Return what is in the file that a value names; its path is no secret. None if it names none."""
    with suppress(OSError, ValueError):
        if (path := Path(value).expanduser()).is_file():
            with path.open("rb") as file:
                return file.read(_LONGEST).decode("utf-8", "replace")
        if path.exists():
            return ""
    return None


def _forms(secret: str) -> Iterator[str]:
    """List how a secret may be quoted: whole, line by line, and escaped as Python and JSON do."""
    for part in (secret, secret.strip(), *map(str.strip, secret.splitlines())):
        yield part
        yield repr(part)[1:-1]
        yield repr(part.encode())[2:-1]
        yield json.dumps(part)[1:-1]
