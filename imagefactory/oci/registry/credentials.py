"""Finds credentials for a registry: a login with Docker, or the token of a GitHub workflow.

A login comes before GITHUB_TOKEN, because it is deliberate, while a workflow's token may be there for other reasons.
"""

import base64
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.errors import RegistryError, clean
from imagefactory.store.digests import parse_json


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
    login = _logged_in(file, registry) if file.exists() else None
    token = environment.get("GITHUB_TOKEN")
    if login is None and token and registry == "ghcr.io":
        return Credentials(environment.get("GITHUB_ACTOR") or "x-access-token", token, "GITHUB_TOKEN")
    return login


def _logged_in(file: Path, registry: str) -> Credentials | None:
    """Look up a login as Docker does: in its configuration, or with the credential helper that this names."""
    from docker.auth import AuthConfig  # noqa: PLC0415 - slow, and without a login not needed
    from docker.errors import DockerException  # noqa: PLC0415

    try:
        config = parse_json(file.read_bytes())
        with warnings.catch_warnings(action="ignore"):  # of a missing helper, which is an error right after
            login = AuthConfig.load_config(None, config).resolve_authconfig(registry) or {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DockerException) as error:
        raise RegistryError(
            "credentials-refused",
            "The stored credentials cannot be used.",
            where=file,
            why=f"{clean(str(error))}.",
            fix="Log in again (`docker login REGISTRY`), or fix or remove that configuration.",
        ) from None
    # A configuration and a helper spell the keys differently.
    fields = {name.lower(): value for name, value in login.items()}
    if not fields.get("username"):
        return None
    # Docker's own client strips trailing NULs, too.
    return Credentials(fields["username"], fields["password"].rstrip("\0"), str(file))
