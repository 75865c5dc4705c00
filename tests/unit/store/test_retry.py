"""The retry policy: which failures to retry, how often, and after how long."""

import errno
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest
import requests
import urllib3

from imagefactory.store.http import Again, Retry, ask, judge, new_session, short_reason

FAST = Retry(attempts=4, pause=0.001, longest=0.002)


class Attempts:
    """Returns or raises a series of outcomes, and counts the calls."""

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


def test_passing_failure_is_retried() -> None:
    good = response(200)
    attempts = Attempts(response(503), requests.ConnectionError("reset"), good)
    assert FAST.run(attempts, later=judge) is good
    assert attempts.made == 3


def test_last_outcome_is_returned_or_raised() -> None:
    busy, slow = Attempts(response(503)), Attempts(requests.ReadTimeout("slow"))
    assert FAST.run(busy, later=judge) is busy.outcomes[0]
    with pytest.raises(requests.ReadTimeout, match="slow"):
        FAST.run(slow, later=judge)
    assert (busy.made, slow.made) == (FAST.attempts, FAST.attempts)


@pytest.mark.parametrize(
    "outcome",
    [
        response(404),
        requests.exceptions.SSLError("certificate"),
        requests.exceptions.InvalidURL("address"),
        requests.HTTPError(response=response(403)),
        OSError(errno.ENOSPC, "full"),
        KeyError("a bug"),
        True,
    ],
    ids=repr,
)
def test_final_outcome_is_not_retried(outcome: object) -> None:
    attempts = Attempts(outcome)
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            FAST.run(attempts, later=judge)
    else:
        assert FAST.run(attempts, later=judge) is outcome
    assert attempts.made == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Do not wait, but note for how long."""
    found: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: found.append(seconds))
    return found


def test_server_may_ask_for_a_wait_but_not_for_hours(waits: list[float]) -> None:
    FAST.run(Attempts(response(429, Retry_After="15"), response(200)), later=judge)
    assert waits == [15.0]
    attempts = Attempts(response(429, Retry_After="7200"))
    assert FAST.run(attempts, later=judge) is attempts.outcomes[0]
    assert attempts.made == 1


def test_all_waits_of_a_request_together_are_bounded(waits: list[float]) -> None:
    attempts = Attempts(response(503, Retry_After="50"))
    assert Retry(attempts=100).run(attempts, later=judge) is attempts.outcomes[0]
    assert waits == [50.0, 50.0]


@pytest.fixture
def six_second_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait, but let the clock say that each wait took six seconds."""
    clock = [0.0]
    monkeypatch.setattr("imagefactory.store.http.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Retry, "wait", lambda *_: clock.append(clock.pop() + 6))


@pytest.mark.usefixtures("six_second_waits")
@pytest.mark.parametrize("reason", [urllib3.exceptions.ConnectTimeoutError("late"), None])
def test_server_that_is_not_there_is_given_up_within_seconds_but_not_one_that_answers(reason: Exception | None) -> None:
    error: requests.RequestException
    if reason:
        error = requests.ConnectTimeout(urllib3.exceptions.MaxRetryError(urllib3.HTTPConnectionPool("x"), "/", reason))
    else:
        with new_session() as session, pytest.raises(requests.ConnectionError) as caught:
            ask(session, "GET", "http://me:secret@127.0.0.1:9")
        error = caught.value
        assert short_reason(error) == "Failed to establish a new connection: [Errno 111] Connection refused"
    attempts = Attempts(error)
    with pytest.raises(requests.RequestException):
        Retry(attempts=9).run(attempts, later=judge)
    assert attempts.made == 3, "after two waits"
    restarting = Attempts(*[error, response(503)] * 4, error)
    with pytest.raises(requests.RequestException):
        Retry(attempts=9).run(restarting, later=judge)
    assert restarting.made == 9


def test_attempts_continue_while_there_is_progress() -> None:
    left = list(range(20))

    def advance(_: object) -> Again | None:
        left.pop()
        return Again(advanced=True) if left else None

    FAST.run(lambda: None, later=advance)
    assert left == []


def test_wait_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Event, "wait", lambda *_: True)  # somebody sets it meanwhile
    with pytest.raises(CancelledError):
        FAST.run(Attempts(response(429, Retry_After="60")), later=judge, stopped=threading.Event())


def test_waits_grow_up_to_a_limit() -> None:
    retry = Retry(pause=1.0, longest=10.0)
    for failures, most in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (9, 10)):
        assert most / 2 <= retry.delay(failures) <= most
