"""The report that an internal error leaves: everything needed to find the bug, and no secrets."""

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

HIDDEN = "***"
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
_SECRET_SHAPE = re.compile(r"\b(?:hf_|gh[opsru]_|github_pat_|sk-)\w{8,}")
_SHORTEST = 6
"""Shorter secrets are not searched for: hiding them would garble the text."""
_PACKAGES = ("spark-image-factory", "invoke", "pydantic", "rich", "requests", "docker", "uv")


def write_report(
    error: BaseException, command: Sequence[str], folders: Iterable[Path], notes: Mapping[str, str]
) -> Path | None:
    """Write a report to the first folder that is writable and return its path, or None."""
    text = report(error, command, os.environ, notes)
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix="imagefactory-error-", suffix=".txt")
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return Path(name)
    return None


def report(
    error: BaseException, command: Sequence[str], environment: Mapping[str, str], notes: Mapping[str, str]
) -> str:
    """Describe an error: the command line, the versions of everything, and the traceback."""
    settings = {name: value for name, value in environment.items() if name.startswith("FACTORY_")}
    lines = [
        f"command:  {shlex.join(without_secrets(command))}",
        *(f"{name + ':':<9} {value}" for name, value in notes.items()),
        f"python:   {sys.version.split()[0]} ({sys.executable})",
        f"platform: {platform.platform()}",
        f"packages: {', '.join(f'{name} {_version(name)}' for name in _PACKAGES)}",
        *(
            f"setting:  {name}={HIDDEN if _SECRET_NAME.search(name) else value}"
            for name, value in sorted(settings.items())
        ),
        "",
        "".join(traceback.format_exception(error)),
    ]
    return hide("\n".join(lines), command, environment)


def hide(text: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Replace the secrets of the command line and the environment, and whatever looks like a token."""
    secrets = {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    shown = without_secrets(command)
    for given, left in zip(command, shown, strict=True):
        if given != left:
            secrets.add(given.removeprefix(left.removesuffix(HIDDEN)))
    # A key of several lines may be quoted in parts, or escaped as Python does.
    secrets |= {line for value in secrets for line in value.splitlines()}
    secrets |= {repr(value)[1:-1] for value in secrets}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _SECRET_SHAPE.sub(HIDDEN, redact(text))


def without_secrets(command: Sequence[str]) -> list[str]:
    """Hide the values of options and settings whose names mean secrets: --x-token VALUE, X_KEY=VALUE."""
    shown: list[str] = []
    value_is_secret = False
    for word in command:
        name, sign, _ = word.partition("=")
        if value_is_secret and not word.startswith("-"):
            shown.append(HIDDEN)
        elif sign and _SECRET_NAME.search(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(word)
        value_is_secret = word.startswith("-") and not sign and bool(_SECRET_NAME.search(word))
    return shown


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
