"""The report of an internal error, with everything needed to find the bug and no secrets."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from imagefactory.environment.index_config import redact

_HIDDEN = "***"
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_SECRET_SHAPE = re.compile(r"\b(?:hf_|gh[opsru]_|github_pat_|sk-)\w{8,}")
_SHORTEST = 6  # hiding shorter secrets would garble the text
_PACKAGES = ("invoke", "pydantic", "rich", "requests", "docker", "uv")


def write_report(error: BaseException, folders: Iterable[Path], notes: Mapping[str, str]) -> Path | None:
    """Write a report to the first writable folder and return its path, or None."""
    text = _report(error, notes)
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix="imagefactory-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(name)
    return None


def _report(error: BaseException, notes: Mapping[str, str]) -> str:
    settings = {name: value for name, value in os.environ.items() if name.startswith("FACTORY_")}
    lines = [
        f"command:  {shlex.join(['inv', *_without_secrets(sys.argv[1:])])}",
        *(f"{name + ':':<9} {value}" for name, value in notes.items()),
        f"python:   {sys.version.split()[0]} ({sys.executable})",
        f"platform: {platform.platform()}",
        f"packages: {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}",
        *(
            f"setting:  {name}={_HIDDEN if _SECRET_NAME.search(name) else value}"
            for name, value in sorted(settings.items())
        ),
        "",
        "".join(traceback.format_exception(error)),
    ]
    return hide("\n".join(lines))


def hide(text: str) -> str:
    """Replace the secrets of the command line and the environment, and whatever looks like a token."""
    secrets = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    for given, left in zip(sys.argv, _without_secrets(sys.argv), strict=True):
        if given != left:
            secrets.update(_values(given.removeprefix(left.removesuffix(_HIDDEN))))
    # A key of several lines may be quoted in parts, or escaped as Python does.
    secrets |= {line for value in secrets for line in value.splitlines()}
    secrets |= {repr(value)[1:-1] for value in secrets}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, _HIDDEN)
    return _SECRET_SHAPE.sub(_HIDDEN, redact(text))


def _without_secrets(command: Sequence[str]) -> list[str]:
    """Hide the values of options and settings with secret names, such as --x-token VALUE and X_KEY=VALUE.

    A setting may hold such options itself: EXTRA_ARGS=--x-token VALUE.
    """
    shown: list[str] = []
    value_is_secret = False
    for word in command:
        name, sign, _ = word.partition("=")
        if value_is_secret and not word.startswith("-"):
            shown.append(_HIDDEN)
        elif sign and _SECRET_NAME.search(word):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(word)
        value_is_secret = word.startswith("-") and not sign and bool(_SECRET_NAME.search(word))
    return shown


def _values(text: str) -> set[str]:
    """Return the parts of a hidden text that may be secrets: values of settings, and words that are no options."""
    name, sign, value = text.partition("=")
    inner = _values(value) if sign and re.fullmatch(r"[\w-]+", name) else set()
    words = {word.strip("\"'") for word in text.split() if not word.startswith("-")}
    return {text, *words, *inner}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
