"""Authorization: Bearer tokens from the token server that a registry names, or Basic.

https://distribution.github.io/distribution/spec/auth/token/. A registry's first 401 names its token server. After
that, tokens are fetched ahead of requests, reused until they expire, and replaced if the registry refuses them.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlencode, urlsplit

from imagefactory.errors import FactoryError
from imagefactory.errors.registry import (
    AccessDeniedError,
    CredentialsError,
    RegistryError,
    UnsafeAddressError,
)
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.wire import Answer, RegistryRequest, Wire, judge_answer
from imagefactory.store.json_text import parse_json
from imagefactory.store.retry import Retry

Action = Literal["pull", "push", "delete"]
_ORDER: tuple[Action, ...] = ("pull", "push", "delete")
_CLIENT = "spark-image-factory"
_DEFAULT_LIFETIME = 60.0
"""Seconds that a token is valid if the server does not say."""
_PARAMETER = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Scope:
    """Actions on a repository that a token must allow."""

    repository: str
    actions: frozenset[Action]

    @classmethod
    def to(cls, repository: str, *actions: Action) -> Scope:
        """Return the scope of some actions."""
        return cls(repository, frozenset(actions))

    def covers(self, other: Scope) -> bool:
        """Return whether this scope includes another one."""
        return self.repository == other.repository and self.actions >= other.actions

    def __str__(self) -> str:
        return f"repository:{self.repository}:{','.join(a for a in _ORDER if a in self.actions)}"


@dataclass(frozen=True)
class Challenge:
    """The authorization that a registry requests with a 401."""

    scheme: Literal["basic", "bearer"]
    realm: str
    service: str | None = None


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    scope: Scope
    until: float
    """On the monotonic clock, because the clocks of two machines may disagree."""

    def is_valid(self) -> bool:
        return time.monotonic() < self.until


def read_challenge(header: str) -> Challenge | None:
    """Parse a WWW-Authenticate header; prefer Bearer if it offers both."""
    found: dict[str, Challenge] = {}
    starts = list(re.finditer(r"(?:^|,\s*)(basic|bearer)\s+(?=[a-z_]+\s*=)", header, re.IGNORECASE))
    ends = [*(start.start() for start in starts[1:]), len(header)]
    for start, end in zip(starts, ends, strict=False):
        given = {
            name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain
            for name, quoted, plain in _PARAMETER.findall(header[start.end() : end])
        }
        realm = given.get("realm", "")
        if start[1].lower() == "bearer" and realm:
            found["bearer"] = Challenge("bearer", realm, given.get("service"))
        elif start[1].lower() == "basic":
            found["basic"] = Challenge("basic", realm)
    return found.get("bearer") or found.get("basic")


class Authenticator:
    """Keeps the tokens for one registry. Threads may share it."""

    def __init__(self, registry: str, wire: Wire, credentials: Credentials | None, retry: Retry) -> None:
        self.registry = registry
        self.credentials = credentials
        self._wire = wire
        self._retry = retry
        self._challenge: Challenge | None = None
        self._tokens: list[_Token] = []
        self._lock = threading.Lock()

    @property
    def is_basic(self) -> bool:
        """Whether the registry takes the password itself with every request."""
        return self._challenge is not None and self._challenge.scheme == "basic"

    def header(self, scope: Scope) -> str | None:
        """Return an Authorization header for a scope; None until the registry has asked for one."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                return self.credentials.basic() if self.credentials else None
            self._tokens = [token for token in self._tokens if token.is_valid()]
            token = next((token for token in self._tokens if token.scope.covers(scope)), None)
            if token is None:
                token = self._fetch(self._challenge, scope)
                self._tokens.append(token)
            return f"Bearer {token.value}"

    def refused(self, answer: Answer, sent: str | None) -> None:
        """Remember the challenge of a 401, and discard the token that it refused."""
        challenge = read_challenge(answer.headers.get("WWW-Authenticate", ""))
        with self._lock:
            if challenge is None:
                raise RegistryError(
                    "The registry requires credentials, but does not say which kind.",
                    where=self.registry,
                    why=f"It answered {answer.said()} without a WWW-Authenticate header for Basic or Bearer.",
                    fix="Check that the address is that of a container registry.",
                )
            self._challenge = challenge
            self._tokens = [token for token in self._tokens if f"Bearer {token.value}" != sent]

    def _fetch(self, challenge: Challenge, scope: Scope) -> _Token:
        self._check_realm(challenge.realm)
        asked = time.monotonic()
        answer = self._retry.run(lambda: self._ask(challenge, scope), later=judge_answer)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST):
            raise self.not_accepted(answer, challenge.realm, scope)
        try:
            document = parse_json(answer.body) if answer.ok else {}
            value = document.get("token") or document.get("access_token")
            lifetime = float(document.get("expires_in") or _DEFAULT_LIFETIME)
        except (ValueError, TypeError, AttributeError, OverflowError):
            value = None
        if not value or not isinstance(value, str):
            raise RegistryError(
                "The registry's token server did not issue a token.",
                where=challenge.realm,
                why=f"It answered {answer.said()}.",
                fix="Try again later, and check the registry's status page.",
            )
        # Expire it a little early: a request takes a while, and its token is checked on arrival.
        return _Token(value, scope, asked + lifetime - min(10.0, lifetime / 5))

    def _ask(self, challenge: Challenge, scope: Scope) -> Answer:
        asked = {"service": challenge.service} if challenge.service else {}
        asked["scope"] = str(scope)
        if self.credentials and self.credentials.identity_token:
            asked["grant_type"] = "refresh_token"
            asked["client_id"] = _CLIENT
            asked["refresh_token"] = self.credentials.secret
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._wire.ask(
                RegistryRequest("POST", challenge.realm, headers, body=urlencode(asked).encode())
            )
        authorization = self.credentials.basic() if self.credentials else None
        return self._wire.ask(RegistryRequest("GET", challenge.realm, params=asked), authorization)

    def _check_realm(self, realm: str) -> None:
        """Refuse to send a password in clear text."""
        if urlsplit(realm).scheme == "https" or self._wire.base.startswith("http://"):
            return
        raise UnsafeAddressError(
            "The registry names a token server without TLS.",
            where=realm,
            why=f"{self.registry} asks for credentials in clear text.",
            fix="No password was sent. The owner of the registry has to configure TLS; you: do not use it before.",
        )

    def not_accepted(self, answer: Answer, where: str, scope: Scope | None = None) -> FactoryError:
        """Return the error for missing, wrong or insufficient credentials."""
        why = f"It answered {answer.said()}."
        if self.credentials is None:
            return CredentialsError(
                f"{self.registry} requires credentials for this, and there are none.",
                where=where,
                why=why,
                fix=f"Run `docker login {self.registry}`, or set GITHUB_TOKEN for ghcr.io.",
            )
        where = f"{where}, with the user {self.credentials.username!r} from {self.credentials.source}"
        if answer.status == HTTPStatus.FORBIDDEN:
            return AccessDeniedError(
                f"{self.registry} issues no token for {scope or 'this'}.",
                where=where,
                why=f"{why} GHCR also says this about wrong credentials.",
                fix="Check the name of the repository, and that the token can read or write packages "
                f"(`packages: write`, `write:packages`); then log in again: `docker login {self.registry}`.",
            )
        return CredentialsError(
            f"{self.registry} does not accept the credentials.",
            where=where,
            why=why,
            fix=f"Log in again: `docker login {self.registry}`. The token may have expired or been revoked.",
        )
