"""Finds credentials for a registry: a login with Docker or podman, or the token of a GitHub workflow.

A login comes before GITHUB_TOKEN, because it is deliberate, while a workflow's token may be there for other reasons.
https://github.com/docker/docker-credential-helpers describes credential helpers.
"""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import RegistryError
from imagefactory.store.digests import parse_json

_KEYS = {"docker.io": "index.docker.io"}
"""The names under which `docker login` stores credentials, where they differ from the registry's."""
_HELPER_TIMEOUT = 60
"""Seconds, because a helper may ask the user to unlock a keychain."""
_NOT_FOUND = "credentials not found"
_IDENTITY = "<token>"
"""The user name that marks a helper's secret as an identity token."""


@dataclass(frozen=True)
class Credentials:
    """A user name with a password or an identity token, and their source."""

    username: str
    secret: str = field(repr=False)
    source: str
    identity_token: bool = False
    """Whether the secret is a refresh token (OAuth 2), not a password."""

    def basic(self) -> str:
        """Return the value of an Authorization header."""
        pair = f"{self.username}:{self.secret}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"


def find_credentials(
    registry: str, repository: str, environment: Mapping[str, str] = os.environ
) -> Credentials | None:
    """Return this machine's credentials for a registry, or None if it has none."""
    for source, text in _configurations(environment):
        found = _in_configuration(text, source, _KEYS.get(registry, registry), repository)
        if found:
            return found
    token = environment.get("GITHUB_TOKEN")
    if token and registry == "ghcr.io":
        return Credentials(environment.get("GITHUB_ACTOR") or "x-access-token", token, "GITHUB_TOKEN")
    return None


def _configurations(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the source and text of each configuration that may hold credentials."""
    if environment.get("DOCKER_AUTH_CONFIG"):
        yield "DOCKER_AUTH_CONFIG", environment["DOCKER_AUTH_CONFIG"]
    home = Path(environment.get("HOME") or Path.home())
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker")
    podman = {"REGISTRY_AUTH_FILE": "", "XDG_RUNTIME_DIR": "containers/auth.json"}
    files = [Path(environment[name]) / below for name, below in podman.items() if environment.get(name)]
    for file in (docker / "config.json", *files):
        try:
            yield str(file), file.read_text("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(str(file), f"The file cannot be read: {error}.") from None


def _in_configuration(text: str, source: str, registry: str, repository: str) -> Credentials | None:
    try:
        config = parse_json(text)
        helpers = {str(host): str(name) for host, name in (config.get("credHelpers") or {}).items()}
        store = config.get("credsStore")
        auths = {_host_of(key): entry for key, entry in (config.get("auths") or {}).items()}
    except (ValueError, AttributeError):
        raise _unusable(source, "It is not the JSON that `docker login` writes.") from None
    if helpers.get(registry):
        return _from_helper(helpers[registry], registry)
    # podman also stores logins for parts of a registry; the most specific one wins.
    parts = repository.split("/")
    for length in range(len(parts), -1, -1):
        entry = auths.get("/".join([registry, *parts[:length]]))
        if isinstance(entry, dict) and (found := _from_entry(entry, source)):
            return found
    return _from_helper(str(store), registry) if store else None


def _host_of(key: str) -> str:
    """Strip scheme and version from a key of `auths`: `https://index.example/v2/` becomes index.example."""
    bare = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    return bare.removesuffix("/v1").removesuffix("/v2").rstrip("/")


def _from_entry(entry: dict[str, object], source: str) -> Credentials | None:
    token = entry.get("identitytoken")
    username, secret = str(entry.get("username") or ""), str(entry.get("password") or "")
    packed = entry.get("auth")
    if packed and isinstance(packed, str):
        try:
            username, _, secret = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise _unusable(source, "One of its `auth` values is not base64 of USER:PASSWORD.") from None
        secret = secret.rstrip("\0")
    if token and isinstance(token, str):
        return Credentials(username, token, source, identity_token=True)
    return Credentials(username, secret, source) if username and secret else None


def _from_helper(name: str, registry: str) -> Credentials | None:
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run(  # noqa: S603 - the user's own configuration names it, as for Docker
            [program, "get"],
            input=registry,
            capture_output=True,
            text=True,
            timeout=_HELPER_TIMEOUT,
            check=False,
        )
    except FileNotFoundError:
        raise _unusable(program, "Docker's configuration names it, but it is not installed.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unusable(program, f"It did not respond: {error}.") from None
    if done.returncode:
        said = (done.stdout or done.stderr).strip()
        if _NOT_FOUND in said.lower():
            return None
        raise _unusable(program, f"It failed: {said[:200] or f'exit status {done.returncode}'}.")
    try:
        answer = parse_json(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError):
        raise _unusable(program, "Its output is not JSON with Username and Secret.") from None
    return Credentials(username, secret, program, identity_token=username == _IDENTITY)


def _unusable(source: str, why: str) -> RegistryError:
    return RegistryError(
        "credentials-refused",
        "The stored credentials cannot be used.",
        where=source,
        why=why,
        fix="Log in again (`docker login REGISTRY`), or fix or remove that configuration.",
    )
