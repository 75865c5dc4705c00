"""Requests to one repository: authorized, retried, and with failures that have remedies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests

from imagefactory.errors import FactoryError
from imagefactory.errors.registry import (
    AccessDeniedError,
    RegistryBusyError,
    RegistryError,
    RegistryUnreachableError,
    RepositoryMissingError,
    UnboundedAnswerError,
    UnsafeAddressError,
)
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.registry.auth import Authenticator, Scope
from imagefactory.oci.registry.credentials import Credentials, find_credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.wire import (
    MOST_TEXT,
    Answer,
    RegistryRequest,
    UnsafeRedirectError,
    Wire,
    judge_answer,
    read_answer,
)
from imagefactory.store.digests import Digest
from imagefactory.store.json_text import TooDeepError, parse_json
from imagefactory.store.retry import Retry

_RETRY = Retry(attempts=7)


class Connection:
    """Sends requests to one repository. Threads may share it."""

    def __init__(
        self, reference: Reference, credentials: Credentials | None = None, retry: Retry | None = None
    ) -> None:
        self.reference = reference
        self.retry = retry or _RETRY
        self.wire = Wire(reference)
        self.reading = Scope.to(reference.repository, "pull")
        self.writing = Scope.to(reference.repository, "pull", "push")
        credentials = credentials or find_credentials(reference.registry, reference.repository)
        self._authenticator = Authenticator(reference.registry, self.wire, credentials, self.retry)

    def url(self, path: str) -> str:
        """Return the URL of a path in the repository."""
        return f"{self.reference.url}/v2/{self.reference.repository}/{path}"

    def ask(self, request: RegistryRequest, scope: Scope, stopped: threading.Event | None = None) -> Answer:
        """Send a request, and retry it where that may help; the caller judges the final answer."""
        with self.naming_failures():
            send = partial(self.ask_once, request, scope, stopped=stopped)
            return self.retry.run(send, later=judge_answer, stopped=stopped)

    def ask_once(
        self,
        request: RegistryRequest,
        scope: Scope,
        *,
        replay: bool = True,
        stopped: threading.Event | None = None,
    ) -> Answer:
        """Send a request once; if its token is refused, again with a new one, unless `replay` is false.

        A new token may take long: if `stopped` is set by then, raise CancelledError instead of sending it again.
        """
        sent = self._authorization(request.url, scope)
        answer = self.wire.ask(request, sent)
        if answer.status != HTTPStatus.UNAUTHORIZED or not self._is_ours(request.url):
            return answer
        self._authenticator.refused(answer, sent)
        renewed = self._authorization(request.url, scope)
        if not replay or renewed == sent:
            return answer
        if stopped is not None and stopped.is_set():
            raise CancelledError
        return self.wire.ask(request, renewed)

    @contextmanager
    def stream(self, request: RegistryRequest, scope: Scope) -> Iterator[requests.Response | Answer]:
        """Yield a successful response before its body is read, or the answer that came instead."""
        sent = self._authorization(request.url, scope)
        for attempt in range(2):
            with self.wire.stream(request, sent) as response:
                if response.status_code != HTTPStatus.UNAUTHORIZED or attempt:
                    yield response if response.ok else read_answer(response)
                    return
                answer = read_answer(response)
            self._authenticator.refused(answer, sent)
            sent = self._authorization(request.url, scope)

    def has_blob(self, digest: Digest, scope: Scope, stopped: threading.Event | None = None) -> bool:
        """Return whether the repository has a blob."""
        answer = self.ask(RegistryRequest("HEAD", self.url(f"blobs/{digest}")), scope, stopped)
        if answer.ok or answer.status == HTTPStatus.NOT_FOUND:
            return answer.ok
        raise self.failure(answer, "look up a blob", write=scope == self.writing)

    def _authorization(self, url: str, scope: Scope) -> str | None:
        return self._authenticator.header(scope) if self._is_ours(url) else None

    def _is_ours(self, url: str) -> bool:
        """Return whether a URL is on the registry's host; an upload may go to another one, which gets no secret."""
        return urlsplit(url).netloc == self.reference.host

    @contextmanager
    def naming_failures(self) -> Iterator[None]:
        """Turn exceptions of requests into errors with a remedy."""
        try:
            yield
        except requests.exceptions.SSLError as error:
            raise RegistryUnreachableError(
                f"{self.reference.registry} has no trusted certificate.",
                where=self.reference.url,
                why=_innermost(error),
                fix="Check the registry's name and this machine's certificates (REQUESTS_CA_BUNDLE).",
            ) from None
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            raise RegistryUnreachableError(
                f"{self.reference.registry} cannot be reached, or does not respond.",
                where=_url_of(error) or self.reference.url,
                why=_innermost(error),
                fix="Check the name, the network and the proxy, then run the command again to continue.",
            ) from None
        except UnsafeRedirectError as error:
            raise UnsafeAddressError(
                f"{self.reference.registry} sends its clients to an unsafe address.",
                where=self.reference.url,
                why=_innermost(error),
                fix="Nothing was sent there. The owner of the registry has to correct the address; you: do not use "
                "the registry, or the proxy in front of it, before.",
            ) from None
        except requests.TooManyRedirects as error:
            raise self.unbounded(self.reference.url, _innermost(error)) from None
        except requests.RequestException as error:
            raise self.nonsense(self.reference.url, _innermost(error)) from None

    def parse(self, body: bytes, where: str) -> Any:  # noqa: ANN401 - anything may come
        """Parse the JSON of an answer; raise ValueError if it is none, UnboundedAnswerError if it is too much."""
        self.refuse_large(body, where)
        try:
            return parse_json(body)
        except TooDeepError:
            raise self.unbounded(where, "It is nested too deeply.") from None

    def refuse_large(self, body: bytes, where: str) -> None:
        """Raise UnboundedAnswerError if a body was cut off."""
        if len(body) > MOST_TEXT:
            raise self.unbounded(where, f"It has more than {MOST_TEXT:,} bytes.")

    def unbounded(self, where: str, why: str) -> UnboundedAnswerError:
        """Return the error for an answer that never ends, or that is more than anybody should read."""
        return UnboundedAnswerError(
            f"{self.reference.registry} sent an answer without bounds.",
            where=where,
            why=why,
            fix="No registry needs that: check its address, and tell its owner. Whoever writes to the repository may "
            "have put the content there; then its owner has to delete it.",
        )

    def nonsense(self, where: str, why: str) -> RegistryError:
        """Return the error for an answer that a registry would not send."""
        return RegistryError(
            f"{self.reference.registry} sent an unusable answer.",
            where=where,
            why=why,
            fix="Check that the address is that of a container registry; if it is, tell the registry's owner.",
        )

    def mismatch(self, digest: Digest, why: str) -> DigestMismatchError:
        """Return the error for content that does not match its digest."""
        return DigestMismatchError(
            "The registry sent something other than what was requested.",
            where=f"{self.reference.name}@{digest}",
            why=why,
            fix="Try again; if it persists, do not use this registry or the proxy in front of it.",
        )

    def failure(self, answer: Answer, doing: str, *, write: bool = False) -> FactoryError:
        """Return the error for an unsuccessful answer."""
        where = f"{self.reference.name} ({doing})"
        why = f"It answered {answer.said()}."
        credentials = self._authenticator.credentials
        if answer.refuses_token():
            return RegistryError(
                f"{self.reference.registry} does not accept tokens from its own token server.",
                where=where,
                why=f"It answered {answer.said()}, repeatedly.",
                fix="Run the command again later. If it persists, the registry's clocks may disagree.",
            )
        wait = answer.retry_after() if answer.again() else None
        if wait is not None and wait > self.retry.patience:
            return RegistryBusyError(
                f"{self.reference.registry} is busy, and wants to be asked again much later.",
                where=where,
                why=f"It asks for a wait of {wait:,.0f} s; a command waits {self.retry.patience:,.0f} s at most. {why}",
                fix="Run the command again after that time: it continues where it stopped. If the time makes no sense, "
                "tell the registry's owner.",
            )
        if answer.status == HTTPStatus.UNAUTHORIZED and (credentials is None or self._authenticator.is_basic):
            return self._authenticator.not_accepted(answer, where)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            who = "anonymous user"
            if credentials:
                who = f"user {credentials.username!r} from {credentials.source}"
            return AccessDeniedError(
                f"{self.reference.registry} does not allow you to {doing}.",
                where=where,
                why=f"The {who} has no permission: {answer.said()}.",
                fix="Use a token that can write packages (`packages: write`, `write:packages`), and check who "
                "owns the repository."
                if write
                else "Use a token that can read this repository, and check its name.",
            )
        if answer.has_error("NAME_UNKNOWN"):
            return RepositoryMissingError(
                f"{self.reference.registry} has no repository {self.reference.repository}.",
                where=where,
                why=f"{why} (Some registries also say this about a repository without tags.)",
                fix="Check the name (`registry` in matrix.yaml, FACTORY_REGISTRY); the first push creates it.",
            )
        return RegistryError(
            f"{self.reference.registry} failed to {doing}.",
            where=where,
            why=why,
            fix="Run the command again later: it continues where it stopped. If it persists, check the registry's "
            "status page.",
        )


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
