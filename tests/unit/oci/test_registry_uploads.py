"""Uploading blobs to registries, and the ways in which they answer."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.errors import RegistryError
from imagefactory.store.digests import digest_of
from imagefactory.store.http import Retry
from tests.fixtures.failures import raises
from tests.fixtures.registries import HURRIED, opened
from tests.fixtures.servers import Answer, Asked, ScriptedServer, scripted
from tests.fixtures.small_images import registry_error

DATA = b"some content of a layer"
DIGEST = digest_of(DATA)


def upload(server: ScriptedServer, content: bytes = DATA) -> str:
    return opened(server).upload(DIGEST, len(DATA), lambda: io.BytesIO(content))


class Uploads:
    """A registry that accepts blobs; `put` may give other answers."""

    def __init__(self, put: Callable[[int], Answer | None] = lambda _: None) -> None:
        self.blobs: set[str] = set()
        self.put = put
        self.puts = 0
        self.location = "/v2/o/n/blobs/uploads/1?state=a%2Fb"

    def __call__(self, asked: Asked) -> Answer:
        if asked.method == "HEAD":
            return Answer(status=200 if asked.path.rpartition("/")[2] in self.blobs else 404)
        if asked.method == "POST":
            return Answer(status=202, headers={"Location": self.location})
        self.puts += 1
        other = self.put(self.puts)
        if other is not None:
            return other
        self.blobs.add(asked.query["digest"][0])
        return Answer(status=201)


def test_blob_is_sent_in_one_request_to_the_given_location_unless_it_is_present() -> None:
    with scripted(Uploads()) as server:
        assert upload(server) == "uploaded"
        assert [str(asked) for asked in server.log] == [
            f"HEAD /v2/o/n/blobs/{DIGEST}",
            "POST /v2/o/n/blobs/uploads/",
            "PUT /v2/o/n/blobs/uploads/1",
        ]
        put = server.log[-1]
        assert put.body == DATA
        assert put.query == {"state": ["a/b"], "digest": [DIGEST]}
        assert put.headers["content-length"] == str(len(DATA))
        assert "content-range" not in put.headers
        assert upload(server) == "present"
        assert [asked.method for asked in server.log[3:]] == ["HEAD"]


@pytest.mark.parametrize(
    ("code", "status"), [("BLOB_UPLOAD_UNKNOWN", 404), ("BLOB_UNKNOWN", 404), ("DIGEST_INVALID", 400)]
)
def test_blob_is_looked_up_and_sent_again_after_a_passing_error(code: str, status: int) -> None:
    uploads = Uploads(lambda number: Answer(registry_error(code), status) if number == 1 else None)
    with scripted(uploads) as server:
        assert upload(server) == "uploaded"
        assert [asked.method for asked in server.log] == ["HEAD", "POST", "PUT", "HEAD", "POST", "PUT"]


def test_blob_is_not_sent_again_when_it_was_committed_despite_an_error() -> None:
    uploads = Uploads()

    def late(_: int) -> Answer:
        uploads.blobs.add(DIGEST)
        return Answer(registry_error("BLOB_UPLOAD_UNKNOWN"), 404)

    uploads.put = late
    with scripted(uploads) as server:
        assert upload(server) == "uploaded"
        assert uploads.puts == 1


def test_upload_waits_for_a_commit_in_progress() -> None:
    uploads = Uploads(lambda _: Answer(status=504))
    heads = 0

    def answer(asked: Asked) -> Answer:
        nonlocal heads
        heads += asked.method == "HEAD"
        if heads == 4:
            uploads.blobs.add(DIGEST)
        return uploads(asked)

    with scripted(answer) as server:
        assert upload(server) == "uploaded"
        assert uploads.puts == 1


def test_upload_to_another_host_carries_no_secret() -> None:
    with scripted(lambda _: Answer(status=201)) as storage:
        uploads = Uploads()
        uploads.location = f"{storage.url}/put-it-here"
        with scripted(uploads) as server:
            assert upload(server) == "uploaded"
        assert storage.log[0].body == DATA
        assert "authorization" not in storage.log[0].headers


def test_upload_is_not_retried_when_it_is_denied() -> None:
    denied = Answer(registry_error("DENIED", "permission_denied"), 403)
    with scripted(lambda asked: Answer(status=404) if asked.method == "HEAD" else denied) as server:
        with raises("access-denied") as failure:
            upload(server)
        assert "permission_denied" in failure.value.why
        assert len(server.log) == 2


def test_upload_gives_up_after_the_last_attempt() -> None:
    uploads = Uploads(lambda _: Answer(status=500))
    with scripted(uploads) as server:
        with pytest.raises(RegistryError, match="failed to write a blob"):
            upload(server)
        assert uploads.puts == HURRIED.attempts


def test_upload_sends_the_announced_length_or_fails() -> None:
    with scripted(Uploads()) as server, raises("no-image") as failure:
        upload(server, DATA[:5])
    assert failure.value.why == f"It ends after 5 of {len(DATA)} bytes."
    with scripted(Uploads()) as server:
        upload(server, DATA + b"more")
        assert server.log[-1].body == DATA


def test_missing_file_is_not_mistaken_for_a_broken_network(tmp_path: Path) -> None:
    with scripted(Uploads()) as server:
        with raises("no-image", match="cannot be read"):
            opened(server).upload(DIGEST, len(DATA), lambda: (tmp_path / "gone").open("rb"))
        assert [asked.method for asked in server.log] == ["HEAD", "POST"]


def test_registry_that_gives_no_location_is_named() -> None:
    with (
        scripted(lambda asked: Answer(status=404 if asked.method == "HEAD" else 202)) as server,
        pytest.raises(RegistryError, match="without a Location"),
    ):
        upload(server)


def test_empty_blob_is_sent_with_its_length() -> None:
    with scripted(Uploads()) as server:
        assert opened(server).upload(digest_of(b""), 0, io.BytesIO) == "uploaded"
        assert server.log[-1].headers["content-length"] == "0"
        assert "transfer-encoding" not in server.log[-1].headers


@pytest.mark.parametrize("seconds", ["86400", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_upload_does_not_wait_as_long_as_a_registry_pleases(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Retry, "wait", lambda _, __, again, ___: waits.append(again.after))
    uploads = Uploads(lambda _: Answer(status=503, headers={"Retry-After": seconds}))
    with scripted(uploads) as server:
        with raises("registry-busy", match="much later"):
            upload(server)
        assert uploads.puts == 1
    assert sum(waits) == 0
