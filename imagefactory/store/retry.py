"""The retry policy for all network requests: which failures to retry, how often, and after how long."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TypeVar

import requests
import urllib3

T = TypeVar("T")

_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504, 522})
"""Statuses after which the same request may succeed."""


@dataclass(frozen=True)
class Again:
    """The verdict that a failure is worth another attempt."""

    after: float = 0.0
    """Seconds that the server asks us to wait."""
    unreachable: bool = False
    """Whether no server was reached, which changes more slowly than a busy server."""
    advanced: bool = False
    """Whether the attempt made progress, which resets the count of failures."""


@dataclass(frozen=True)
class Retry:
    """How often to retry, and how long to wait in between."""

    attempts: int = 4
    connects: int = 3
    """Attempts when no server is reached."""
    pause: float = 0.5
    """Seconds before the second attempt; the wait doubles with each further one."""
    longest: float = 30.0
    """The longest wait, unless the server asks for more."""
    patience: float = 120.0
    """The most seconds that a server may ask us to wait, in all answers to one request; beyond them, we give up."""

    def run(
        self,
        attempt: Callable[[], T],
        *,
        later: Callable[[T | OSError], Again | None],
        stopped: threading.Event | None = None,
    ) -> T:
        """Call `attempt` until `later` returns None; return or raise the outcome of the last attempt.

        Args:
            attempt: only an OSError (such as those of requests) is retried; other exceptions are final.
            later: judges what was returned or raised; None means that another attempt would not help.
            stopped: when set, ends the wait with a CancelledError.
        """
        failures, asked = 0, 0.0
        while True:
            if stopped is not None and stopped.is_set():
                raise CancelledError
            outcome: T | OSError
            try:
                outcome = attempt()
            except OSError as error:
                outcome = error
            again = later(outcome)
            failures = 1 if again is not None and again.advanced else failures + 1
            if again is None or self.is_spent(failures, again, asked):
                if isinstance(outcome, OSError):
                    raise outcome
                return outcome
            asked += again.after
            self.wait(failures, again, stopped)

    def is_spent(self, failures: int, again: Again, asked: float = 0.0) -> bool:
        """Return whether to give up after a number of failures, and after seconds that the server asked for."""
        most = min(self.connects, self.attempts) if again.unreachable else self.attempts
        return failures >= most or asked + again.after > self.patience

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures, with jitter against simultaneous retries."""
        delay = min(self.pause * 2.0 ** (failures - 1), self.longest)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def wait(self, failures: int, again: Again, stopped: threading.Event | None = None) -> None:
        """Wait at least as long as the server asks for, within limits."""
        asked = min(again.after, self.patience)
        if (stopped or threading.Event()).wait(max(self.delay(failures), asked)):
            raise CancelledError


def judge(outcome: object) -> Again | None:
    """Judge the outcome of a request; anything but a response or an exception is final."""
    if isinstance(outcome, requests.HTTPError) and outcome.response is not None:
        outcome = outcome.response
    if isinstance(outcome, requests.Response):
        return judge_status(outcome.status_code, outcome.headers)
    # Errors of the disk are final, and so are bad certificates and URLs (which are ValueErrors in requests).
    if not isinstance(outcome, requests.RequestException | ConnectionError | TimeoutError) or isinstance(
        outcome, requests.exceptions.SSLError | ValueError
    ):
        return None
    return Again(unreachable=_is_unreachable(outcome))


def judge_status(status: int, headers: Mapping[str, str]) -> Again | None:
    """Judge an HTTP status; the headers may ask for a wait."""
    return Again(retry_after(headers) or 0.0) if status in _LATER else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in the Retry-After header; None if it is missing or malformed."""
    try:
        return urllib3.Retry().parse_retry_after(headers.get("Retry-After", ""))
    except (urllib3.exceptions.InvalidHeader, ValueError, TypeError, OverflowError):
        return None


def _is_unreachable(error: Exception) -> bool:
    """Return whether no server was reached (refused, no such name, no route)."""
    cause = error.args[0] if error.args else None
    return isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError) or isinstance(
        getattr(cause, "reason", cause), urllib3.exceptions.NewConnectionError
    )
