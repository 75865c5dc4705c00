"""References, with which users name an image in a registry.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pull. There is no default registry, because every
tool would assume a different one.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any, NoReturn, Self

from imagefactory.errors import RegistryError
from imagefactory.store.digests import Digest

_HOST = r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME = 255  # characters of host, slash and repository, as in Docker
_LARGEST = 2**63  # more than any blob has; Go, in which registries are written, counts up to this
_HOSTS = {"docker.io": "registry-1.docker.io"}  # registries whose API has another host than the name that users write


@dataclass(frozen=True)
class Reference:
    """A registry, a repository in it, and optionally a tag or a digest."""

    registry: str  # the host, with an optional port
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str, origin: str = "") -> Self:
        """Parse `ghcr.io/owner/name:tag@sha256:...`; tag and digest are optional. Errors name the origin."""
        rest, at, digest = text.strip().partition("@")
        host, slash, path = rest.partition("/")
        host = host.lower()
        repository, colon, tag = path.partition(":")
        named = "." in host or ":" in host or host == "localhost"
        if not slash or not named or not re.fullmatch(_HOST, host):
            _refuse(text, "It does not start with the host of a registry, such as ghcr.io/.", origin)
        if repository != repository.lower():
            _refuse(text, f"A repository name is lower case: {repository.lower()}.", origin)
        if not _REPOSITORY.fullmatch(repository) or len(host) + len(repository) >= _LONGEST_NAME:
            _refuse(text, f"{repository!r} is not a valid repository name.", origin)
        if colon and not _TAG.fullmatch(tag):
            why = f"{tag!r} is not a tag: up to 128 letters, digits, dots, dashes and underscores."
            _refuse(text, why, origin)
        if at and not _DIGEST.fullmatch(digest):
            _refuse(text, f"{digest!r} is not a digest: `sha256:` and 64 hex digits.", origin)
        return cls(host, repository, tag or None, Digest(digest) if digest else None)

    @property
    def host(self) -> str:
        return _HOSTS.get(self.registry, self.registry)

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine; such a registry is used without TLS, as in Docker."""
        host = re.sub(r":[0-9]+$", "", self.registry).strip("[]")
        with suppress(ValueError):
            return host == "localhost" or ip_address(host).is_loopback
        return False

    @property
    def url(self) -> str:
        return f"{'http' if self.is_local else 'https'}://{self.host}"

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    def tagged(self, tag: str) -> Self:
        if not _TAG.fullmatch(tag):
            _refuse(f"{self.name}:{tag}", f"{tag!r} is not a tag.")
        return replace(self, tag=tag, digest=None)

    def at(self, digest: Digest) -> Self:
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def is_tag(text: object) -> bool:
    return isinstance(text, str) and _TAG.fullmatch(text) is not None


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _refuse(text: str, why: str, origin: str = "") -> NoReturn:
    where = text.strip() or "(empty)"
    raise RegistryError(
        "bad-reference",
        f"{text!r} does not name an image in a registry.",
        where=f"{origin}: {where}" if origin else where,
        why=why,
        fix="Write it as ghcr.io/OWNER/NAME, optionally followed by :TAG or @sha256:DIGEST.",
    )


@dataclass(frozen=True)
class Descriptor:
    """The type, digest and size of some content, with optional metadata."""

    media_type: str
    digest: Digest
    size: int
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, str] | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Parse a descriptor; raise ValueError, KeyError, TypeError or AttributeError if it is none."""
        digest, size = str(document["digest"]), document["size"]
        if not is_digest(digest) or not isinstance(size, int) or not 0 <= size < _LARGEST:
            raise ValueError("it has no digest, or no size")
        kind, platform = document.get("artifactType"), document.get("platform")
        if platform is not None and not isinstance(platform, dict):
            raise TypeError("its platform is no object")
        return cls(
            str(document["mediaType"]),
            Digest(digest),
            size,
            None if kind is None else str(kind),
            {str(name): str(value) for name, value in (document.get("annotations") or {}).items()},
            platform,
        )

    def document(self) -> dict[str, object]:
        written: dict[str, object] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        optional = {"artifactType": self.artifact_type, "platform": self.platform, "annotations": self.annotations}
        return written | {key: value for key, value in optional.items() if value}
