"""Requests to a registry, its answers in memory, what it wants in return for access, and what to do when it fails."""

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

import requests

from imagefactory.errors import NO_CONTENT, NO_REPOSITORY, FactoryError, InputError, RegistryError, clean
from imagefactory.store.digests import parse_json
from imagefactory.store.http import (
    TIMEOUT,
    Again,
    Response,
    TooLargeError,
    TooSlowError,
    judge,
    judge_status,
    pieces_of,
    reason_of,
    retry_after,
)

Access = Literal["pull", "pull,push", "pull,push,delete"]  # what a token allows; each one includes those before it

BLOCK = 256 * 1024  # bytes of a body that are read or sent at a time
MOST_TEXT = 8 * 1024 * 1024  # the longest response that is kept in memory; in practice, manifests have at most 4 MiB


@dataclass(frozen=True)
class RegistryRequest:
    """A request without credentials, so that it can be repeated with others."""

    method: str
    url: str
    access: Access = "pull"
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] | None = None
    timeout: tuple[float, float] = TIMEOUT
    stopped: threading.Event | None = None  # when set, it is not sent again, and a CancelledError is raised instead


@dataclass(frozen=True)
class RegistryResponse(Response):
    """What a registry answered, read into memory, with the errors that its body names."""

    def errors(self) -> list[tuple[str, str]]:
        try:
            errors = parse_json(self.body)["errors"]
            return [
                (str(error.get("code", "")), str(error.get("message") or error.get("detail") or "")) for error in errors
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def has_error(self, *codes: str) -> bool:
        return any(code in codes for code, _ in self.errors())

    def describe(self) -> str:
        errors = "; ".join(f"{code}: {message}".strip(": ") for code, message in self.errors())
        text = clean(errors or self.body[:300].decode("utf-8", "replace"))
        return f"{self.status_line}: {text[:300]}" if text else self.status_line

    def again(self) -> Again | None:
        # GitHub's limit has no status of its own.
        limited = self.status == HTTPStatus.FORBIDDEN and b"secondary rate limit" in self.body
        # A new token helps against one that expired or was revoked, but not against too narrow a scope.
        expired = 'error="invalid_token"' in self.headers.get("WWW-Authenticate", "")
        refused = self.status == HTTPStatus.UNAUTHORIZED and expired
        if limited or refused or judge_status(self.status, self.headers):
            return Again(retry_after(self.headers) or 0.0)
        return None


def read_response(response: requests.Response) -> RegistryResponse:
    """Read a response into memory; raise TooLargeError beyond the limit."""
    body = bytearray()
    try:
        for piece in pieces_of(response, MOST_TEXT):
            body += piece
    except requests.RequestException:
        # A truncated error is still an error: docker-registry sends a 416 with the blob's Content-Length.
        if response.ok:
            raise
    return RegistryResponse(response.status_code, response.headers, bytes(body), response.url)


def judge_response(outcome: RegistryResponse | OSError) -> Again | None:
    return outcome.again() if isinstance(outcome, RegistryResponse) else judge(outcome)


@dataclass(frozen=True)
class Challenge:
    """The authorization that a registry requests with a 401."""

    scheme: str  # `basic` or `bearer`
    realm: str
    service: str | None = None


def _is_usable(text: str, scheme: str) -> bool:
    """Return whether the realm of a challenge can be asked; that of Basic is only a name."""
    try:
        return bool(urlsplit(text).netloc if scheme == "bearer" else text)
    except ValueError:
        return False


def read_challenge(header: str) -> Challenge | None:
    for scheme in ("bearer", "basic"):
        match = re.search(rf"(?:^|,)\s*{scheme}\s+(.*)", header, re.IGNORECASE)
        values = requests.utils.parse_dict_header(match[1]) if match else {}  # type: ignore[no-untyped-call]
        if _is_usable(values.get("realm", ""), scheme):
            return Challenge(scheme, values["realm"], values.get("service"))
    return None


class UnsafeRedirectError(requests.RequestException, ValueError):
    """A registry redirects to an address that it should not."""


FailureKind = Literal[
    "credentials", "denied", "missing", "busy", "failed",
    "unreachable", "unsafe", "oversized", "unusable", "absent", "mismatch",
]  # fmt: skip
_FAILURES: dict[FailureKind, tuple[str, str, str]] = {
    "credentials": (
        "credentials-refused",
        "{registry} does not accept {who}.",
        "Log in: `docker login {registry}`, or set GITHUB_TOKEN for ghcr.io. A token may have expired.",
    ),
    "denied": (
        "access-denied",
        "{registry} does not allow you to {doing}.",
        "Use a token that may read or write packages (`packages: write`), or log in: `docker login {registry}`.",
    ),
    "missing": (
        NO_REPOSITORY,
        "{registry} has no repository {repository}.",
        "Check its name (`registry` in matrix.yaml, FACTORY_REGISTRY); the first tag creates it.",
    ),
    "busy": (
        "registry-busy",
        "{registry} is busy, and wants to be asked again much later.",
        "Run the command again after that time: it continues where it stopped.",
    ),
    "failed": (
        "registry-failed",
        "{registry} failed to {doing}.",
        "Run the command again later: it continues where it stopped. If it persists, see the registry's status page.",
    ),
    "unreachable": (
        "registry-unreachable",
        "{registry} cannot be reached, or does not respond.",
        "Check the name, the network, the proxy and the certificates (REQUESTS_CA_BUNDLE), then run the command again.",
    ),
    "unsafe": (
        "unsafe-address",
        "{registry} sends its clients to an unsafe address.",
        "Nothing was sent there. Do not use the registry, or the proxy in front of it, before its owner corrects that.",
    ),
    "oversized": (
        "oversized-answer",
        "{registry} sent an oversized answer.",
        "Check the registry's address. Somebody may have pushed the content; then its owner has to delete it.",
    ),
    "unusable": (
        "unusable-answer",
        "{registry} sent an unusable answer.",
        "Check that the address is that of a container registry; if it is, tell the registry's owner.",
    ),
    "absent": (
        NO_CONTENT,
        "{registry} does not have that content.",
        "Check the tag or digest; `./inv history` lists what was published. Pushing uploads what is missing.",
    ),
    "mismatch": (
        "wrong-digest",
        "{registry} has other content than its digest says.",
        "Try again; if it persists, do not use this registry or the proxy in front of it.",
    ),
}
_EXCEPTIONS: dict[type[requests.RequestException], FailureKind] = {
    requests.ConnectionError: "unreachable",
    requests.Timeout: "unreachable",
    requests.exceptions.ChunkedEncodingError: "unreachable",
    TooSlowError: "unreachable",
    UnsafeRedirectError: "unsafe",
    TooLargeError: "oversized",
    requests.TooManyRedirects: "oversized",
    requests.RequestException: "unusable",
}
"""The first that fits counts."""


def failure(kind: FailureKind, where: str, why: str, **names: str) -> FactoryError:
    """Return an error with its remedy; `names` are those of the table."""
    name, what, fix = _FAILURES[kind]
    error = InputError if kind == "mismatch" else RegistryError
    return error(name, what.format(**names), where=where, why=why, fix=fix.format(**names))


def cause_of(error: requests.RequestException) -> tuple[FailureKind, str | None, str]:
    """Return the kind of an exception of requests, the URL (perhaps of a token server or of storage) and the reason."""
    kind = next(kind for exception, kind in _EXCEPTIONS.items() if isinstance(error, exception))
    url = error.request.url if error.request is not None else None
    return kind, url.partition("?")[0] if url else None, f"{reason_of(error)}."
