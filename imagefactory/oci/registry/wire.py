"""HTTP requests to a registry, with bounded memory and safe redirects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter

from imagefactory.oci.registry.reference import Reference
from imagefactory.store.json_text import parse_json
from imagefactory.store.retry import Again, judge, judge_status, retry_after

BLOCK = 256 * 1024
"""Bytes of a body that are read or sent at a time."""
TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and to wait for the next bytes."""
MOST_TEXT = 8 * 1024 * 1024
"""The longest response that is kept in memory; in practice, manifests have at most 4 MiB."""
_CONNECTIONS = 8
_REDIRECTS = 5
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_RETRY_AFTER = re.compile(rf"retry-after:?\s*((?:{_DURATION.pattern})+)", re.IGNORECASE)


class UnsafeRedirectError(requests.RequestException, ValueError):
    """A registry redirects to an address that it should not."""


@dataclass(frozen=True)
class RegistryRequest:
    """A request without credentials, so that it can be repeated with others."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] | None = None
    timeout: tuple[float, float] = TIMEOUT


@dataclass(frozen=True)
class Answer:
    """A registry's response, read into memory."""

    status: int
    headers: Mapping[str, str]
    """Looked up case-insensitively."""
    body: bytes
    url: str

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return self.status < HTTPStatus.MULTIPLE_CHOICES

    def errors(self) -> list[tuple[str, str]]:
        """Return the code and message of each error in the body."""
        try:
            found = parse_json(self.body)["errors"]
            return [
                (str(error.get("code", "")), str(error.get("message") or error.get("detail") or ""))
                for error in found
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def has_error(self, *codes: str) -> bool:
        """Return whether the body contains one of these error codes."""
        return any(code in codes for code, _ in self.errors())

    def said(self) -> str:
        """Return the status and the errors on one line."""
        errors = "; ".join(f"{code}: {message}".strip(": ") for code, message in self.errors())
        text = errors or " ".join(self.body[:300].decode("utf-8", "replace").split())
        try:
            phrase = f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            phrase = str(self.status)
        return f"{phrase}: {text[:300]}" if text else phrase

    def again(self) -> Again | None:
        """Judge whether the same request may succeed later."""
        limited = self.status == HTTPStatus.FORBIDDEN and b"secondary rate limit" in self.body
        if limited or self.refuses_token() or judge_status(self.status, self.headers):
            return Again(self.retry_after() or 0.0)
        return None

    def refuses_token(self) -> bool:
        """Return whether the token expired or was revoked; a new one helps, unlike for insufficient scope."""
        challenge = self.headers.get("WWW-Authenticate", "")
        return self.status == HTTPStatus.UNAUTHORIZED and 'error="invalid_token"' in challenge

    def retry_after(self) -> float | None:
        """Return how many seconds to wait, from the header or from GHCR's message in the body."""
        if self.headers.get("Retry-After"):
            return retry_after(self.headers)
        found = _RETRY_AFTER.search(self.body[:4096].decode("utf-8", "replace"))
        if found is None:
            return None
        return sum(
            float(number) * _UNITS[unit.lower()] for number, unit in _DURATION.findall(found[1].lower())
        )


class Wire:
    """Connections to one registry."""

    def __init__(self, reference: Reference) -> None:
        self.base = reference.url
        self._session = requests.Session()
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # A proxy cannot reach a registry on this machine.
        self._session.trust_env = not reference.is_local
        self._session.headers["User-Agent"] = "spark-image-factory"
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _LargeBlocks(pool_maxsize=_CONNECTIONS))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def locate(self, location: str, asked: str) -> str:
        """Resolve a Location header; refuse one that drops TLS or enters a private network."""
        target = urljoin(asked, location)
        here, there = urlsplit(self.base), urlsplit(target)
        if (there.scheme, there.netloc) == (here.scheme, here.netloc):
            return target
        if there.scheme != "https" and not (there.scheme == here.scheme == "http"):
            raise UnsafeRedirectError(
                f"the registry redirects to {there.scheme}://{there.netloc}, without TLS"
            )
        if _is_private(there.hostname or "") and not _is_private(here.hostname or ""):
            raise UnsafeRedirectError(
                f"the registry redirects to {there.netloc}, an address of a private network"
            )
        return target

    @contextmanager
    def stream(
        self, request: RegistryRequest, authorization: str | None = None
    ) -> Iterator[requests.Response]:
        """Send a request and yield its response before the body is read; follow redirects of GET and HEAD."""
        url, params = request.url, dict(request.params)
        own = urlsplit(url).netloc
        for _ in range(_REDIRECTS):
            response = self._session.request(
                request.method,
                url,
                # identity: a compressed body would have another size and other offsets.
                headers={"Accept-Encoding": "identity", **request.headers},
                params=params,
                data=request.body,
                # A redirect to another host gets no secret, and registries do not use .netrc.
                auth=partial(_authorize, authorization if urlsplit(url).netloc == own else None),
                timeout=request.timeout,
                allow_redirects=False,
                stream=True,
            )
            with response:
                if request.method not in ("GET", "HEAD") or not response.is_redirect:
                    yield response
                    return
                read_answer(response, BLOCK)  # a connection is reused only after its response was read
                url, params = self.locate(response.headers["Location"], url), {}
        raise requests.TooManyRedirects("the registry redirects endlessly")

    def ask(self, request: RegistryRequest, authorization: str | None = None) -> Answer:
        """Send a request once and read its response."""
        with self.stream(request, authorization) as response:
            return read_answer(response)


def read_answer(response: requests.Response, limit: int = MOST_TEXT) -> Answer:
    """Read a response into memory, up to one byte beyond the limit, which shows that there is more."""
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in response.iter_content(BLOCK):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
    except requests.RequestException:
        # A truncated error is still an error: docker-registry sends a 416 with the blob's Content-Length.
        if response.ok:
            raise
    return Answer(response.status_code, response.headers, b"".join(pieces)[: limit + 1], response.url)


def judge_answer(outcome: Answer | OSError) -> Again | None:
    """Judge whether another attempt may help."""
    return outcome.again() if isinstance(outcome, Answer) else judge(outcome)


class _LargeBlocks(HTTPAdapter):
    """Sends bodies in larger blocks than http.client, which uses 16 KiB."""

    def init_poolmanager(self, *positional: Any, **options: Any) -> None:  # noqa: ANN401 - theirs
        super().init_poolmanager(*positional, blocksize=BLOCK, **options)


def _authorize(value: str | None, request: requests.PreparedRequest) -> requests.PreparedRequest:
    if value:
        request.headers["Authorization"] = value
    return request


def _is_private(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback or address.is_link_local
