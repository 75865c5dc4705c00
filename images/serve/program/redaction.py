"""Keeps secrets out of commands, messages and logs."""

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

HIDDEN = "(hidden)"
KEY_FLAG = "--api-key"
TOKEN_FLAG = "--hf-token"  # noqa: S105 - the name of a flag
SHORTEST = 6
"""Hiding shorter secrets wherever they occur would garble the text."""
_KINDS = r"(?:key|token|secret|passw(?:or)?d|passphrase|credentials?)"
_NAME = re.compile(rf"{_KINDS}$", re.IGNORECASE)
_ASSIGNED = re.compile(rf"""(?<![\w-])([\w-]*{_KINDS}(?:=|["']\s*:\s*["']))([^\s"']+)""", re.IGNORECASE)
_SHAPE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|gh[opsru]_\w{20,}|github_pat_\w{20,}|sk-[\w-]{16,})|(?<=://)[^\s/@]+(?=@)"
)


_FROM_FILES: set[str] = set()


def is_flag(word: str, flag: str) -> bool:
    """Whether a word is a flag as vLLM reads it: with underscores, or cut short."""
    name = word.partition("=")[0].replace("_", "-")
    # `--api-k` is unambiguous, `--api` is not.
    return name == flag or (len(name) > len(flag.rpartition("-")[0]) + 1 and flag.startswith(name))


def masked(words: Sequence[str]) -> list[str]:
    known = _known()
    return [
        word[: -len(secret)] + HIDDEN if secret else _hidden(word, known)
        for word, secret in zip(words, _secret_parts(words), strict=True)
    ]


def say(text: str) -> None:
    """Write a line about the start to the log."""
    report(f"[serve] {text}")


def report(text: str, stream: TextIO | None = None) -> None:
    """Write a text to standard error, or to another stream, without secrets.

    Words of servers, hubs and models may be in it: none of their characters commands the terminal, or is half a one.
    """
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in hide(text))
    stream = stream or sys.stderr
    stream.write(shown + "\n")
    stream.flush()


def keep_secret(secret: str) -> None:
    """Hide something from now on that neither the environment nor the command line has, such as a file's content."""
    _FROM_FILES.add(secret)


def hide(text: str) -> str:
    """Hide the secrets of the environment and the command line, and whatever looks like one."""
    return _hidden(text, _known())


def _hidden(text: str, known: set[str]) -> str:
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _SHAPE.sub(HIDDEN, _ASSIGNED.sub(rf"\1{HIDDEN}", text))


def _known() -> set[str]:
    found = {value.strip() for name, value in os.environ.items() if _NAME.search(name)}
    # EXTRA_ARGS may lack a quotation mark, so it is not split as a shell does.
    for words in (sys.argv[1:], os.environ.get("EXTRA_ARGS", "").split()):
        found.update(secret.strip("\"'") for secret in _secret_parts(words))
    found |= _FROM_FILES
    found |= {way for secret in found for way in (json.dumps(secret)[1:-1], shlex.quote(secret))}
    return {secret for secret in found if len(secret) >= SHORTEST}


def _secret_parts(words: Sequence[str]) -> Iterator[str]:
    """Yield for each word the secret that it ends with, empty for most."""
    expected = False
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            secret = bool(_NAME.search(name)) or is_flag(name, KEY_FLAG) or is_flag(name, TOKEN_FLAG)
            expected = secret and not equals
            yield value if secret else ""
        else:
            # --api-key takes several keys, up to the next flag.
            yield word if expected else ""
