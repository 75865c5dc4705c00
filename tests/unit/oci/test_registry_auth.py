"""Authorization with tokens and passwords."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest

from imagefactory.errors import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.connection import Connection
from imagefactory.oci.registry.credentials import Credentials
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.responses import Challenge, RegistryResponse, read_challenge
from tests.fixtures.failures import raises
from tests.fixtures.registries import HURRIED, opened
from tests.fixtures.servers import Answer as Served
from tests.fixtures.servers import Asked, ScriptedServer, scripted

ME = Credentials("me", "secret", "the test")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (
            'Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:o/n:pull"',
            Challenge("bearer", "https://ghcr.io/token", "ghcr.io"),
        ),
        ("Bearer realm=https://a/t,service=s", Challenge("bearer", "https://a/t", "s")),
        ('Basic realm="Registry \\"x\\""', Challenge("basic", 'Registry "x"')),
        ('Basic realm="x", Bearer realm="https://a/t"', Challenge("bearer", "https://a/t")),
        ('Negotiate, Basic realm="x"', Challenge("basic", "x")),
        ("Bearer", None),
        ('Digest realm="x"', None),
    ],
)
def test_challenge_is_parsed(header: str, expected: Challenge | None) -> None:
    assert read_challenge(header) == expected


class TokenRegistry:
    """A registry with one manifest that requires a token, and its token server."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.accepted = "t1"
        self.token: object = {"token": "t1", "expires_in": 300}
        self.token_status = 200
        self.before_token: Callable[[], None] = lambda: None

    def answer(self, asked: Asked) -> Served:
        if asked.path == "/token":
            self.before_token()
            return Served(json.dumps(self.token).encode(), self.token_status)
        if asked.headers.get("authorization") == f"Bearer {self.accepted}":
            return Served(b"{}")
        challenge = f'Bearer realm="{self.server.url}/token",service="it"'
        return Served(b"{}", 401, {"WWW-Authenticate": challenge})

    def repository(self, credentials: Credentials | None = ME) -> Repository:
        return opened(self.server, credentials)

    def token_requests(self) -> list[Asked]:
        return [asked for asked in self.server.log if asked.path == "/token"]


@pytest.fixture
def registry() -> Iterator[TokenRegistry]:
    with scripted(lambda asked: answering.answer(asked)) as server:  # noqa: PLW0108 - it is defined a line later
        answering = TokenRegistry(server)
        yield answering


def test_token_is_fetched_once_with_the_password_and_reused_until_it_is_refused(registry: TokenRegistry) -> None:
    repository = registry.repository()
    for _ in range(3):
        assert repository.manifest("latest")
    [asked] = registry.token_requests()
    assert asked.query == {"service": ["it"], "scope": ["repository:o/n:pull"]}
    assert asked.headers["authorization"] == ME.basic()
    registry.accepted, registry.token = "t2", {"token": "t2", "expires_in": 300}
    assert repository.manifest("latest")
    assert len(registry.token_requests()) == 2


def test_token_to_write_serves_to_read_but_not_vice_versa(registry: TokenRegistry) -> None:
    repository = registry.repository()
    assert repository.manifest("latest")
    repository.put_manifest(b"{}", MANIFEST_TYPE)
    repository.manifest("latest")
    scopes = [asked.query["scope"] for asked in registry.token_requests()]
    assert scopes == [["repository:o/n:pull"], ["repository:o/n:pull,push"]]
    writer = registry.repository()
    writer.put_manifest(b"{}", MANIFEST_TYPE)
    assert writer.manifest("latest")
    assert len(registry.token_requests()) == 3


def test_anonymous_request_for_a_token_sends_no_password(registry: TokenRegistry) -> None:
    registry.token = {"access_token": "t1"}  # as in OAuth
    assert registry.repository(None).manifest("latest")
    assert "authorization" not in registry.token_requests()[0].headers


def test_nothing_is_sent_again_once_it_is_too_late(registry: TokenRegistry) -> None:
    repository, late = registry.repository(), threading.Event()
    registry.before_token = late.set
    with pytest.raises(CancelledError):
        repository.put_manifest(b"{}", MANIFEST_TYPE, "latest", stopped=late)
    assert [asked.method for asked in registry.server.log if asked.path != "/token"] == ["PUT"]


def test_insufficient_token_is_not_requested_again(registry: TokenRegistry) -> None:
    registry.accepted = "another"
    with raises("access-denied", match="does not allow you to read a manifest") as failure:
        registry.repository().manifest("latest")
    assert "'me' from the test" in failure.value.why
    assert len(registry.token_requests()) == 1


def test_wrong_missing_or_insufficient_credentials_are_named(registry: TokenRegistry) -> None:
    registry.token_status = 401
    with raises("credentials-refused", match="does not accept the credentials") as failure:
        registry.repository().manifest("latest")
    assert "'me' from the test" in failure.value.why
    assert "secret" not in str(failure.value)
    with raises("credentials-refused", match="without credentials"):
        registry.repository(None).manifest("latest")
    registry.token_status = 403
    with raises("access-denied", match="get a token for repository:o/n:pull") as failure:
        registry.repository().manifest("latest")
    assert "docker login" in failure.value.fix
    assert "packages: write" in failure.value.fix


def test_busy_token_server_is_asked_again(registry: TokenRegistry) -> None:
    registry.token_status = 503
    with pytest.raises(RegistryError, match="issued no token"):
        registry.repository().manifest("latest")
    assert len(registry.token_requests()) == HURRIED.attempts


@pytest.mark.parametrize(
    "token", [[], {}, {"token": 3}, {"token": "x", "expires_in": "long"}, {"token": "x", "expires_in": 10**400}]
)
def test_unusable_answer_of_a_token_server_is_refused(registry: TokenRegistry, token: object) -> None:
    registry.token = token
    with pytest.raises(RegistryError, match="issued no token"):
        registry.repository().manifest("latest")


def test_password_is_not_sent_to_a_token_server_without_tls() -> None:
    connection = Connection(Reference("ghcr.io", "o/n"), ME, HURRIED)
    challenge = {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:1/token"'}
    connection._learn(RegistryResponse(401, challenge, b"", ""), None)
    with raises("unsafe-address", match="unsafe address") as failure:
        connection._authorization("pull")
    assert "without TLS" in failure.value.why


@contextmanager
def basic_registry(password: str) -> Iterator[Repository]:
    def answer(asked: Asked) -> Served:
        if asked.headers.get("authorization") == ME.basic():
            return Served(b"{}")
        return Served(b"{}", 401, {"WWW-Authenticate": 'Basic realm="it"'})

    with scripted(answer) as server:
        yield opened(server, Credentials("me", password, "the test"))


def test_password_is_sent_to_a_registry_that_requires_it_and_a_wrong_one_is_named() -> None:
    with basic_registry("secret") as repository:
        assert repository.manifest("latest")
    with basic_registry("mistyped") as repository, raises("credentials-refused", match="does not accept"):
        repository.manifest("latest")
