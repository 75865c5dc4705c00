"""Finds the API key that a user gave for a container, and keeps it in a file that only the user can read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from imagefactory.environment.paths import expand_home
from imagefactory.errors.serving import KeyNotPassedError
from imagefactory.servers.setting import KEY_SETTINGS


def find_key_file(folder: Path, given: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """Return the file with the API key, or None if no key was given; a key given as text is written to `folder`.

    Settings win over the environment. A key that is given but empty is refused: the server would be open.
    """
    for where, values in (("the --set option", given), ("the environment", environment)):
        names = [name for name in KEY_SETTINGS if name in values]
        if len(names) > 1:
            raise KeyNotPassedError(
                f"{' and '.join(names)} are both given.",
                where=where,
                why="A server has one key.",
                fix=f"Leave out one of them, preferably {names[0]}.",
            )
        if names:
            value = values[names[0]]
            return (
                write_key_file(folder, value, where)
                if names[0] == "VLLM_API_KEY"
                else _existing(value, where)
            )
    return None


def write_key_file(folder: Path, key: str, where: str = "the environment") -> Path:
    """Write an API key to a file that only its owner can read, for mounting into a container."""
    if not key.isprintable() or len(key.split()) != 1:
        raise KeyNotPassedError(
            "VLLM_API_KEY is empty or contains blanks.",
            where=where,
            why="Clients send the key as one word. Without a key, the server would be open to everyone.",
            fix="Make one with `openssl rand -hex 32`; to serve without a key, leave VLLM_API_KEY out.",
        )
    path = folder / "vllm_api_key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
    except OSError as error:
        raise KeyNotPassedError(
            "The API key cannot be written to a file.",
            where=path,
            why=str(error.strerror),
            fix="Make the folder writable, or start without a key.",
        ) from None
    return path


def _existing(name: str, where: str) -> Path:
    path = expand_home(name, "VLLM_API_KEY_FILE").absolute()
    if not name.strip() or not os.access(path, os.R_OK) or not path.is_file():
        raise KeyNotPassedError(
            "VLLM_API_KEY_FILE names no readable file.",
            where=where,
            why="The container gets the key from this file of this machine.",
            fix="Correct the path; to serve without a key, leave VLLM_API_KEY_FILE out.",
        )
    return path
