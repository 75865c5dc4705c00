"""What to do when a registry refuses, fails, or sends what a registry would not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import requests

from imagefactory.errors import FactoryError, InputError, RegistryError
from imagefactory.oci.registry.answers import MOST_TEXT, Answer
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.store.digests import TooDeepError, parse_json


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
_STATUSES: dict[int, FailureKind] = {401: "credentials", 403: "denied"}
_EXCEPTIONS: dict[type[requests.RequestException], FailureKind] = {
    requests.ConnectionError: "unreachable",
    requests.Timeout: "unreachable",
    requests.exceptions.ChunkedEncodingError: "unreachable",
    UnsafeRedirectError: "unsafe",
    requests.TooManyRedirects: "oversized",
    requests.RequestException: "unusable",
}
"""The first that fits counts."""


@dataclass(frozen=True)
class Failures:
    """Makes the errors of one repository."""

    reference: Reference
    credentials: Credentials | None
    patience: float
    """The longest wait in seconds that a registry may ask for."""

    def make(self, kind: FailureKind, where: str, why: str, *, doing: str = "") -> FactoryError:
        """Return an error with its remedy."""
        name, what, fix = _FAILURES[kind]
        error = InputError if kind == "mismatch" else RegistryError
        names = {
            "registry": self.reference.registry,
            "repository": self.reference.repository,
            "doing": doing,
            "who": self._who,
        }
        return error(name, what.format(**names), where=where, why=why, fix=fix.format(**names))

    def of(self, answer: Answer, doing: str, kind: FailureKind | None = None) -> FactoryError:
        """Return the error for an unsuccessful answer."""
        again = answer.again()
        kind = kind or _STATUSES.get(answer.status)
        why = f"It answered {answer.said()}."
        if again is not None and again.after > self.patience:
            kind = "busy"
            why = f"It asks for a wait of {again.after:,.0f} s; a command waits {self.patience:,.0f} s. {why}"
        elif kind is not None:
            why = f"It answered {answer.said()} to {self._who}."
        else:
            kind = "missing" if answer.has_error("NAME_UNKNOWN") else "failed"
        return self.make(kind, f"{self.reference.name} ({doing})", why, doing=doing)

    @property
    def _who(self) -> str:
        if self.credentials is None:
            return "a request without credentials"
        return f"the credentials of {self.credentials.username!r} from {self.credentials.source}"

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turn exceptions of requests into errors with a remedy."""
        try:
            yield
        except requests.RequestException as error:
            kind = next(kind for one, kind in _EXCEPTIONS.items() if isinstance(error, one))
            raise self.make(kind, _url_of(error) or self.reference.url, _innermost(error)) from None

    def parse(self, body: bytes, where: str) -> Any:  # noqa: ANN401 - anything may come
        """Parse the JSON of an answer; raise ValueError if it is none, oversized-answer if it is too much."""
        if len(body) > MOST_TEXT:
            raise self.make("oversized", where, f"It has more than {MOST_TEXT:,} bytes.")
        try:
            return parse_json(body)
        except TooDeepError:
            raise self.make("oversized", where, "It is nested too deeply.") from None


def _url_of(error: requests.RequestException) -> str | None:
    """Return the requested URL, which may be that of a token server or of blob storage."""
    url = error.request.url if error.request is not None else None
    return url.partition("?")[0] if url else None


def _innermost(error: Exception) -> str:
    """Return the message of the exception that requests wrapped."""
    reason: object = error
    while isinstance(reason, Exception):
        inner = getattr(reason, "reason", None) or next(iter(reason.args), None)
        if not isinstance(inner, Exception):
            break
        reason = inner
    text = str(reason).partition(": ")[2] if "object at 0x" in str(reason) else str(reason)
    return f"{(text or type(error).__name__)[:300].rstrip('.')}."
