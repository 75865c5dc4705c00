"""When to try a request again, how often, and how long to wait: the one policy for everything on the network."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import requests

T = TypeVar("T")

_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504, 522})
"""Answers after which the same request may succeed."""


@dataclass(frozen=True)
class Again:
    """A verdict on a failure: it is worth another attempt."""

    after: float = 0.0
    """Seconds that the server asked us to wait."""
    unreachable: bool = False
    """Nobody listens: that does not change as quickly as a busy server."""
    advanced: bool = False
    """This attempt got further than the one before, so that failures are counted anew."""


@dataclass(frozen=True)
class Retry:
    """How often to try again, and how long to wait in between."""

    attempts: int = 4
    connects: int = 3
    """Attempts when nobody listens."""
    pause: float = 0.5
    """Seconds before the second attempt; each further one waits twice as long."""
    longest: float = 30.0
    """The longest wait of our own accord."""
    longest_asked: float = 300.0
    """The longest wait that a server may ask for; beyond it, giving up is kinder."""

    def run(
        self,
        attempt: Callable[[], T],
        *,
        later: Callable[[T | OSError], Again | None],
        stopped: threading.Event | None = None,
    ) -> T:
        """Call `attempt` until `later` is content, and return or raise what came of the last attempt.

        Args:
            attempt: what to do; what it raises beyond an OSError (those of requests are OSErrors) is final.
            later: judges what was returned or raised; None means that another attempt would not help.
            stopped: ends the wait with a CancelledError once it is set.
        """
        failures = 0
        while True:
            if stopped is not None and stopped.is_set():
                raise CancelledError
            try:
                outcome = attempt()
                again = later(outcome)
                failures = self._count(failures, again)
                if again is None or self.is_spent(failures, again):
                    return outcome
            except OSError as error:
                again = later(error)
                failures = self._count(failures, again)
                if again is None or self.is_spent(failures, again):
                    raise
            self.wait(failures, again, stopped)

    @staticmethod
    def _count(failures: int, again: Again | None) -> int:
        return 1 if again is not None and again.advanced else failures + 1

    def is_spent(self, failures: int, again: Again) -> bool:
        """Return whether to give up after so many failures."""
        most = min(self.connects, self.attempts) if again.unreachable else self.attempts
        return failures >= most or again.after > self.longest_asked

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures; chance keeps parallel requests apart."""
        delay = min(self.pause * 2.0 ** (failures - 1), self.longest)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def wait(self, failures: int, again: Again, stopped: threading.Event | None = None) -> None:
        """Wait, at least as long as the server asked for (within limits)."""
        asked = min(again.after, self.longest_asked)
        if (stopped or threading.Event()).wait(max(self.delay(failures), asked)):
            raise CancelledError


def judge(outcome: object) -> Again | None:
    """Judge the outcome of a request: a response, an exception, or anything else, which is final."""
    if isinstance(outcome, requests.HTTPError) and outcome.response is not None:
        outcome = outcome.response
    if isinstance(outcome, requests.Response):
        return judge_status(outcome.status_code, outcome.headers)
    # What the disk says is final. So are certificates and addresses; requests makes ValueErrors of bad ones.
    if not isinstance(outcome, requests.RequestException | ConnectionError | TimeoutError) or isinstance(
        outcome, requests.exceptions.SSLError | ValueError
    ):
        return None
    return Again(unreachable=_nobody_listens(outcome))


def judge_status(status: int, headers: Mapping[str, str]) -> Again | None:
    """Judge an HTTP status, with the wait that the headers ask for."""
    return Again(retry_after(headers) or 0.0) if status in _LATER else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read from the Retry-After header how many seconds to wait; None where it is missing or nonsense."""
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value):
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _nobody_listens(error: Exception) -> bool:
    """Return whether a server is not there (refused, no such name, no route), rather than broke off."""
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.ProxyError):
        return True
    text = repr(error)
    return isinstance(error, requests.ConnectionError) and (
        "NewConnectionError" in text or "NameResolutionError" in text
    )
