"""The one policy for trying again: how often, how long after, and when not at all."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest
import requests

from imagefactory.store.retry import Again, Retry, judge, retry_after

FAST = Retry(attempts=4, connects=2, pause=0.001, longest=0.002)


class Attempts:
    """Goes through outcomes, raises those that are exceptions, and counts."""

    def __init__(self, *outcomes: object) -> None:
        self.outcomes = list(outcomes)
        self.made = 0

    def __call__(self) -> object:
        self.made += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def response(status: int, **headers: str) -> requests.Response:
    made = requests.Response()
    made.status_code = status
    made.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return made


def test_what_passes_is_tried_again() -> None:
    good = response(200)
    attempts = Attempts(response(503), requests.ConnectionError("reset"), good)
    assert FAST.run(attempts, later=judge) is good
    assert attempts.made == 3


def test_the_last_outcome_is_returned_or_raised() -> None:
    busy = response(503)
    attempts = Attempts(busy)
    assert FAST.run(attempts, later=judge) is busy
    assert attempts.made == FAST.attempts
    attempts = Attempts(requests.ReadTimeout("slow"))
    with pytest.raises(requests.ReadTimeout, match="slow"):
        FAST.run(attempts, later=judge)
    assert attempts.made == FAST.attempts


@pytest.mark.parametrize(
    "outcome",
    [
        response(404),
        requests.exceptions.SSLError("certificate"),
        requests.exceptions.InvalidURL("address"),
        requests.HTTPError(response=response(403)),
        OSError(errno.ENOSPC, "full"),
        FileNotFoundError(),
        KeyError("a mistake of ours"),
        True,
    ],
    ids=repr,
)
def test_what_does_not_pass_is_tried_once(outcome: object) -> None:
    attempts = Attempts(outcome)
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            FAST.run(attempts, later=judge)
    else:
        assert FAST.run(attempts, later=judge) is outcome
    assert attempts.made == 1


def test_where_nobody_listens_fewer_attempts_are_made() -> None:
    attempts = Attempts(requests.ConnectTimeout())
    with pytest.raises(requests.ConnectTimeout):
        FAST.run(attempts, later=judge)
    assert attempts.made == FAST.connects


def test_the_wait_that_a_server_asks_for_is_kept_unless_it_is_hours() -> None:
    started = time.monotonic()
    FAST.run(Attempts(response(429, Retry_After="0.15"), response(200)), later=judge)
    assert time.monotonic() - started >= 0.15
    attempts = Attempts(response(429, Retry_After="7200"))
    assert FAST.run(attempts, later=judge) is attempts.outcomes[0]
    assert attempts.made == 1


@pytest.mark.parametrize(("value", "seconds"), [("3", 3.0), ("", None), ("soon", None), ("-1", None)])
def test_a_wait_is_read_or_ignored(value: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": value}) == seconds


def test_who_gets_further_is_not_given_up() -> None:
    left = list(range(20))

    def advance(_: object) -> Again | None:
        left.pop()
        return Again(advanced=True) if left else None

    FAST.run(lambda: None, later=advance)
    assert left == []


@pytest.mark.parametrize(
    "stop", [lambda stopped: stopped.set(), lambda stopped: threading.Timer(0.05, stopped.set).start()]
)
def test_waiting_can_be_stopped(stop: Callable[[threading.Event], None]) -> None:
    stopped = threading.Event()
    stop(stopped)
    started = time.monotonic()
    with pytest.raises(CancelledError):
        FAST.run(Attempts(response(429, Retry_After="60")), later=judge, stopped=stopped)
    assert time.monotonic() - started < 5


def test_pauses_grow_up_to_a_limit() -> None:
    retry = Retry(pause=1.0, longest=10.0)
    for failures, most in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (9, 10)):
        assert most / 2 <= retry.delay(failures) <= most
