"""GitHub's packages API: every version is found, on every page, and deleted by its digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest

from imagefactory.errors import RegistryError
from imagefactory.oci.registry.reference import Reference
from imagefactory.publish.github_packages import GitHubPackages
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import TOKEN, serving_json
from tests.fixtures.servers import Answer, scripted

REFERENCE = Reference.parse("ghcr.io/somebody/spark-vllm")


def digest(number: int) -> Digest:
    return Digest(f"sha256:{number:064x}")


@dataclass
class FakePackage:
    """The versions of one package of a user."""

    url: str = ""
    versions: dict[int, Digest] = field(default_factory=lambda: {n: digest(n) for n in range(1, 251)})
    popular: set[int] = field(default_factory=set)

    def respond(self, method: str, path: str, _data: object) -> tuple[int, object]:
        parts = urlsplit(path)
        if not parts.path.startswith("/users/somebody/packages/container/spark-vllm/versions"):
            return 404, {"message": "Not Found"}
        if method == "GET":
            query = parse_qs(parts.query)
            size, page = int(query["per_page"][0]), int(query["page"][0])
            rows = [
                {"id": number, "name": name, "created_at": "2026-11-01T00:00:00Z"}
                for number, name in self.versions.items()
            ]
            return 200, rows[(page - 1) * size : page * size]
        number = int(path.rpartition("/")[2])
        if number in self.popular:
            return 400, {"message": "Publicly visible package versions with more than 5000 downloads"}
        return (204, None) if self.versions.pop(number, None) else (404, {"message": "Not Found"})


@pytest.fixture
def package() -> Iterator[FakePackage]:
    fake = FakePackage()
    with serving_json(fake.respond) as fake.url:
        yield fake


def test_every_page_is_read_for_a_user_as_for_an_organisation(package: FakePackage) -> None:
    packages = GitHubPackages(REFERENCE, TOKEN, package.url)
    assert set(packages.versions()) == set(package.versions.values())


def test_a_version_is_deleted_by_its_digest(package: FakePackage) -> None:
    packages = GitHubPackages(REFERENCE, TOKEN, package.url)
    assert packages.delete(digest(7))
    assert 7 not in package.versions
    assert not packages.delete(digest(7))
    assert not packages.delete(digest(9999))
    assert len(package.versions) == 249


def test_a_refusal_of_github_is_reported(package: FakePackage) -> None:
    package.popular.add(3)
    with pytest.raises(RegistryError, match="does not delete a version") as refused:
        GitHubPackages(REFERENCE, TOKEN, package.url).delete(digest(3))
    assert "5000 downloads" in refused.value.why
    with raises("access-denied", match="does not list its versions"):
        GitHubPackages(REFERENCE, "another", package.url).versions()


def test_an_api_that_does_not_answer_is_reported() -> None:
    with raises("registry-unreachable", match="does not answer"):
        GitHubPackages(REFERENCE, TOKEN, "http://127.0.0.1:9").versions()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"[" * 100_000, "oversized-answer"),
        (b"[" + b" " * 2_000_000 + b"]", "oversized-answer"),
        (b"[" + b"{}," * 99 + b"{}]", "oversized-answer"),
        (b"<html>", "registry-failed"),
        (b'{"a": 1}', "registry-failed"),
        (f'[{{"name": "{digest(1)}"}}]'.encode(), "registry-failed"),
    ],
    ids=["deep", "large", "endless", "HTML", "no list", "no number"],
)
def test_answers_that_github_would_not_send_are_refused(
    monkeypatch: pytest.MonkeyPatch, body: bytes, error: str
) -> None:
    monkeypatch.setattr("imagefactory.publish.github_packages._MOST_PAGES", 3)
    monkeypatch.setattr("imagefactory.publish.github_packages._MOST_BYTES", 1_000_000)
    with scripted(lambda _: Answer(body)) as server:
        with raises(error):
            GitHubPackages(REFERENCE, TOKEN, server.url).versions()
        assert len(server.log) <= 3


def test_only_ghcr_has_a_packages_api(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GitHubPackages.of(Reference.parse("127.0.0.1:5000/a/b")) is None
    with raises("access-denied", match="only for users who are logged in"):
        GitHubPackages.of(REFERENCE)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert GitHubPackages.of(REFERENCE) is not None
