"""A repository, with the habits that registries have."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagefactory.errors.layers import ImageMissingError
from imagefactory.errors.registry import (
    AccessDeniedError,
    BlobTooLargeError,
    ContentMissingError,
    RegistryError,
    RegistryUnreachableError,
)
from imagefactory.errors.store import DigestMismatchError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload, contents
from imagefactory.oci.registry.blob_uploads import LONGEST
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.referrers import fallback_tag
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.wire import BLOCK
from imagefactory.store.digests import Digest
from imagefactory.store.retry import Retry
from tests.fixtures.scripted import Asked, ScriptedServer, scripted
from tests.fixtures.servers import Answer
from tests.fixtures.small_images import digest_of

FAST = Retry(attempts=4, pause=0.001, longest=0.002)
DATA = b"some content of a layer"
DIGEST = digest_of(DATA)


def opened(server: ScriptedServer) -> Repository:
    return Repository.open(f"{server.address}/o/n", retry=FAST)


def upload(server: ScriptedServer, **options: object) -> str:
    return opened(server).upload(DIGEST, len(DATA), lambda: io.BytesIO(DATA), **options)  # type: ignore[arg-type]


def denied(message: str) -> bytes:
    return json.dumps({"errors": [{"code": "DENIED", "message": message}]}).encode()


def error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": "no"}]}).encode()


class Uploads:
    """A registry that takes blobs; `put` may answer otherwise."""

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


# --- uploading -----------------------------------------------------------------------------------


def test_a_blob_is_sent_in_one_request_to_where_the_registry_says() -> None:
    with scripted(Uploads()) as server:
        assert upload(server) == "uploaded"
        assert server.asked() == [
            f"HEAD /v2/o/n/blobs/{DIGEST}",
            "POST /v2/o/n/blobs/uploads/",
            "PUT /v2/o/n/blobs/uploads/1",
        ]
        put = server.log[-1]
        assert put.body == DATA
        assert put.query == {"state": ["a/b"], "digest": [DIGEST]}
        assert put.headers["content-length"] == str(len(DATA))
        assert "content-range" not in put.headers


def test_a_blob_that_is_there_is_neither_opened_nor_sent() -> None:
    uploads = Uploads()
    uploads.blobs.add(DIGEST)
    with scripted(uploads) as server:
        assert upload(server) == "present"
        assert len(server.log) == 1


@pytest.mark.parametrize("code", ["BLOB_UPLOAD_UNKNOWN", "BLOB_UNKNOWN"])
def test_an_upload_that_the_registry_forgot_is_looked_for_and_then_sent_again(code: str) -> None:
    uploads = Uploads(lambda number: Answer(error(code), 404) if number == 1 else None)
    with scripted(uploads) as server:
        assert upload(server) == "uploaded"
        assert [asked.method for asked in server.log] == ["HEAD", "POST", "PUT", "HEAD", "POST", "PUT"]


def test_an_upload_that_was_committed_behind_an_error_is_not_sent_again() -> None:
    uploads = Uploads()

    def late(number: int) -> Answer:
        assert number == 1
        uploads.blobs.add(DIGEST)
        return Answer(error("BLOB_UPLOAD_UNKNOWN"), 404)

    uploads.put = late
    with scripted(uploads) as server:
        assert upload(server) == "uploaded"
        assert uploads.puts == 1


def test_a_commit_that_is_still_going_on_is_waited_for() -> None:
    uploads = Uploads(lambda _: Answer(b"", 504))
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


def test_an_upload_goes_to_another_host_without_the_secret() -> None:
    with scripted(lambda _: Answer(status=201)) as storage:
        uploads = Uploads()
        uploads.location = f"{storage.url}/put-it-here"
        with scripted(uploads) as server:
            assert upload(server) == "uploaded"
        assert storage.log[0].body == DATA
        assert "authorization" not in storage.log[0].headers


def test_what_the_registry_does_not_allow_is_not_tried_again() -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(status=404) if asked.method == "HEAD" else Answer(denied("permission_denied"), 403)

    with scripted(answer) as server:
        with pytest.raises(AccessDeniedError) as failure:
            upload(server)
        assert "permission_denied" in failure.value.why
        assert len(server.log) == 2


def test_a_registry_that_never_takes_a_blob_is_given_up() -> None:
    uploads = Uploads(lambda _: Answer(b"", 500))
    with scripted(uploads) as server:
        with pytest.raises(RegistryError, match="fails to take a blob"):
            upload(server)
        assert uploads.puts == FAST.attempts


def test_a_body_that_was_damaged_on_its_way_is_sent_again() -> None:
    uploads = Uploads(lambda number: Answer(error("DIGEST_INVALID"), 400) if number == 1 else None)
    with scripted(uploads) as server:
        assert upload(server) == "uploaded"


def test_a_file_that_is_not_what_its_digest_says_is_named() -> None:
    uploads = Uploads(lambda _: Answer(error("DIGEST_INVALID"), 400))
    with scripted(uploads) as server:
        with pytest.raises(DigestMismatchError) as failure:
            opened(server).upload(DIGEST, len(DATA), lambda: io.BytesIO(b"x" * len(DATA)))
        assert "cache is damaged" in failure.value.fix
        assert uploads.puts == 1


def test_a_file_that_is_shorter_than_it_should_be_is_noticed_while_it_is_sent() -> None:
    with scripted(Uploads()) as server, pytest.raises(ImageMissingError) as failure:
        opened(server).upload(DIGEST, len(DATA), lambda: io.BytesIO(DATA[:5]))
    assert failure.value.why == f"It ends after 5 of {len(DATA)} bytes."


def test_a_file_that_grows_is_not_sent_beyond_its_length() -> None:
    with scripted(Uploads()) as server:
        opened(server).upload(DIGEST, len(DATA), lambda: io.BytesIO(DATA + b"more"))
        assert server.log[-1].body == DATA


def test_a_file_that_is_gone_is_not_taken_for_a_broken_network(tmp_path: Path) -> None:
    with scripted(Uploads()) as server:
        with pytest.raises(ImageMissingError, match="cannot be read"):
            opened(server).upload(DIGEST, len(DATA), lambda: (tmp_path / "gone").open("rb"))
        assert [asked.method for asked in server.log] == ["HEAD", "POST"]


def test_a_layer_that_ghcr_does_not_take_is_refused_before_anything_is_sent() -> None:
    repository = Repository.open("ghcr.io/o/n", retry=FAST)
    with pytest.raises(BlobTooLargeError, match=r"10,000,000,001 bytes is too large for ghcr\.io"):
        repository.upload(DIGEST, 10_000_000_001, io.BytesIO)


def test_a_registry_that_does_not_say_where_to_upload_to_is_named() -> None:
    with (
        scripted(lambda asked: Answer(status=404 if asked.method == "HEAD" else 202)) as server,
        pytest.raises(RegistryError, match="does not say where"),
    ):
        upload(server)


def test_an_empty_blob_is_sent_with_its_length() -> None:
    with scripted(Uploads()) as server:
        assert opened(server).upload(digest_of(b""), 0, io.BytesIO) == "uploaded"
        assert server.log[-1].headers["content-length"] == "0"
        assert "transfer-encoding" not in server.log[-1].headers


def test_an_upload_that_takes_longer_than_the_registry_waits_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uploads = Uploads(lambda _: Answer(b"", 502))
    with scripted(uploads) as server:
        monkeypatch.setitem(LONGEST, server.address, 1e-6)
        with pytest.raises(RegistryError, match="takes longer to upload") as failure:
            upload(server)
        assert "faster connection" in failure.value.fix
        assert uploads.puts == 1


# --- mounting ------------------------------------------------------------------------------------


def test_a_blob_is_mounted_from_another_repository() -> None:
    uploads = Uploads()

    def answer(asked: Asked) -> Answer:
        return Answer(status=201) if "mount" in asked.query else uploads(asked)

    with scripted(answer) as server:
        assert upload(server, mount_from=["o/other"]) == "mounted"
        assert server.log[-1].query == {"mount": [DIGEST], "from": ["o/other"]}


def test_a_mount_that_becomes_an_upload_is_used_as_one() -> None:
    with scripted(Uploads()) as server:
        assert upload(server, mount_from=["o/other"]) == "uploaded"
        assert [asked.method for asked in server.log] == ["HEAD", "POST", "PUT"]


@pytest.mark.parametrize("status", [400, 403, 404, 405, 500])
def test_a_mount_that_is_refused_is_followed_by_an_upload(status: int) -> None:
    uploads = Uploads()

    def answer(asked: Asked) -> Answer:
        return Answer(status=status) if "mount" in asked.query else uploads(asked)

    with scripted(answer) as server:
        assert upload(server, mount_from=["o/other"]) == "uploaded"


def test_nothing_is_mounted_from_the_repository_itself() -> None:
    with scripted(Uploads()) as server:
        upload(server, mount_from=["o/n"])
        assert "mount" not in server.log[1].query


# --- reading -------------------------------------------------------------------------------------


def test_a_manifest_that_is_something_else_is_refused() -> None:
    with scripted(lambda _: Answer(b'{"other": 1}')) as server, pytest.raises(DigestMismatchError):
        opened(server).manifest(DIGEST)


def test_a_manifest_whose_digest_the_registry_gives_wrongly_is_refused() -> None:
    headers: dict[str, str] = {"Docker-Content-Digest": DIGEST}
    with scripted(lambda _: Answer(b"{}", headers=headers)) as server, pytest.raises(DigestMismatchError):
        opened(server).manifest("latest")


def test_a_registry_need_not_tell_digests() -> None:
    with scripted(lambda _: Answer(b"{}", headers={"Content-Type": INDEX_TYPE})) as server:
        manifest = opened(server).manifest("latest")
        assert manifest
        assert (manifest.digest, manifest.media_type) == (digest_of(b"{}"), INDEX_TYPE)
        assert opened(server).resolve("latest") == digest_of(b"{}")


@pytest.mark.parametrize("body", [b"not JSON", b"[]", b"\xff"])
def test_a_manifest_that_is_not_json_is_refused(body: bytes) -> None:
    with scripted(lambda _: Answer(body)) as server, pytest.raises(RegistryError, match="cannot be used"):
        opened(server).manifest("latest")


def test_a_manifest_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagefactory.oci.registry.repository.MOST_TEXT", 100)
    with (
        scripted(lambda _: Answer(b"{}" * 100)) as server,
        pytest.raises(RegistryError, match="cannot be used"),
    ):
        opened(server).manifest("latest")


def test_a_small_blob_that_is_not_small_is_refused() -> None:
    with scripted(lambda _: Answer(DATA)) as server, pytest.raises(BlobTooLargeError):
        opened(server).blob(DIGEST, limit=5)


def test_a_server_that_knows_no_ranges_is_read_up_to_the_wanted_part() -> None:
    with scripted(lambda _: Answer(DATA)) as server:
        assert opened(server).read(DIGEST, 5, 7) == DATA[5:12]
        assert opened(server).read(DIGEST, 5) == DATA[5:]


def test_a_download_continues_after_the_connection_broke(tmp_path: Path) -> None:
    data = DATA * 100_000

    def answer(asked: Asked) -> Answer:
        if "range" in asked.headers:
            start = int(asked.headers["range"].removeprefix("bytes=").partition("-")[0])
            span = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            return Answer(data[start:], 206, span)
        return Answer(data[: len(data) // 2], headers={"Content-Length": str(len(data))})

    with scripted(answer) as server:
        repository = opened(server)
        repository.connection.wire._session.headers["Connection"] = "close"
        repository.download(digest_of(data), len(data), tmp_path / "blob")
        assert (tmp_path / "blob").read_bytes() == data
        first, second = (asked.headers.get("range") for asked in server.log)
        assert first is None
        assert (
            len(data) // 2 - BLOCK
            <= int((second or "").removeprefix("bytes=").partition("-")[0])
            <= len(data) // 2
        )


def test_a_download_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    with scripted(lambda _: Answer(DATA * 1000)) as server, pytest.raises(DigestMismatchError) as failure:
        opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
    assert f"{len(DATA) + 1} bytes" in failure.value.why
    assert list(tmp_path.iterdir()) == []


def test_a_blob_that_is_missing_is_said_to_be_missing(tmp_path: Path) -> None:
    with scripted(lambda _: Answer(error("BLOB_UNKNOWN"), 404)) as server:
        with pytest.raises(ContentMissingError):
            opened(server).download(DIGEST, len(DATA), tmp_path / "blob")
        assert not opened(server).has_blob(DIGEST)


def test_a_server_that_is_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: Asked) -> Answer:
        time.sleep(0.5)
        return Answer()

    with scripted(silent) as server:
        repository = opened(server)
        ask = repository.connection.wire.ask
        monkeypatch.setattr(
            repository.connection.wire,
            "ask",
            lambda *positional, **named: ask(*positional, **{**named, "timeout": (1.0, 0.02)}),
        )
        with pytest.raises(RegistryUnreachableError) as failure:
            repository.tags()
        assert "timed out" in failure.value.why


# --- the rest ------------------------------------------------------------------------------------


def test_pages_of_tags_that_lead_in_a_circle_end() -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(b'{"tags": ["a", "b"]}', headers={"Link": f'<{asked.target}>; rel="next"'})

    with scripted(answer) as server:
        assert opened(server).tags() == ["a", "b"]


def test_a_repository_may_have_null_tags() -> None:
    with scripted(lambda _: Answer(b'{"name": "o/n", "tags": null}')) as server:
        assert opened(server).tags() == []


def test_a_registry_that_does_not_delete_is_named() -> None:
    with (
        scripted(lambda _: Answer(error("UNSUPPORTED"), 405)) as server,
        pytest.raises(RegistryError, match="does not delete"),
    ):
        opened(server).delete(DIGEST)


def test_a_registry_that_changes_what_it_is_sent_is_noticed() -> None:
    headers: dict[str, str] = {"Docker-Content-Digest": DIGEST}
    with (
        scripted(lambda _: Answer(status=201, headers=headers)) as server,
        pytest.raises(DigestMismatchError, match="another manifest"),
    ):
        opened(server).put_manifest(b"{}", MANIFEST_TYPE, "latest")


class Manifests:
    """A registry that keeps manifests; with the referrers API, or without."""

    def __init__(self, *, api: bool) -> None:
        self.api = api
        self.kept: dict[str, bytes] = {}
        self.referrers: list[object] = []

    def __call__(self, asked: Asked) -> Answer:
        name = asked.path.rpartition("/")[2]
        if "/referrers/" in asked.path:
            index = {"mediaType": INDEX_TYPE, "manifests": self.referrers}
            return Answer(json.dumps(index).encode()) if self.api else Answer(status=404)
        if asked.method == "HEAD":
            return Answer()
        if asked.method == "GET":
            found = self.kept.get(name)
            return Answer(found) if found is not None else Answer(status=404)
        self.kept[name] = self.kept[digest_of(asked.body)] = asked.body
        document = json.loads(asked.body)
        subject = document.get("subject")
        if not (self.api and subject):
            return Answer(status=201)
        item = Descriptor(MANIFEST_TYPE, digest_of(asked.body), len(asked.body), document["artifactType"])
        self.referrers.append(item.document())
        return Answer(status=201, headers={"OCI-Subject": subject["digest"]})


SUBJECT = Descriptor(MANIFEST_TYPE, DIGEST, len(DATA))


def test_a_registry_that_keeps_the_list_of_referrers_gets_no_extra_tag() -> None:
    manifests = Manifests(api=True)
    with scripted(manifests) as server:
        attached = referrers.attach(
            opened(server), SUBJECT, "application/vnd.sbom", [Payload("text/plain", b"x")]
        )
        assert [item.digest for item in referrers.find(opened(server), DIGEST)] == [attached.digest]
        assert fallback_tag(DIGEST) not in manifests.kept


def test_types_are_filtered_also_where_the_registry_does_not() -> None:
    with scripted(Manifests(api=True)) as server:
        referrers.attach(opened(server), SUBJECT, "application/vnd.sbom", [Payload("text/plain", b"x")])
        referrers.attach(opened(server), SUBJECT, "application/vnd.sig", [Payload("text/plain", b"y")])
        assert len(referrers.find(opened(server), DIGEST)) == 2
        assert len(referrers.find(opened(server), DIGEST, "application/vnd.sig")) == 1


def test_an_empty_list_of_referrers_is_not_believed_while_there_is_a_tag() -> None:
    manifests = Manifests(api=False)
    with scripted(manifests) as server:
        attached = referrers.attach(
            opened(server), SUBJECT, "application/vnd.sbom", [Payload("text/plain", b"x")]
        )
        manifests.api = True
        assert [item.digest for item in referrers.find(opened(server), DIGEST)] == [attached.digest]


@pytest.mark.parametrize("body", [b'{"manifests": [{}]}', b'{"manifests": 3}', b'{"manifests": [3]}'])
def test_a_list_of_referrers_that_cannot_be_read_is_named(body: bytes) -> None:
    manifests = Manifests(api=False)
    manifests.kept[fallback_tag(DIGEST)] = body
    with scripted(manifests) as server, pytest.raises(RegistryError, match="cannot be read"):
        referrers.find(opened(server), DIGEST)


def test_an_index_is_not_an_artifact() -> None:
    manifests = Manifests(api=False)
    manifests.kept["latest"] = b'{"manifests": []}'
    with scripted(manifests) as server, pytest.raises(RegistryError, match="not an artifact"):
        contents(opened(server), opened(server).require_manifest("latest"))


def test_a_descriptor_survives_being_written() -> None:
    descriptor = Descriptor(
        "a/b", Digest(DIGEST), 3, "c/d", {"k": "v"}, {"os": "linux", "architecture": "arm64"}
    )
    assert Descriptor.of(json.loads(json.dumps(descriptor.document()))) == descriptor
