"""What to do when a registry refuses, fails, or sends what a registry would not."""

from __future__ import annotations

from typing import Literal

import requests

from imagefactory.errors import FactoryError, InputError, RegistryError
from imagefactory.store.http import TooLargeError, reason_of


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
        "no-repository",
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
        "registry-failed",
        "{registry} sent an unusable answer.",
        "Check that the address is that of a container registry; if it is, tell the registry's owner.",
    ),
    "absent": (
        "no-content",
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
    kind = next(kind for one, kind in _EXCEPTIONS.items() if isinstance(error, one))
    url = error.request.url if error.request is not None else None
    return kind, url.partition("?")[0] if url else None, f"{reason_of(error)}."
