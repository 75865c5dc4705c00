"""Finds credentials for a registry: a login with Docker, or the token of a GitHub workflow.

A login comes before GITHUB_TOKEN, because it is deliberate, while a workflow's token may be there for other reasons.
https://github.com/docker/docker-credential-helpers describes credential helpers.
"""

import base64
import binascii
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import RegistryError
from imagefactory.store.digests import parse_json

_KEYS = {"docker.io": "index.docker.io"}
"""The names under which `docker login` stores credentials, where they differ from the registry's."""
_HELPER_TIMEOUT = 60  # seconds, because a helper may ask the user to unlock a keychain


@dataclass(frozen=True)
class Credentials:
    """A user name with a password or token, and their source."""

    username: str
    secret: str = field(repr=False)
    source: str

    def basic(self) -> str:
        pair = f"{self.username}:{self.secret}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find_credentials(registry: str, environment: Mapping[str, str] = os.environ) -> Credentials | None:
    home = environment.get("HOME") or Path.home()
    file = Path(environment.get("DOCKER_CONFIG") or Path(home, ".docker")) / "config.json"
    try:
        found = _in_configuration(file.read_text("utf-8"), str(file), _KEYS.get(registry, registry))
    except (FileNotFoundError, NotADirectoryError):
        found = None
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(str(file), f"The file cannot be read: {error}.") from None
    token = environment.get("GITHUB_TOKEN")
    if found is None and token and registry == "ghcr.io":
        return Credentials(environment.get("GITHUB_ACTOR") or "x-access-token", token, "GITHUB_TOKEN")
    return found


def _in_configuration(text: str, source: str, registry: str) -> Credentials | None:
    try:
        config = parse_json(text)
        helper = (config.get("credHelpers") or {}).get(registry)
        auths = {_host_of(key): entry for key, entry in (config.get("auths") or {}).items()}
        packed = (auths.get(registry) or {}).get("auth")
        store = config.get("credsStore")
    except (ValueError, AttributeError):
        raise _unusable(source, "It is not the JSON that `docker login` writes.") from None
    if packed and not helper:
        try:
            username, _, secret = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, TypeError):
            raise _unusable(source, "One of its `auth` values is not base64 of USER:PASSWORD.") from None
        return Credentials(username, secret.rstrip("\0"), source)
    return _from_helper(str(helper or store), registry) if helper or store else None


def _host_of(key: str) -> str:
    """Strip scheme and version from a key of `auths`: `https://index.example/v2/` becomes index.example."""
    bare = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return bare.removesuffix("/v1").removesuffix("/v2").rstrip("/")


def _from_helper(name: str, registry: str) -> Credentials | None:
    program = f"docker-credential-{name}"
    # With a folder in PATH that cannot be read, running it would merely not be permitted.
    if shutil.which(program) is None:
        raise _unusable(program, "Docker's configuration names it, but no folder in PATH has it.")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own configuration names it, as for Docker
            [program, "get"],
            input=registry,
            capture_output=True,
            text=True,
            timeout=_HELPER_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(program, f"Docker's configuration names it, but it does not run: {error}.") from None
    said = (done.stdout or done.stderr).strip()
    if done.returncode and "credentials not found" in said.lower():
        return None
    if done.returncode:
        raise _unusable(program, f"It failed: {said[:200] or f'exit status {done.returncode}'}.")
    try:
        answer = parse_json(done.stdout)
        return Credentials(str(answer["Username"]), str(answer["Secret"]), program)
    except (ValueError, KeyError, TypeError):
        raise _unusable(program, "Its output is not JSON with Username and Secret.") from None


def _unusable(source: str, why: str) -> RegistryError:
    return RegistryError(
        "credentials-refused",
        "The stored credentials cannot be used.",
        where=source,
        why=why,
        fix="Log in again (`docker login REGISTRY`), or fix or remove that configuration.",
    )
