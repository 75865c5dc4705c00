"""References to images in registries."""

import pytest

from imagefactory.oci.registry.reference import Reference, is_digest
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises

DIGEST = Digest("sha256:" + "a1" * 32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ghcr.io/owner/name", Reference("ghcr.io", "owner/name")),
        ("ghcr.io/owner/name:latest", Reference("ghcr.io", "owner/name", "latest")),
        (f"ghcr.io/owner/name@{DIGEST}", Reference("ghcr.io", "owner/name", None, DIGEST)),
        (f"ghcr.io/owner/name:v1@{DIGEST}", Reference("ghcr.io", "owner/name", "v1", DIGEST)),
        ("localhost/name", Reference("localhost", "name")),
        ("127.0.0.1:5000/a/b-c/d__e:x_Y.z-1", Reference("127.0.0.1:5000", "a/b-c/d__e", "x_Y.z-1")),
        ("[::1]:5000/name:tag", Reference("[::1]:5000", "name", "tag")),
        ("GHCR.io/owner/name", Reference("ghcr.io", "owner/name")),
    ],
)
def test_reference_survives_a_round_trip(text: str, expected: Reference) -> None:
    assert Reference.parse(text) == expected
    assert str(expected) == text.replace("GHCR", "ghcr")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host"),
        ("owner/name", "host"),
        ("ghcr.io/", "repository"),
        ("https://ghcr.io/owner/name", "host"),
        ("ghcr.io/Owner/name", "lower case: owner/name"),
        ("ghcr.io/owner//name", "repository"),
        ("ghcr.io/owner/name:-x", "not a tag"),
        ("ghcr.io/owner/name:" + "x" * 129, "not a tag"),
        ("ghcr.io/owner/name@sha256:abc", "not a digest"),
        ("ghcr.io/owner/name@sha512:" + "a" * 128, "not a digest"),
        ("ghcr.io/../name", "repository"),
        ("ghcr.io/" + "a" * 260, "repository"),
    ],
)
def test_invalid_reference_is_refused_with_a_reason(text: str, why: str) -> None:
    with raises("bad-reference") as failure:
        Reference.parse(text)
    assert why in failure.value.why


@pytest.mark.parametrize(
    ("registry", "url"),
    [
        ("ghcr.io", "https://ghcr.io"),
        ("localhost:5000", "http://localhost:5000"),
        ("127.9.9.9:1", "http://127.9.9.9:1"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("localhost.example", "https://localhost.example"),
        ("docker.io", "https://registry-1.docker.io"),
    ],
)
def test_only_registries_on_this_machine_are_used_without_tls(registry: str, url: str) -> None:
    assert Reference(registry, "name").url == url


def test_tag_and_digest_replace_each_other_and_are_told_apart() -> None:
    reference = Reference.parse("ghcr.io/owner/name:old")
    assert str(reference.at(DIGEST)) == f"ghcr.io/owner/name@{DIGEST}"
    assert str(reference.at(DIGEST).tagged("new")) == "ghcr.io/owner/name:new"
    with raises("bad-reference"):
        reference.tagged("not a tag")
    assert [is_digest(text) for text in (DIGEST, "latest", DIGEST.upper())] == [True, False, False]
