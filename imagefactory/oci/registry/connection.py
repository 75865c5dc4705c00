"""Talking to one repository: requests are authorised and retried, and failures have names."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

import requests

from imagefactory.errors import FactoryError
from imagefactory.errors.registry import (
    AccessDeniedError,
    CredentialsError,
    RegistryError,
    RegistryUnreachableError,
    RepositoryMissingError,
)
from imagefactory.oci.registry.auth import Authenticator, Scope
from imagefactory.oci.registry.credentials import Credentials, find_credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.wire import TIMEOUT, Answer, Body, Wire, judge_answer, read_answer
from imagefactory.store.retry import Retry

_RETRY = Retry(attempts=7)


class Connection:
    """Requests to one repository. May be used by several threads."""

    def __init__(
        self,
        reference: Reference,
        *,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.reference = reference
        self.retry = retry or _RETRY
        self.wire = Wire(reference)
        credentials = credentials or find_credentials(reference.registry, reference.repository)
        self._authenticator = Authenticator(reference.registry, self.wire, credentials, self.retry)

    def close(self) -> None:
        """Close the connections."""
        self.wire.close()

    def url(self, path: str) -> str:
        """Return the address of something in the repository."""
        return f"{self.reference.url}/v2/{self.reference.repository}/{path}"

    def scope(self, *, write: bool) -> Scope:
        """Return what a token has to allow."""
        if write:
            return Scope.to(self.reference.repository, "pull", "push")
        return Scope.to(self.reference.repository, "pull")

    def ask(
        self,
        method: str,
        url: str,
        *,
        scopes: tuple[Scope, ...],
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        body: bytes | None = None,
        stopped: threading.Event | None = None,
    ) -> Answer:
        """Send a request, again where that may help; the caller judges the final answer."""
        with self.naming_failures():
            return self.retry.run(
                lambda: self.ask_once(method, url, scopes=scopes, headers=headers, params=params, body=body),
                later=judge_answer,
                stopped=stopped,
            )

    def ask_once(
        self,
        method: str,
        url: str,
        *,
        scopes: tuple[Scope, ...],
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | list[str]] | None = None,
        body: bytes | Body | None = None,
        timeout: tuple[float, float] = TIMEOUT,
        replay: bool = True,
    ) -> Answer:
        """Send a request once; with another token when it is refused, unless its body can only be sent once."""
        sent = self._authorization(url, scopes)
        answer = self.wire.ask(
            method, url, headers=headers, authorization=sent, params=params, body=body, timeout=timeout
        )
        if answer.status != HTTPStatus.UNAUTHORIZED or not self._is_ours(url):
            return answer
        self._authenticator.refused(answer, sent)
        again = self._authorization(url, scopes)
        if not replay or again == sent:
            return answer
        return self.wire.ask(
            method, url, headers=headers, authorization=again, params=params, body=body, timeout=timeout
        )

    @contextmanager
    def stream(
        self, url: str, *, scopes: tuple[Scope, ...], headers: Mapping[str, str]
    ) -> Iterator[requests.Response | Answer]:
        """Lend the answer to a GET: a response to be read when it is a good one, else what was said instead."""
        sent = self._authorization(url, scopes)
        for attempt in range(2):
            with self.wire.stream("GET", url, headers=headers, authorization=sent) as response:
                if response.status_code != HTTPStatus.UNAUTHORIZED or attempt:
                    yield response if response.ok else read_answer(response)
                    return
                answer = read_answer(response)
            self._authenticator.refused(answer, sent)
            sent = self._authorization(url, scopes)

    def _authorization(self, url: str, scopes: tuple[Scope, ...]) -> str | None:
        return self._authenticator.header(scopes) if self._is_ours(url) else None

    def _is_ours(self, url: str) -> bool:
        """True for the registry itself: an upload may have to go to another host, which gets no secret."""
        return urlsplit(url).netloc == self.reference.host

    @contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Turn what requests raises into a failure with a remedy."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            raise RegistryUnreachableError(
                f"{self.reference.registry} does not show a certificate that can be trusted.",
                where=self.reference.url,
                why=_shortly(error),
                fix="Check the name of the registry, and the certificates (REQUESTS_CA_BUNDLE) of this machine.",
            ) from None
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            raise RegistryUnreachableError(
                f"{self.reference.registry} cannot be reached, or does not answer.",
                where=_asked(error) or self.reference.url,
                why=_shortly(error),
                fix="Check the name, the network and the proxy; then run the command again: it continues.",
            ) from None
        except requests.RequestException as error:
            raise RegistryError(
                f"{self.reference.registry} answers with something that cannot be used.",
                where=self.reference.url,
                why=_shortly(error),
                fix="Check that the address is that of a container registry.",
            ) from None

    def failure(self, answer: Answer, doing: str, *, write: bool = False) -> FactoryError:
        """Return the error for an answer that is not a good one."""
        where = f"{self.reference.name} ({doing})"
        credentials = self._authenticator.credentials
        if answer.refuses_token():
            return RegistryError(
                f"{self.reference.registry} does not accept the tokens of its own token server.",
                where=where,
                why=f"It answered {answer.said()}, again and again.",
                fix="Run the command again a little later. If it persists, its clocks may disagree.",
            )
        if answer.status == HTTPStatus.UNAUTHORIZED and credentials is None:
            return CredentialsError(
                f"{self.reference.registry} wants credentials to {doing}, and there are none.",
                where=where,
                why=f"It answered {answer.said()}.",
                fix=f"Run `docker login {self.reference.registry}`, or set GITHUB_TOKEN for ghcr.io.",
            )
        if answer.status == HTTPStatus.UNAUTHORIZED and self._authenticator.is_basic:
            return self._authenticator.not_accepted(answer, self.reference.url)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            who = f"The user {credentials.username!r} of {credentials.source}" if credentials else "Nobody"
            return AccessDeniedError(
                f"{self.reference.registry} does not allow to {doing}.",
                where=where,
                why=f"{who} may not do that: {answer.said()}.",
                fix="Use a token that may write packages (`packages: write`, `write:packages`), and check who owns "
                "the repository."
                if write
                else "Use a token that may read this repository, and check its name.",
            )
        if answer.has_error("NAME_UNKNOWN"):
            return RepositoryMissingError(
                f"{self.reference.registry} has no repository {self.reference.repository}.",
                where=where,
                why=f"It answered {answer.said()}. (Some say that, too, of a repository without a tag.)",
                fix="Check the name (`registry` in matrix.yaml, FACTORY_REGISTRY); a first push makes a repository.",
            )
        return RegistryError(
            f"{self.reference.registry} fails to {doing}.",
            where=where,
            why=f"It answered {answer.said()}.",
            fix="Run the command again a little later: it continues where it stopped. If it persists, look at the "
            "registry's status page.",
        )


def _asked(error: requests.RequestException) -> str | None:
    """Return the address that was asked: it may be that of a token server, or of a blob's storage."""
    url = error.request.url if error.request is not None else None
    return url.partition("?")[0] if url else None


def _shortly(error: Exception) -> str:
    """Take the wrappings off an error of requests."""
    reason: object = error
    while isinstance(reason, Exception):
        inner = getattr(reason, "reason", None) or next(iter(reason.args), None)
        if not isinstance(inner, Exception):
            break
        reason = inner
    text = str(reason).partition(": ")[2] if "object at 0x" in str(reason) else str(reason)
    return f"{(text or type(error).__name__)[:300].rstrip('.')}."
