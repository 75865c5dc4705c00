"""Requests to one repository: authorized, retried, with bounded memory and safe redirects.

A registry's first 401 names its token server (https://distribution.github.io/distribution/spec/auth/token/), or asks
for the password itself. After that, tokens are fetched ahead of requests, reused until they expire, and replaced if the
registry refuses them.
"""

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

import requests

from imagefactory.errors import FactoryError
from imagefactory.oci.registry.credentials import Credentials, find_credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.responses import (
    Access,
    Challenge,
    FailureKind,
    RegistryRequest,
    RegistryResponse,
    UnsafeRedirectError,
    cause_of,
    failure,
    judge_response,
    read_challenge,
    read_response,
)
from imagefactory.store.digests import Digest, parse_json
from imagefactory.store.http import Retry, new_session

_RETRY = Retry(attempts=7)
_CONNECTIONS = 8
_REDIRECTS = 5
_LIFETIME = 60.0  # seconds that a token is valid if the server does not say, by the specification of tokens


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    until: float  # on the monotonic clock, because the clocks of two machines may disagree


class Connection:
    """Sends requests to one repository. Threads may share it."""

    def __init__(
        self, reference: Reference, credentials: Credentials | None = None, retry: Retry | None = None
    ) -> None:
        self.reference = reference
        self.credentials = credentials or find_credentials(reference.registry)
        self.retry = retry or _RETRY
        self._lasting = replace(self.retry, unreached=math.inf)
        self._challenge: Challenge | None = None
        self._tokens: dict[Access, _Token] = {}
        self._lock = threading.Lock()
        self._session = new_session(_CONNECTIONS)
        # Without an allowed domain, no cookie is kept.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # A proxy cannot reach a registry on this machine.
        self._session.trust_env = not reference.is_local
        self._session.headers["User-Agent"] = "spark-image-factory"

    def close(self) -> None:
        self._session.close()

    def url(self, path: str) -> str:
        return f"{self.reference.url}/v2/{self.reference.repository}/{path}"

    # --- requests --------------------------------------------------------------------------------

    def ask(self, request: RegistryRequest) -> RegistryResponse:
        """Send a request, and retry it where that may help; the caller judges the final answer."""
        with self.named_failures():
            attempt = partial(self.ask_once, request)
            return self.retry.run(attempt, later=judge_response, stopped=request.stopped)

    def ask_once(self, request: RegistryRequest) -> RegistryResponse:
        with self.stream(request) as response:
            return response if isinstance(response, RegistryResponse) else read_response(response)

    def has_blob(self, digest: Digest, access: Access = "pull", stopped: threading.Event | None = None) -> bool:
        answer = self.ask(RegistryRequest("HEAD", self.url(f"blobs/{digest}"), access, stopped=stopped))
        if answer.ok or answer.status == HTTPStatus.NOT_FOUND:
            return answer.ok
        raise self.failure(answer, "look up a blob")

    @contextmanager
    def stream(self, request: RegistryRequest) -> Iterator[requests.Response | RegistryResponse]:
        """Yield a successful response before its body is read, or the answer that came instead.

        A request whose token is refused is sent once more with a new one, unless its body is a stream.
        """
        ours = urlsplit(request.url).netloc == self.reference.host  # another host gets no secret
        sent = self._authorization(request.access) if ours else None
        with self.send(request, sent) as response:
            if response.status_code != HTTPStatus.UNAUTHORIZED or not ours:
                yield response if response.ok else read_response(response)
                return
            answer = read_response(response)
        self._learn(answer, sent)
        renewed = self._authorization(request.access)
        if renewed == sent or not isinstance(request.body, bytes | None):
            yield answer
            return
        if request.stopped is not None and request.stopped.is_set():  # a new token may take long
            raise CancelledError
        with self.send(request, renewed) as response:
            yield response if response.ok else read_response(response)

    @contextmanager
    def send(self, request: RegistryRequest, authorization: str | None) -> Iterator[requests.Response]:
        """Send a request and yield its response before the body is read; follow redirects of GET and HEAD."""
        url, params = request.url, dict(request.params)
        host = urlsplit(url).netloc
        for _ in range(_REDIRECTS):
            response = self._session.request(
                request.method,
                url,
                # identity: a compressed body would have another size and other offsets.
                headers={"Accept-Encoding": "identity", **request.headers},
                params=params,
                data=request.body,
                # A redirect to another host gets no secret, and registries do not use .netrc.
                auth=partial(_authorize, authorization if urlsplit(url).netloc == host else None),
                timeout=request.timeout,
                allow_redirects=False,
                stream=True,
            )
            self.retry = self._lasting  # it was there: if it is gone, it may be restarting
            with response:
                if request.method not in ("GET", "HEAD") or not response.is_redirect:
                    yield response
                    return
                url, params = self.locate(response.headers["Location"], url), {}
        raise requests.TooManyRedirects("the registry redirects endlessly")

    def locate(self, location: str, asked: str) -> str:
        """Resolve a Location header; refuse one that drops TLS or enters a private network."""
        registry = urlsplit(self.reference.url)
        try:
            url = urljoin(asked, location)
            target = urlsplit(url)
        except ValueError:
            wrong = "the registry redirects to something else than a URL"
            raise requests.exceptions.InvalidURL(wrong) from None
        if (target.scheme, target.netloc) == (registry.scheme, registry.netloc):
            return url
        if target.scheme != "https" and not (target.scheme == registry.scheme == "http"):
            place = f"{target.scheme}://{target.netloc}, without TLS"
            raise UnsafeRedirectError(f"the registry redirects to {place}")
        if _is_private(target.hostname or "") and not _is_private(registry.hostname or ""):
            place = f"{target.netloc}, an address of a private network"
            raise UnsafeRedirectError(f"the registry redirects to {place}")
        return url

    # --- failures --------------------------------------------------------------------------------

    def error(self, kind: FailureKind, where: str, why: str, doing: str = "") -> FactoryError:
        names = {"registry": self.reference.registry, "repository": self.reference.repository}
        return failure(kind, where, why, doing=doing, who=self._who, **names)

    def failure(self, answer: RegistryResponse, doing: str, kind: FailureKind | None = None) -> FactoryError:
        again, patience = answer.again(), self.retry.patience
        why = f"It answered {answer.describe()}."
        if answer.status == HTTPStatus.UNAUTHORIZED:
            # A registry that issued a token knows the user, and still refuses this.
            kind = kind or ("denied" if self.credentials and not self._is_basic else "credentials")
        elif answer.status == HTTPStatus.FORBIDDEN:
            kind = "denied"
        if again is not None and again.after > patience:
            kind = "busy"
            why = f"It asks for a wait of {again.after:,.0f} s; a command waits {patience:,.0f} s. {why}"
        elif kind is not None:
            why = f"It answered {answer.describe()} to {self._who}."
        else:
            kind = "missing" if answer.has_error("NAME_UNKNOWN") else "failed"
        return self.error(kind, f"{self.reference.name} ({doing})", why, doing)

    @property
    def _who(self) -> str:
        if self.credentials is None:
            return "a request without credentials"
        return f"the credentials of {self.credentials.username!r} from {self.credentials.source}"

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        try:
            yield
        except requests.RequestException as error:
            kind, url, why = cause_of(error)
            raise self.error(kind, url or self.reference.url, why) from None

    # --- authorization ---------------------------------------------------------------------------

    @property
    def _is_basic(self) -> bool:
        return self._challenge is not None and self._challenge.scheme == "basic"

    def _authorization(self, access: Access) -> str | None:
        """Return an Authorization header; None until the registry has asked for one."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._is_basic:
                return self.credentials.basic() if self.credentials else None
            now = time.monotonic()
            for wider, token in self._tokens.items():
                # `pull,push` starts with `pull`, and allows it.
                if wider.startswith(access) and now < token.until:
                    return f"Bearer {token.value}"
            token = self._tokens[access] = self._fetch(self._challenge, access)
            return f"Bearer {token.value}"

    def _learn(self, answer: RegistryResponse, sent: str | None) -> None:
        """Remember the challenge of a 401, and discard the token that it refused."""
        challenge = read_challenge(answer.headers.get("WWW-Authenticate", ""))
        if challenge is None:
            why = f"It answered {answer.describe()} without a WWW-Authenticate header for Basic or Bearer."
            raise self.error("unusable", self.reference.url, why)
        with self._lock:
            self._challenge = challenge
            kept = {access: token for access, token in self._tokens.items() if f"Bearer {token.value}" != sent}
            self._tokens = kept

    def _fetch(self, challenge: Challenge, access: Access) -> _Token:
        if not challenge.realm.startswith("https://") and not self.reference.is_local:
            raise self.error("unsafe", challenge.realm, "Its token server takes passwords without TLS.")
        scope = f"repository:{self.reference.repository}:{access}"
        asked = time.monotonic()
        answer = self.retry.run(partial(self._ask_for_token, challenge, scope), later=judge_response)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST):
            kind: FailureKind = "denied" if answer.status == HTTPStatus.FORBIDDEN else "credentials"
            raise self.failure(answer, f"get a token for {scope}", kind)
        try:
            document = parse_json(answer.body) if answer.ok else {}
            # The second name is that of OAuth 2; a server may send either or both.
            value = document.get("token") or document.get("access_token")
            lifetime = float(document.get("expires_in") or _LIFETIME)
        except (ValueError, TypeError, AttributeError, OverflowError):
            value = None
        if not isinstance(value, str) or not value.isascii() or not value.isprintable() or not value:
            why = f"Its token server issued no token: it answered {answer.describe()}."
            raise self.error("unusable", challenge.realm, why)
        # Expire it a little early: a request takes a while, and its token is checked on arrival.
        return _Token(value, asked + lifetime - min(10.0, lifetime / 5))

    def _ask_for_token(self, challenge: Challenge, scope: str) -> RegistryResponse:
        service = {"service": challenge.service} if challenge.service else {}
        request = RegistryRequest("GET", challenge.realm, params=service | {"scope": scope})
        with self.send(request, self.credentials.basic() if self.credentials else None) as response:
            return read_response(response)


def _authorize(value: str | None, request: requests.PreparedRequest) -> requests.PreparedRequest:
    if value:
        request.headers["Authorization"] = value
    return request


def _is_private(host: str) -> bool:
    with suppress(ValueError):
        address = ip_address(host)
        return address.is_private or address.is_loopback or address.is_link_local
    return host == "localhost"
