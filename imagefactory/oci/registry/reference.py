"""References: how users name an image in a registry.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull. There is no default registry here: a
reference that leaves it out would be completed differently by every tool.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import NoReturn, Self

from imagefactory.errors.registry import BadReferenceError
from imagefactory.store.digests import Digest

_HOST = r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255
_HOSTS = {"docker.io": "registry-1.docker.io"}
"""Registries that answer under another name than the one that users write."""


@dataclass(frozen=True)
class Reference:
    """A registry, a repository in it, and perhaps a tag or a digest there."""

    registry: str
    """The host, with its port if it has one."""
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ghcr.io/owner/name:tag@sha256:...`; tag and digest may be missing."""
        rest, at, digest = text.strip().partition("@")
        host, slash, path = rest.partition("/")
        host = host.lower()
        repository, colon, tag = path.partition(":")
        if (
            not slash
            or not re.fullmatch(_HOST, host)
            or not ("." in host or ":" in host or host == "localhost")
        ):
            _refuse(text, "It does not begin with the host of a registry, such as ghcr.io/.")
        if repository != repository.lower():
            _refuse(text, f"A repository is written in lower case: {repository.lower()}.")
        if not _REPOSITORY.fullmatch(repository) or len(host) + len(repository) >= _LONGEST_NAME:
            _refuse(text, f"{repository!r} is not the name of a repository.")
        if colon and not _TAG.fullmatch(tag):
            _refuse(text, f"{tag!r} is not a tag: up to 128 letters, digits, dots, dashes and underscores.")
        if at and not _DIGEST.fullmatch(digest):
            _refuse(text, f"{digest!r} is not a digest: `sha256:` and 64 hex digits.")
        return cls(host, repository, tag or None, Digest(digest) if digest else None)

    @property
    def host(self) -> str:
        """Name the host to talk to."""
        return _HOSTS.get(self.registry, self.registry)

    @property
    def is_local(self) -> bool:
        """True for a registry on this machine: it is spoken to without TLS, as Docker does."""
        host = re.sub(r":[0-9]+$", "", self.registry).strip("[]")
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Return the address that all requests to the registry begin with."""
        return f"{'http' if self.is_local else 'https'}://{self.host}"

    @property
    def name(self) -> str:
        """Write the repository without tag and digest."""
        return f"{self.registry}/{self.repository}"

    def tagged(self, tag: str) -> Self:
        """Name a tag of the same repository."""
        if not _TAG.fullmatch(tag):
            _refuse(f"{self.name}:{tag}", f"{tag!r} is not a tag.")
        return replace(self, tag=tag, digest=None)

    def at(self, digest: Digest) -> Self:
        """Name the content with a digest in the same repository."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def is_digest(text: str) -> bool:
    """Return whether this is a digest, not a tag."""
    return _DIGEST.fullmatch(text) is not None


def _refuse(text: str, why: str) -> NoReturn:
    raise BadReferenceError(
        f"{text!r} does not name an image in a registry.",
        where=text.strip() or "(empty)",
        why=why,
        fix="Write it as ghcr.io/OWNER/NAME, followed by :TAG or @sha256:DIGEST where one is meant.",
    )
