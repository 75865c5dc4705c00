"""Referrers in registries with and without the API, and the descriptors that list them."""

import json
import threading
import time

import pytest

from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import Attachment, fallback_tag
from imagefactory.oci.registry.repository import WINDOW_HERE
from imagefactory.store.digests import digest_of
from tests.fixtures.registries import opened
from tests.fixtures.servers import Answer, Asked, ScriptedServer, scripted

DIGEST = digest_of(b"an image")


class Manifests:
    """A registry that stores manifests, with or without the referrers API."""

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
            return Answer(self.kept[name]) if name in self.kept else Answer(status=404)
        self.kept[name] = self.kept[digest_of(asked.body)] = asked.body
        document = json.loads(asked.body)
        subject = document.get("subject")
        if not (self.api and subject):
            return Answer(status=201)
        item = Descriptor(MANIFEST_TYPE, digest_of(asked.body), len(asked.body), document["artifactType"])
        self.referrers.append(item.document())
        return Answer(status=201, headers={"OCI-Subject": subject["digest"]})


def attach(server: ScriptedServer, kind: str) -> Descriptor:
    subject = Descriptor(MANIFEST_TYPE, DIGEST, 8)
    return referrers.attach(opened(server), subject, kind, [Payload("text/plain", kind.encode())])


@pytest.mark.usefixtures("rivals")
def test_several_attachments_are_listed_with_one_write_and_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = Manifests(api=False)
    waits: list[float] = []
    sleep, this = time.sleep, threading.current_thread()

    def wait(seconds: float) -> None:
        # `time` is everybody's: what a thread of another test waits for is not counted.
        waits.append(seconds) if threading.current_thread() is this else sleep(seconds)

    monkeypatch.setattr("imagefactory.oci.registry.tag_writes.time.sleep", wait)
    kinds = ["application/vnd.sbom", "application/vnd.sig", "application/vnd.provenance"]
    wanted = [Attachment(kind, [Payload("text/plain", kind.encode())], {"k": kind}) for kind in kinds]
    subject = Descriptor(MANIFEST_TYPE, DIGEST, 8)
    with scripted(manifests) as server:
        attached = referrers.attach_many(opened(server), subject, wanted)
        assert referrers.find(opened(server), DIGEST) == attached
        assert [item.artifact_type for item in attached] == kinds
        lists = [asked for asked in server.log if asked.path.endswith(f"/manifests/{fallback_tag(DIGEST)}")]
        assert [asked.method for asked in lists].count("PUT") == 1
        assert waits == [WINDOW_HERE.wait]
        assert referrers.attach_many(opened(server), subject, wanted) == attached
        assert len(waits) == 1, "what is listed already is not written again"


def test_registry_with_the_api_gets_no_fallback_tag_and_referrers_are_filtered_by_type() -> None:
    manifests = Manifests(api=True)
    with scripted(manifests) as server:
        attached = attach(server, "application/vnd.sbom")
        assert [item.digest for item in referrers.find(opened(server), DIGEST)] == [attached.digest]
        assert fallback_tag(DIGEST) not in manifests.kept
        signature = attach(server, "application/vnd.sig")
        assert len(referrers.find(opened(server), DIGEST)) == 2
        [found] = referrers.find(opened(server), DIGEST, "application/vnd.sig")
        assert found.digest == signature.digest


def test_fallback_tag_is_read_when_the_api_lists_nothing() -> None:
    manifests = Manifests(api=False)
    with scripted(manifests) as server:
        attached = attach(server, "application/vnd.sbom")
        manifests.api = True
        assert [item.digest for item in referrers.find(opened(server), DIGEST)] == [attached.digest]


def test_descriptor_survives_a_round_trip() -> None:
    platform = {"os": "linux", "architecture": "arm64"}
    descriptor = Descriptor("a/b", DIGEST, 3, "c/d", {"k": "v"}, platform)
    assert Descriptor.of(json.loads(json.dumps(descriptor.document()))) == descriptor
