"""What is made of answers, and where requests may be sent."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
import requests
from requests.structures import CaseInsensitiveDict

from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.wire import Answer, UnsafeRedirectError, Wire, judge_answer
from imagefactory.store.retry import Retry
from tests.fixtures.scripted import Asked, scripted
from tests.fixtures.servers import Answer as Served

FAST = Retry(attempts=7, pause=0.001, longest=0.002)
GHCR = Wire(Reference("ghcr.io", "owner/name"))


def answer(status: int = 429, body: str = "", **headers: str) -> Answer:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, CaseInsensitiveDict(names), body.encode(), "https://ghcr.io/v2/")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (answer(Retry_After="3"), 3.0),
        (answer(retry_after="0.5"), 0.5),
        (answer(Retry_After="soon"), None),
        (answer(), None),
        (answer(body="toomanyrequests: retry-after: 12.5ms, allowed: 2000/minute"), 0.0125),
        (answer(body="retry-after: 1.889377ms, allowed: 44000/minute"), 0.001889377),
        (answer(body="retry-after: 1m2.5s, allowed: 1/minute"), 62.5),
        (answer(body="Retry-After: 250µs"), 0.00025),
        (answer(Retry_After=format_datetime(datetime.now(UTC) - timedelta(hours=1))), 0.0),
    ],
)
def test_how_long_to_wait_is_read_from_the_header_or_the_body(given: Answer, seconds: float | None) -> None:
    assert given.retry_after() == (None if seconds is None else pytest.approx(seconds))


def test_a_date_to_wait_for_is_understood() -> None:
    given = answer(Retry_After=format_datetime(datetime.now(UTC) + timedelta(seconds=30)))
    assert 28 < (given.retry_after() or 0) <= 30


@pytest.mark.parametrize("status", [408, 429, 499, 500, 502, 503, 504, 522])
def test_what_may_pass_is_waited_for(status: int) -> None:
    assert answer(status).again()


def test_what_does_not_pass_is_not_waited_for() -> None:
    assert not any(answer(status).again() for status in (200, 201, 301, 400, 401, 403, 404, 405, 413))
    assert answer(403, "You have exceeded a secondary rate limit").again()
    assert answer(401, WWW_Authenticate='Bearer realm="x",error="invalid_token"').again()
    assert not answer(401, WWW_Authenticate='Bearer realm="x",error="insufficient_scope"').again()


def test_errors_of_a_registry_are_put_into_a_line() -> None:
    body = '{"errors": [{"code": "DENIED", "message": "requested access is denied"}]}'
    assert answer(403, body).said() == "403 Forbidden: DENIED: requested access is denied"
    assert answer(502, "<html>\n  Unicorn!").said() == "502 Bad Gateway: <html> Unicorn!"
    assert answer(599).said() == "599"
    assert answer(403, body).has_error("UNAUTHORIZED", "DENIED")
    for nonsense in (
        '{"errors": [3]}',
        '{"errors": 3}',
        "[]",
        "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
    ):
        assert answer(403, nonsense).errors() == []


# --- patience ------------------------------------------------------------------------------------


def test_patience_ends_after_some_attempts() -> None:
    asked: list[int] = []

    def busy() -> Answer:
        asked.append(1)
        return answer(503)

    assert FAST.run(busy, later=judge_answer).status == 503
    assert len(asked) == FAST.attempts


def test_a_server_that_wants_us_to_wait_for_hours_is_not_waited_for() -> None:
    started = time.monotonic()
    assert FAST.run(lambda: answer(429, Retry_After="7200"), later=judge_answer).status == 429
    assert time.monotonic() - started < 1


def test_the_wait_that_a_registry_asks_for_is_kept() -> None:
    answers = iter([answer(429, "retry-after: 150ms"), answer(200)])
    started = time.monotonic()
    assert FAST.run(lambda: next(answers), later=judge_answer).status == 200
    assert time.monotonic() - started >= 0.15


def test_waiting_can_be_stopped() -> None:
    stopped = threading.Event()
    threading.Timer(0.05, stopped.set).start()
    started = time.monotonic()
    with pytest.raises(CancelledError):
        FAST.run(lambda: answer(429, Retry_After="60"), later=judge_answer, stopped=stopped)
    assert time.monotonic() - started < 5


def test_where_nobody_listens_fewer_attempts_are_made() -> None:
    asked: list[int] = []

    def refused() -> Answer:
        asked.append(1)
        return Wire(Reference("127.0.0.1:1", "x")).ask("GET", "http://127.0.0.1:1/v2/")

    with pytest.raises(requests.ConnectionError):
        FAST.run(refused, later=judge_answer)
    assert len(asked) == FAST.connects


# --- where requests go ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/x/blobs/uploads/1?state=a%2Fb", "https://ghcr.io/v2/x/blobs/uploads/1?state=a%2Fb"),
        ("https://ghcr.io/v2/y", "https://ghcr.io/v2/y"),
        ("https://storage.example/blob?sig=1", "https://storage.example/blob?sig=1"),
    ],
)
def test_a_location_is_completed_and_keeps_its_query(location: str, expected: str) -> None:
    assert GHCR.locate(location, "https://ghcr.io/v2/x/blobs/uploads/") == expected


@pytest.mark.parametrize(
    "location",
    [
        "http://ghcr.io/v2/x",
        "http://storage.example/",
        "https://169.254.169.254/latest/",
        "https://10.1.2.3/",
        "https://localhost/",
        "https://[::1]/",
    ],
)
def test_a_location_that_leads_off_the_road_is_refused(location: str) -> None:
    with pytest.raises(UnsafeRedirectError):
        GHCR.locate(location, "https://ghcr.io/v2/x/")


def test_a_secret_does_not_follow_to_another_host() -> None:
    with scripted(lambda _: Served(b"content")) as storage:

        def redirect(_: Asked) -> Served:
            return Served(status=307, headers={"Location": f"{storage.url}/blob"})

        with scripted(redirect) as registry:
            wire = Wire(Reference(registry.address, "x"))
            got = wire.ask("GET", f"{registry.url}/v2/", authorization="Bearer secret")
            assert got.body == b"content"
            assert registry.log[0].headers["authorization"] == "Bearer secret"
            assert "authorization" not in storage.log[0].headers


def test_redirects_without_end_are_noticed() -> None:
    with scripted(lambda _: Served(status=307, headers={"Location": "/again"})) as registry:
        wire = Wire(Reference(registry.address, "x"))
        with pytest.raises(requests.TooManyRedirects):
            wire.ask("GET", f"{registry.url}/v2/")


def test_a_netrc_is_not_for_registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login me password x\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with scripted(lambda _: Served()) as registry:
        wire = Wire(Reference(registry.address, "x"))
        wire._session.trust_env = True
        wire.ask("GET", f"{registry.url}/v2/")
        assert "authorization" not in registry.log[0].headers


def test_an_answer_is_not_read_beyond_a_limit() -> None:
    with scripted(lambda _: Served(b"x" * 1_000_000)) as registry:
        wire = Wire(Reference(registry.address, "x"))
        assert len(wire.ask("GET", registry.url, limit=1000).body) == 1001
