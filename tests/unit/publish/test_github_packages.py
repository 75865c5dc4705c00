"""GitHub's interface for packages: every version is found, pages and all, and deleted by its digest."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from imagefactory.errors.registry import AccessDeniedError, RegistryError, RegistryUnreachableError
from imagefactory.oci.registry.reference import Reference
from imagefactory.publish.github_packages import GitHubPackages
from imagefactory.store.digests import Digest

REFERENCE = Reference.parse("ghcr.io/somebody/spark-vllm")
TOKEN = "a-token"  # noqa: S105 - of nobody


def digest(number: int) -> Digest:
    return Digest(f"sha256:{number:064x}")


class FakeGitHub:
    """The versions of one package of a user."""

    def __init__(self) -> None:
        self.versions = {number: digest(number) for number in range(1, 251)}
        self.popular: set[int] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeGitHub

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refused(self) -> bool:
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._send(401, {"message": "Bad credentials"})
            return True
        if not self.path.startswith("/users/somebody/packages/container/spark-vllm/versions"):
            self._send(404, {"message": "Not Found"})
            return True
        return False

    def do_GET(self) -> None:
        if self._refused():
            return
        query = parse_qs(urlsplit(self.path).query)
        size, page = int(query["per_page"][0]), int(query["page"][0])
        rows = [
            {"id": number, "name": name, "created_at": "2026-11-01T00:00:00Z"}
            for number, name in self.fake.versions.items()
        ]
        self._send(200, rows[(page - 1) * size : page * size])

    def do_DELETE(self) -> None:
        if self._refused():
            return
        number = int(self.path.rpartition("/")[2])
        if number in self.fake.popular:
            self._send(400, {"message": "Publicly visible package versions with more than 5000 downloads"})
        elif self.fake.versions.pop(number, None) is None:
            self._send(404, {"message": "Not Found"})
        else:
            self._send(204, None)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    fake = FakeGitHub()
    yield fake
    fake.close()


def test_every_page_is_read_and_a_person_is_found_like_an_organisation(github: FakeGitHub) -> None:
    packages = GitHubPackages(REFERENCE, TOKEN, github.url)
    assert set(packages.versions()) == set(github.versions.values())


def test_a_version_is_deleted_by_its_digest(github: FakeGitHub) -> None:
    packages = GitHubPackages(REFERENCE, TOKEN, github.url)
    assert packages.delete(digest(7))
    assert 7 not in github.versions
    assert not packages.delete(digest(7))
    assert not packages.delete(digest(9999))
    assert len(github.versions) == 249


def test_what_github_refuses_is_told(github: FakeGitHub) -> None:
    github.popular.add(3)
    with pytest.raises(RegistryError, match="does not delete a version") as refused:
        GitHubPackages(REFERENCE, TOKEN, github.url).delete(digest(3))
    assert "5000 downloads" in refused.value.why
    with pytest.raises(AccessDeniedError, match="does not list its versions"):
        GitHubPackages(REFERENCE, "another", github.url).versions()


def test_an_interface_that_does_not_answer_is_told() -> None:
    with pytest.raises(RegistryUnreachableError, match="does not answer"):
        GitHubPackages(REFERENCE, TOKEN, "http://127.0.0.1:9").versions()


def test_only_ghcr_is_asked_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GitHubPackages.of(Reference.parse("127.0.0.1:5000/a/b")) is None
    with pytest.raises(AccessDeniedError, match="only for users it knows"):
        GitHubPackages.of(REFERENCE)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert GitHubPackages.of(REFERENCE) is not None
