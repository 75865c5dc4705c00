"""Proving who we are: Bearer tokens from the server that a registry names, or Basic.

https://distribution.github.io/distribution/spec/auth/token/. A registry answers 401 and says which token server to
ask for what; from then on tokens are fetched ahead, kept for their lifetime, and fetched anew when they are refused.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

from imagefactory.errors import FactoryError
from imagefactory.errors.registry import AccessDeniedError, CredentialsError, RegistryError
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.wire import Answer, Wire, judge_answer
from imagefactory.store.retry import Retry

Action = Literal["pull", "push", "delete"]
_ORDER: tuple[Action, ...] = ("pull", "push", "delete")
_CLIENT = "spark-image-factory"
_SHORTEST_LIFE = 60.0
"""Seconds that a token is good for when nobody says how long."""
_PARAMETER = re.compile(r'([a-zA-Z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Scope:
    """What somebody wants to do with a repository."""

    repository: str
    actions: frozenset[Action]

    @classmethod
    def to(cls, repository: str, *actions: Action) -> Scope:
        """Name some actions."""
        return cls(repository, frozenset(actions))

    def covers(self, other: Scope) -> bool:
        """Return whether this scope includes another one."""
        return self.repository == other.repository and self.actions >= other.actions

    def __str__(self) -> str:
        return f"repository:{self.repository}:{','.join(a for a in _ORDER if a in self.actions)}"


@dataclass(frozen=True)
class Challenge:
    """What a registry asks for with a 401."""

    scheme: Literal["basic", "bearer"]
    realm: str
    service: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    scopes: tuple[Scope, ...]
    until: float
    """On the monotonic clock: the clocks of two machines do not agree."""

    def is_good_for(self, wanted: Iterable[Scope]) -> bool:
        return time.monotonic() < self.until and all(
            any(scope.covers(other) for scope in self.scopes) for other in wanted
        )


def read_challenge(header: str) -> Challenge | None:
    """Read a WWW-Authenticate header; Bearer is preferred where there is a choice."""
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
            found["bearer"] = Challenge("bearer", realm, given.get("service"), given.get("error"))
        elif start[1].lower() == "basic":
            found["basic"] = Challenge("basic", realm)
    return found.get("bearer") or found.get("basic")


class Authenticator:
    """Keeps the tokens for one registry. May be used by several threads."""

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
        """True for a registry that takes the password itself with every request."""
        return self._challenge is not None and self._challenge.scheme == "basic"

    def header(self, scopes: tuple[Scope, ...]) -> str | None:
        """Return the value of an Authorization header for these scopes; None before anybody asked for one."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                return self.credentials.basic() if self.credentials else None
            for token in self._tokens:
                if token.is_good_for(scopes):
                    return f"Bearer {token.value}"
            token = self._fetch(self._challenge, scopes)
            self._tokens = [old for old in self._tokens if time.monotonic() < old.until]
            self._tokens.append(token)
            return f"Bearer {token.value}"

    def refused(self, answer: Answer, sent: str | None) -> None:
        """Learn from a 401: what is asked for, and that what was sent is of no use any more."""
        challenge = read_challenge(answer.headers.get("WWW-Authenticate", ""))
        with self._lock:
            if challenge is None:
                raise RegistryError(
                    "The registry wants credentials, but does not say how.",
                    where=self.registry,
                    why=f"It answered {answer.said()} without a WWW-Authenticate header that names Basic or Bearer.",
                    fix="Check that the address is that of a container registry.",
                )
            self._challenge = challenge
            self._tokens = [token for token in self._tokens if f"Bearer {token.value}" != sent]

    def _fetch(self, challenge: Challenge, scopes: tuple[Scope, ...]) -> _Token:
        self._check_realm(challenge.realm)
        asked = time.monotonic()
        answer = self._retry.run(lambda: self._ask(challenge, scopes), later=judge_answer)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST):
            raise self.not_accepted(answer, challenge.realm, scopes)
        try:
            document = json.loads(answer.body) if answer.ok else {}
            value = document.get("token") or document.get("access_token")
            life = float(document.get("expires_in") or _SHORTEST_LIFE)
        except (ValueError, TypeError, AttributeError):
            value = None
        if not value or not isinstance(value, str):
            raise RegistryError(
                "The token server of the registry does not give a token.",
                where=challenge.realm,
                why=f"It answered {answer.said()}.",
                fix="Try again later, and check the registry's status page.",
            )
        # A little early: a request takes a while, and its token is looked at when it arrives.
        return _Token(value, scopes, asked + life - min(10.0, life / 5))

    def _ask(self, challenge: Challenge, scopes: tuple[Scope, ...]) -> Answer:
        service = {"service": challenge.service} if challenge.service else {}
        wanted = [str(scope) for scope in scopes]
        if self.credentials and self.credentials.identity_token:
            form = {
                "grant_type": "refresh_token",
                "client_id": _CLIENT,
                "refresh_token": self.credentials.secret,
                "scope": " ".join(wanted),
                **service,
            }
            return self._wire.post_form(challenge.realm, form)
        # One parameter for each scope, the one to write to first: some registries read only that.
        params: dict[str, str | list[str]] = {**service, "scope": wanted}
        authorization = self.credentials.basic() if self.credentials else None
        return self._wire.ask("GET", challenge.realm, params=params, authorization=authorization)

    def _check_realm(self, realm: str) -> None:
        """Do not send a password in clear text because a registry says so."""
        if urlsplit(realm).scheme == "https" or self._wire.base.startswith("http://"):
            return
        raise RegistryError(
            "The registry names a token server without TLS.",
            where=realm,
            why=f"{self.registry} asks for credentials to be sent in clear text.",
            fix="Do not use this registry before its configuration is mended.",
        )

    def not_accepted(self, answer: Answer, realm: str, scopes: tuple[Scope, ...] = ()) -> FactoryError:
        """Name the failure of credentials that are missing, wrong, or not enough."""
        if self.credentials is None:
            return CredentialsError(
                f"{self.registry} wants credentials for this, and there are none.",
                where=realm,
                why=f"It answered {answer.said()}.",
                fix=f"Run `docker login {self.registry}`, or set GITHUB_TOKEN for ghcr.io.",
            )
        where = f"{realm}, with the user {self.credentials.username!r} of {self.credentials.source}"
        if answer.status == HTTPStatus.FORBIDDEN:
            return AccessDeniedError(
                f"{self.registry} gives no token for {' and '.join(map(str, scopes)) or 'this'}.",
                where=where,
                why=f"It answered {answer.said()}. GHCR says that of wrong credentials, too.",
                fix="Check the name of the repository, and that the token may read or write packages "
                f"(`packages: write`, `write:packages`); then log in again: `docker login {self.registry}`.",
            )
        return CredentialsError(
            f"{self.registry} does not accept the credentials.",
            where=where,
            why=f"It answered {answer.said()}.",
            fix=f"Log in again: `docker login {self.registry}`. A token may have expired or been withdrawn.",
        )
