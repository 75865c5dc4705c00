"""Reading from repositories and writing manifests, and the ways in which registries answer."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError, RegistryError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import contents
from imagefactory.oci.registry.referrers import find
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.responses import BLOCK
from imagefactory.store.digests import digest_of
from tests.fixtures.failures import raises
from tests.fixtures.registries import opened
from tests.fixtures.servers import Answer, Asked, scripted
from tests.fixtures.small_images import registry_error

DATA = b"some content of a layer"
DIGEST = digest_of(DATA)
WRONG_DIGEST: dict[str, str] = {"Docker-Content-Digest": DIGEST}

Use = Callable[[Repository], object]


def document(content: object, served: str = "") -> Answer:
    return Answer(json.dumps(content).encode(), headers={"Content-Type": served})


def listing(digest: str = DIGEST, size: str = "1") -> Answer:
    return Answer(f'{{"manifests": [{{"mediaType": "x", "digest": "{digest}", "size": {size}}}]}}'.encode())


@pytest.mark.parametrize(
    ("answer", "use", "error", "message"),
    [
        (Answer(b'{"other": 1}'), lambda it: it.manifest(DIGEST), "wrong-digest", "other content than"),
        (Answer(b"{}", 200, WRONG_DIGEST), lambda it: it.manifest("x"), "wrong-digest", "other content than"),
        (Answer(DATA), lambda it: it.blob(DIGEST, limit=5), "blob-too-large", "larger than expected"),
        (Answer(status=405), lambda it: it.delete(DIGEST), "registry-failed", "failed to delete"),
        (
            Answer(b"", 201, WRONG_DIGEST),
            lambda it: it.put_manifest(b"{}", MANIFEST_TYPE, "x"),
            "wrong-digest",
            "other content",
        ),
    ],
)
def test_bad_answer_is_refused(answer: Answer, use: Use, error: str, message: str) -> None:
    with scripted(lambda _: answer) as server, raises(error, match=message):
        use(opened(server))


UNUSABLE: dict[Use, list[Answer]] = {
    lambda it: it.manifest("x"): [
        *(Answer(b"not JSON"), Answer(b"[]"), Answer(b"\xff"), Answer(b"[" * 100_000), Answer(status=401)),
        # What some read as an image and others as an index.
        document({"mediaType": INDEX_TYPE, "manifests": []}, MANIFEST_TYPE),
        document({"mediaType": MANIFEST_TYPE, "layers": []}, INDEX_TYPE),
        document({"mediaType": MANIFEST_TYPE, "layers": [], "manifests": []}, MANIFEST_TYPE),
        document({"manifests": [], "layers": []}, INDEX_TYPE),
        document({"manifests": []}, MANIFEST_TYPE),
        document({"manifests": [], "config": {}}),
        document({"mediaType": 3}, MANIFEST_TYPE),
    ],
    Repository.tags: [
        *(Answer(b"[]"), Answer(b'{"tags":' * 100_000)),
        *(document({"tags": tags}) for tags in (["a\x1b[2J"], [3], [None], "abc!", ["x" * 200], 3)),
    ],
    lambda it: find(it, DIGEST): [
        *(Answer(b"[" * 100_000), listing(size="1e999"), listing("../../../other/manifests/x")),
        *(document({"manifests": [{}]}), document({"manifests": 3}), document({"manifests": [3]})),
    ],
    lambda it: contents(it, it.require_manifest("x")): [document({"manifests": []})],
}


@pytest.mark.parametrize(("use", "answer"), [(use, answer) for use, answers in UNUSABLE.items() for answer in answers])
def test_unusable_answer_is_refused(use: Use, answer: Answer) -> None:
    with scripted(lambda _: answer) as server, raises("unusable-answer"):
        use(opened(server))


@pytest.mark.parametrize(
    ("message", "shown"), [("no\x1b[2J\r\nerror: \ufffe\u2028done", "no [2J error: done"), ("\ud800", "DENIED")]
)
def test_what_a_registry_says_is_one_printable_line(message: str, shown: str) -> None:
    body = registry_error("DENIED", message)
    with scripted(lambda _: Answer(body, 403)) as server, raises("access-denied") as caught:
        opened(server).manifest("x")
    assert shown in caught.value.why
    assert caught.value.why.isprintable()


def test_manifest_is_hashed_when_the_registry_sends_no_digest() -> None:
    with scripted(lambda _: Answer(b"{}", headers={"Content-Type": INDEX_TYPE})) as server:
        manifest = opened(server).manifest("latest")
        assert manifest
        assert (manifest.digest, manifest.media_type) == (digest_of(b"{}"), INDEX_TYPE)
        assert opened(server).resolve("latest") == digest_of(b"{}")


def test_download_continues_when_the_server_does_not_support_ranges(tmp_path: Path) -> None:
    def answer(_: Asked) -> Answer:
        sent = DATA if len(server.log) > 1 else DATA[:5]
        return Answer(sent, headers={"Content-Length": str(len(DATA))})

    with scripted(answer) as server:
        opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
        assert (tmp_path / "blob").read_bytes() == DATA


def test_download_continues_after_a_broken_connection(tmp_path: Path) -> None:
    data = DATA * 100_000

    def start_of(asked: Asked) -> int:
        return int(asked.headers["range"].removeprefix("bytes=").partition("-")[0])

    def answer(asked: Asked) -> Answer:
        if "range" in asked.headers:
            span = {"Content-Range": f"bytes {start_of(asked)}-{len(data) - 1}/{len(data)}"}
            return Answer(data[start_of(asked) :], 206, span)
        return Answer(data[: len(data) // 2], headers={"Content-Length": str(len(data))})

    with scripted(answer) as server:
        opened(server).download(digest_of(data), len(data), tmp_path / "blob")
        assert (tmp_path / "blob").read_bytes() == data
        first, second = server.log
        assert "range" not in first.headers
        assert len(data) // 2 - BLOCK <= start_of(second) <= len(data) // 2


def test_endless_download_is_cut_off(tmp_path: Path) -> None:
    with scripted(lambda _: Answer(DATA * 1000)) as server, raises("wrong-digest") as failure:
        opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
    assert f"{len(DATA) + 1} bytes" in failure.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("headers", [{"Content-Length": "9" * 5000}, {"Content-Range": f"bytes {'9' * 5000}-"}])
def test_absurd_length_of_a_download_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    status = 206 if "Content-Range" in headers else 200
    with scripted(lambda _: Answer(DATA[:5], status, headers)) as server, pytest.raises(FactoryError):
        opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
    assert list(tmp_path.iterdir()) == []


def test_missing_blob_is_reported(tmp_path: Path) -> None:
    with scripted(lambda _: Answer(registry_error("BLOB_UNKNOWN"), 404)) as server:
        with raises("no-content"):
            opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
        assert not opened(server).has_blob(DIGEST)


def test_tags_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.oci.registry.repository._MOST_PAGES", 5, raising=False)

    def answer(_: Asked) -> Answer:
        page = len(server.log)
        if page > 20:
            return Answer(status=404)
        return Answer(b'{"tags": ["a"]}', headers={"Link": f'</v2/o/n/tags/list?page={page}>; rel="next"'})

    with scripted(answer) as server:
        with raises("oversized-answer"):
            opened(server).tags()
        assert len(server.log) == 5


def test_redirects_without_end_and_to_unsafe_addresses_are_told_apart() -> None:
    refused: list[str] = []
    for location in ("/v2/", "ftp://files.example/"):
        redirect = Answer(status=307, headers={"Location": location})
        with scripted(partial(lambda always, _: always, redirect)) as server:
            with pytest.raises(RegistryError) as failure:
                opened(server).tags()
            refused.append(failure.value.name)
    assert refused == ["oversized-answer", "unsafe-address"]


def test_tags_are_collected_from_all_pages_and_may_be_null() -> None:
    def answer(asked: Asked) -> Answer:
        if "last" in asked.query:
            return Answer(b'{"tags": ["c"]}')
        return Answer(b'{"tags": ["a", "b"]}', headers={"Link": '</v2/o/n/tags/list?last=b>; rel="next"'})

    with scripted(answer) as server:
        assert opened(server).tags() == ["a", "b", "c"]
    with scripted(lambda _: Answer(b'{"name": "o/n", "tags": null}')) as server:
        assert opened(server).tags() == []
