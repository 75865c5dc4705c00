"""Requests to a registry: bounded in memory, and careful where they are sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlencode, urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter

from imagefactory.oci.registry.reference import Reference
from imagefactory.store.retry import Again, judge, judge_status, retry_after

BLOCK = 256 * 1024
"""How much of a body is read and sent at a time."""
TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and of silence."""
MOST_TEXT = 8 * 1024 * 1024
"""Bytes of an answer that is kept in memory; manifests are of 4 MiB at most in practice."""
_CONNECTIONS = 8
_REDIRECTS = 5
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SAID_LATER = re.compile(r"retry-after:?\s*((?:[0-9.]+(?:ns|us|µs|ms|s|m|h))+)", re.IGNORECASE)
_DURATION = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)")


class UnsafeRedirectError(requests.RequestException, ValueError):
    """A registry redirects to an address that it should not."""


class Body(Protocol):
    """What is sent with a request: something that knows its length and is read in blocks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def read(self, size: int = -1, /) -> bytes:
        """Return the next block."""


@dataclass(frozen=True)
class Answer:
    """What a registry said."""

    status: int
    headers: Mapping[str, str]
    """Found without regard to case."""
    body: bytes
    url: str

    @property
    def ok(self) -> bool:
        """True when the registry did what it was asked for."""
        return self.status < HTTPStatus.MULTIPLE_CHOICES

    def errors(self) -> list[tuple[str, str]]:
        """Read code and message of the errors in the body; registries send them as JSON."""
        try:
            found = json.loads(self.body)["errors"]
            return [
                (str(error.get("code", "")), str(error.get("message") or error.get("detail") or ""))
                for error in found
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    def has_error(self, *codes: str) -> bool:
        """Return whether the body names one of these errors."""
        return any(code in codes for code, _ in self.errors())

    def said(self) -> str:
        """Return what the registry answered as one line."""
        errors = "; ".join(f"{code}: {message}".strip(": ") for code, message in self.errors())
        text = errors or " ".join(self.body[:300].decode("utf-8", "replace").split())
        try:
            phrase = f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            phrase = str(self.status)
        return f"{phrase}: {text[:300]}" if text else phrase

    def again(self) -> Again | None:
        """Judge whether the same request may succeed a little later."""
        limited = self.status == HTTPStatus.FORBIDDEN and b"secondary rate limit" in self.body
        if limited or self.refuses_token() or judge_status(self.status, self.headers):
            return Again(self.retry_after() or 0.0)
        return None

    def refuses_token(self) -> bool:
        """Return whether a token expired or was withdrawn: a new one helps, unlike for one that allows too little."""
        asked = self.headers.get("WWW-Authenticate", "")
        return self.status == HTTPStatus.UNAUTHORIZED and 'error="invalid_token"' in asked

    def retry_after(self) -> float | None:
        """Read how many seconds to wait: from the header, or from GHCR's message in the body."""
        if self.headers.get("Retry-After"):
            return retry_after(self.headers)
        said = _SAID_LATER.search(self.body[:4096].decode("utf-8", "replace"))
        if said is None:
            return None
        return sum(
            float(number) * _UNITS[unit.lower()] for number, unit in _DURATION.findall(said[1].lower())
        )


class Wire:
    """Connections to one registry."""

    def __init__(self, reference: Reference) -> None:
        self.base = reference.url
        self._session = requests.Session()
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # A proxy cannot reach what is on this machine.
        self._session.trust_env = not reference.is_local
        self._session.headers["User-Agent"] = "spark-image-factory"
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _LargeBlocks(pool_maxsize=_CONNECTIONS))

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def locate(self, location: str, asked: str) -> str:
        """Complete a Location, and refuse one that leads to where only this machine can go."""
        target = urljoin(asked, location)
        here, there = urlsplit(self.base), urlsplit(target)
        if (there.scheme, there.netloc) == (here.scheme, here.netloc):
            return target
        if there.scheme != "https" and not (there.scheme == here.scheme == "http"):
            raise UnsafeRedirectError(
                f"the registry sends us to {there.scheme}://{there.netloc}, without TLS"
            )
        if _is_private(there.hostname or "") and not _is_private(here.hostname or ""):
            raise UnsafeRedirectError(
                f"the registry sends us to {there.netloc}, an address of a private network"
            )
        return target

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        body: bytes | Body | None = None,
        timeout: tuple[float, float] = TIMEOUT,
    ) -> Iterator[requests.Response]:
        """Send a request and lend its answer, whose body is not read yet. Redirects of GET and HEAD are followed."""
        own = urlsplit(url).netloc
        # identity: a transparently compressed body would have another size and other offsets.
        sent = {"Accept-Encoding": "identity", **(headers or {})}
        for _ in range(_REDIRECTS):
            # The secret is for the host that it was meant for, and a .netrc is not for registries.
            auth = _Authorization(authorization if urlsplit(url).netloc == own else None)
            response = self._session.request(
                method,
                url,
                headers=sent,
                params=dict(params or {}),
                data=body,
                auth=auth,
                timeout=timeout,
                allow_redirects=False,
                stream=True,
            )
            with response:
                if method not in ("GET", "HEAD") or not response.is_redirect:
                    yield response
                    return
                read_answer(response, BLOCK)  # a connection whose answer was read can be used again
                url, params = self.locate(response.headers["Location"], url), None
        raise requests.TooManyRedirects("the registry redirects without end")

    def ask(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        authorization: str | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        body: bytes | Body | None = None,
        timeout: tuple[float, float] = TIMEOUT,
        limit: int = MOST_TEXT,
    ) -> Answer:
        """Send a request once and read its answer."""
        with self.stream(
            method,
            url,
            headers=headers,
            authorization=authorization,
            params=params,
            body=body,
            timeout=timeout,
        ) as response:
            return read_answer(response, limit)

    def post_form(self, url: str, form: Mapping[str, str]) -> Answer:
        """Send a form."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", url, headers=headers, body=urlencode(form).encode())


def read_answer(response: requests.Response, limit: int = MOST_TEXT) -> Answer:
    """Read an answer into memory, but never more than a limit (and a byte, which shows that there is more)."""
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in response.iter_content(BLOCK):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                break
    except requests.RequestException:
        # An error counts although its text ends early: docker-registry announces the length of the blob with a 416.
        if response.ok:
            raise
    return Answer(response.status_code, response.headers, b"".join(pieces)[: limit + 1], response.url)


def judge_answer(outcome: Answer | OSError) -> Again | None:
    """Judge whether another attempt may help."""
    return outcome.again() if isinstance(outcome, Answer) else judge(outcome)


class _LargeBlocks(HTTPAdapter):
    """Sends bodies in larger blocks than the 16 KiB of http.client."""

    def init_poolmanager(self, *positional: Any, **options: Any) -> None:  # noqa: ANN401 - theirs
        super().init_poolmanager(*positional, blocksize=BLOCK, **options)


class _Authorization(requests.auth.AuthBase):
    def __init__(self, value: str | None) -> None:
        self._value = value

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._value:
            request.headers["Authorization"] = self._value
        return request


def _is_private(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_private or address.is_loopback or address.is_link_local
