"""GitHub's packages API: every version is found, on every page, and deleted by its digest."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import pytest

from imagefactory.oci.registry.reference import Reference
from imagefactory.publish.github import GitHubPackages
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import TOKEN, serving_json

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
                | ({"metadata": {"container": {"tags": ["x"] if number == 1 else []}}} if number > 0 else {})
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
    package.versions[0] = digest(0)
    # Of the last, GitHub does not say whether it has a tag.
    assert set(GitHubPackages(REFERENCE, TOKEN, package.url).untagged) == {digest(number) for number in range(2, 251)}


def test_a_version_is_deleted_by_its_digest_and_a_refusal_of_github_is_reported(package: FakePackage) -> None:
    packages = GitHubPackages(REFERENCE, TOKEN, package.url)
    for gone in (digest(7), digest(7), digest(9999)):
        packages.delete(gone)
    assert 7 not in package.versions
    assert len(package.versions) == 249
    package.popular.add(3)
    with raises("github-failed", match="refused a request about users/somebody/packages") as refused:
        GitHubPackages(REFERENCE, TOKEN, package.url).delete(digest(3))
    assert "5000 downloads" in refused.value.why
    with raises("github-failed") as refused:
        GitHubPackages(REFERENCE, "another", package.url)
    assert "delete:packages" in refused.value.fix


def test_only_ghcr_has_a_packages_api(package: FakePackage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert GitHubPackages.of(Reference.parse("127.0.0.1:5000/a/b")) is None
    with raises("access-denied", match="only for users who are logged in"):
        GitHubPackages.of(REFERENCE)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("FACTORY_GITHUB_API", package.url)
    found = GitHubPackages.of(REFERENCE)
    assert found
    assert len(found.untagged) == 249
