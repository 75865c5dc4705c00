"""What others attached to an image: bounded, each content once, and nothing that spoils the rest."""

import json

import pytest

from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import fallback_tag
from imagefactory.publish import dossier
from imagefactory.publish.attest.bundles import MEDIA_TYPE, Bundle, Statement, write_bundle
from imagefactory.publish.dossier import ANSWERS_TYPE, SMOKE_TYPE, Dossier
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE
from imagefactory.store.digests import Digest, Sha256, digest_of
from tests.fixtures.failures import raises
from tests.fixtures.publishing import smoke_record
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

    def add(self, *blobs: bytes, manifest: bytes = b"", kind: str = MEDIA_TYPE) -> Digest:
        layers = [Descriptor(kind, digest_of(blob), len(blob)).document() for blob in blobs]
        body = manifest or json.dumps({"mediaType": MANIFEST_TYPE, "layers": layers}).encode()
        self.kept |= {digest_of(data): data for data in (body, *blobs)}
        self.listed.append(Descriptor(MANIFEST_TYPE, digest_of(body), len(body), kind).document())
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


KEY = Sha256("1" * 64)
TESTED = smoke_record(IMAGE, KEY)
FUTURE = TESTED.model_copy(update={"started": TESTED.started.replace(year=2990)}).to_json().encode()
NO_ZONE = TESTED.to_json().replace("12:00:00Z", "12:00:00").encode()


def test_what_is_no_record_is_named_and_left_out_and_the_record_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dossier, "_LARGEST", 4000)
    registry = Attached()
    bad = [registry.add(blob, kind=SMOKE_TYPE) for blob in (b"xx", b"{}", DEEP, FUTURE, NO_ZONE, b"x" * 5000)]
    bad += [registry.add(manifest=manifest, kind=SMOKE_TYPE) for manifest in (DEEP, b'{"layers": 3}')]
    bad += [registry.add(b"\x1b[2J", kind=kind) for kind in (ANSWERS_TYPE, VULNERABILITIES_TYPE)]
    registry.add(TESTED.to_json().encode(), kind=SMOKE_TYPE)
    with scripted(registry) as server:
        image = Dossier.read(opened(server), IMAGE)
        assert image.smoke(KEY) == TESTED
        assert (image.answers(KEY), image.scan) == (None, None)
    kinds = [*["smoke record"] * 8, "answers record", "scan record"]
    named = [f"{kind}: {artifact} is left out: " for kind, artifact in zip(kinds, bad, strict=True)]
    assert [line[: len(start)] for line, start in zip(image.left_out, named, strict=True)] == named
    assert all(line.isprintable() and len(line) < 500 for line in image.left_out)


@pytest.mark.parametrize("answer", [Answer(b"other bytes"), Answer(status=500)])
def test_a_record_that_the_registry_withholds_may_be_the_one_that_refuses(answer: Answer) -> None:
    registry = Attached()
    withheld = TESTED.to_json().encode()
    registry.add(withheld, kind=SMOKE_TYPE)

    def withholds(asked: Asked) -> Answer:
        return answer if asked.path.endswith(digest_of(withheld)) else registry(asked)

    with scripted(withholds) as server, raises("wrong-digest" if answer.status == 200 else "registry-failed"):
        Dossier.read(opened(server), IMAGE).smoke(KEY)
