"""Judging answers of registries, and where requests may be sent."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import requests
from requests.structures import CaseInsensitiveDict

from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.responses import RegistryRequest, RegistryResponse, UnsafeRedirectError, read_response
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer as Served
from tests.fixtures.servers import ScriptedServer, scripted

GHCR = Connection(Reference("ghcr.io", "owner/name"))


def answer(status: int = 429, body: str = "", **headers: str) -> RegistryResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return RegistryResponse(status, CaseInsensitiveDict(names), body.encode(), "https://ghcr.io/v2/")


def connect(server: ScriptedServer) -> Connection:
    return Connection(Reference(server.address, "x"))


def ask(server: ScriptedServer, authorization: str | None = None) -> RegistryResponse:
    with connect(server).send(RegistryRequest("GET", f"{server.url}/v2/"), authorization) as response:
        return read_response(response)


@pytest.mark.parametrize(
    ("given", "passing"),
    [
        (answer(429), True),
        (answer(403, "You have exceeded a secondary rate limit"), True),
        (answer(401, WWW_Authenticate='Bearer realm="x",error="invalid_token"'), True),
        (answer(401, WWW_Authenticate='Bearer realm="x",error="insufficient_scope"'), False),
        *((answer(status), False) for status in (201, 401, 403, 404)),
    ],
)
def test_only_a_passing_failure_is_retried(given: RegistryResponse, *, passing: bool) -> None:
    assert bool(given.again()) is passing


def test_errors_are_summarized_on_one_line() -> None:
    body = '{"errors": [{"code": "DENIED", "message": "requested access is denied"}]}'
    assert answer(403, body).describe() == "403 Forbidden: DENIED: requested access is denied"
    assert answer(502, "<html>\n  Unicorn!").describe() == "502 Bad Gateway: <html> Unicorn!"
    assert answer(599).describe() == "599"
    assert answer(403, body).has_error("UNAUTHORIZED", "DENIED")


@pytest.mark.parametrize("body", ['{"errors": [3]}', '{"errors": 3}', "[]", "í³¿", "[" * 100_000])
def test_malformed_errors_are_ignored(body: str) -> None:
    assert answer(403, body).errors() == []


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/x/blobs/uploads/1?state=a%2Fb", "https://ghcr.io/v2/x/blobs/uploads/1?state=a%2Fb"),
        ("https://ghcr.io/v2/y", "https://ghcr.io/v2/y"),
        ("https://storage.example/blob?sig=1", "https://storage.example/blob?sig=1"),
    ],
)
def test_location_is_resolved_and_keeps_its_query(location: str, expected: str) -> None:
    assert GHCR.locate(location, "https://ghcr.io/v2/x/blobs/uploads/") == expected


@pytest.mark.parametrize(
    "location",
    [
        *("http://ghcr.io/v2/x", "http://storage.example/", "https://169.254.169.254/latest/"),
        *("https://10.1.2.3/", "https://localhost/", "https://[::1]/"),
    ],
)
def test_unsafe_location_is_refused(location: str) -> None:
    with pytest.raises(UnsafeRedirectError):
        GHCR.locate(location, "https://ghcr.io/v2/x/")


def test_redirect_to_another_host_carries_no_secret() -> None:
    with scripted(lambda _: Served(b"content")) as storage:
        redirect = Served(status=307, headers={"Location": f"{storage.url}/blob"})
        with scripted(lambda _: redirect) as registry:
            got = ask(registry, "Bearer secret")
            assert got.body == b"content"
            assert registry.log[0].headers["authorization"] == "Bearer secret"
            assert "authorization" not in storage.log[0].headers


def test_netrc_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login me password x\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with scripted(lambda _: Served()) as registry:
        connection = connect(registry)
        connection._session.trust_env = True
        connection.ask(RegistryRequest("GET", f"{registry.url}/v2/"))
        assert "authorization" not in registry.log[0].headers


def test_registry_that_answered_may_restart_but_one_that_never_did_is_given_up() -> None:
    hasty = Retry(attempts=7, pause=0.001, unreached=0.0)
    with scripted(lambda _: Served(b"{}")) as server:
        reference = Reference(server.address, "x")
        there, away = Connection(reference, None, hasty), Connection(reference, None, hasty)
        there.ask(RegistryRequest("GET", f"{server.url}/v2/"))
    for connection, attempts in ((away, 1), (there, hasty.attempts)):
        with raises("registry-unreachable"), watched(connection) as asked:
            connection.ask(RegistryRequest("GET", "http://127.0.0.1:9/v2/"))
        assert len(asked) == attempts


@contextmanager
def watched(connection: Connection) -> Iterator[list[RegistryRequest]]:
    """Collect the requests that a connection sends."""
    asked: list[RegistryRequest] = []
    send = connection.send

    def watch(request: RegistryRequest, authorization: str | None) -> AbstractContextManager[requests.Response]:
        asked.append(request)
        return send(request, authorization)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "send", watch)
        yield asked
