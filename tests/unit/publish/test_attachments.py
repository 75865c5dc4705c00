"""What others attached to an image: bounded, each content once, and nothing that spoils the rest."""

import json

import pytest

from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import fallback_tag
from imagefactory.publish import dossier
from imagefactory.publish.attest.bundles import MEDIA_TYPE, Bundle, Statement, write_bundle
from imagefactory.publish.dossier import Dossier
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.failures import raises
from tests.fixtures.registries import opened
from tests.fixtures.servers import Answer, Asked, scripted

IMAGE = digest_of(b"an image")
GOOD = write_bundle(Statement("https://example.org/type", {}, IMAGE, "name").payload(), b"signature", "hint")
DEEP = b'{"a":' * 100_000


class Attached:
    """A registry with attachments of one image."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.listed: list[dict[str, object]] = []
        self.asked: list[str] = []

    def add(self, *blobs: bytes, manifest: bytes = b"") -> Digest:
        layers = [Descriptor(MEDIA_TYPE, digest_of(blob), len(blob)).document() for blob in blobs]
        body = manifest or json.dumps({"mediaType": MANIFEST_TYPE, "layers": layers}).encode()
        self.kept |= {digest_of(data): data for data in (body, *blobs)}
        self.listed.append(Descriptor(MANIFEST_TYPE, digest_of(body), len(body), MEDIA_TYPE).document())
        return digest_of(body)

    def __call__(self, asked: Asked) -> Answer:
        name = asked.path.rpartition("/")[2]
        self.asked.append(name)
        if name == fallback_tag(IMAGE):
            return Answer(json.dumps({"mediaType": INDEX_TYPE, "manifests": self.listed}).encode())
        return Answer(self.kept[name]) if name in self.kept else Answer(status=404)


def read(registry: Attached) -> list[Bundle | str]:
    with scripted(registry) as server:
        return [bundle for _, bundle in Dossier.read(opened(server), IMAGE).bundles]


def test_one_blob_that_is_listed_many_times_is_read_once() -> None:
    registry = Attached()
    registry.add(*[GOOD] * 20)
    registry.add(GOOD, b"other")
    found = read(registry)
    assert [isinstance(bundle, Bundle) for bundle in found] == [True, False]
    assert registry.asked.count(digest_of(GOOD)) == 1


@pytest.mark.parametrize(
    "garbage", [DEEP, b"[]", b"{}", json.dumps({"dsseEnvelope": {"payload": 1}}).encode(), b"x" * 5000]
)
def test_garbage_does_not_spoil_what_else_is_attached(garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dossier, "_LARGEST", 4000)
    registry = Attached()
    registry.add(garbage)
    for manifest in (DEEP, b'{"layers": 3}', b'{"layers": [3]}', b'{"layers": [], "manifests": []}'):
        registry.add(manifest=manifest)
    registry.add(GOOD)
    *bad, good = read(registry)
    assert isinstance(good, Bundle)
    assert all(isinstance(reason, str) for reason in bad)
    assert Bundle.read(write_bundle(DEEP, b"signature", "hint")).claim == "", "it claims nothing"


def test_no_more_is_read_than_is_allowed_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dossier, "_MOST", 3)
    registry = Attached()
    for number in range(10):
        registry.add(b"x" * number)
    assert ["it is not read" in str(one) for one in read(registry)] == [False, False, False, True]
    monkeypatch.setattr(dossier, "_MOST_BYTES", 1)
    assert any("it is not read" in str(one) for one in read(registry))


def test_an_outage_is_no_garbage() -> None:
    registry = Attached()
    registry.add(GOOD)

    def refuses(asked: Asked) -> Answer:
        return Answer(status=403) if asked.path.endswith(digest_of(GOOD)) else registry(asked)

    with scripted(refuses) as server, raises("access-denied"):
        _ = Dossier.read(opened(server), IMAGE).bundles
