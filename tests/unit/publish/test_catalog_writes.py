"""Concurrent writes of the catalog: a writer notices interference, and nobody's write is lost."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import tag_writes
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.oci.registry.repository import WINDOW_HERE, StoredManifest
from imagefactory.publish import stored_catalog as catalog_writes
from imagefactory.publish.catalog import Catalog, Event, Pointer, now
from imagefactory.publish.stored_catalog import CATALOG_TYPE, DOCUMENT_TYPE, read_catalog, write_catalog
from imagefactory.store.digests import Digest
from tests.fixtures.big_catalog import StandIn
from tests.fixtures.failures import raises

DIGEST = Digest(f"sha256:{'a' * 64}")


@dataclass
class Shelf(StandIn):
    """A registry that is also the clock: time passes when somebody sleeps, or when a test says so.

    `before` is called before each request with its name.
    """

    catalog: Catalog = field(default_factory=Catalog)
    time: float = 0.0
    before: Callable[[str], None] = lambda _: None

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def manifest(self, name: str) -> StoredManifest | None:
        self.before("read")
        return super().manifest(name)

    def resolve(self, name: str) -> Digest | None:
        self.before("look")
        return super().resolve(name)

    def put_manifest(self, body: bytes, media_type: str, tag: str, **more: object) -> Digest:
        self.before("write")
        return super().put_manifest(body, media_type, tag, **more)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    shelf.window = WINDOW_HERE
    for module in (catalog_writes, tag_writes):
        monkeypatch.setattr(module, "time", shelf)
    return shelf


def event(identity: str, tag: str) -> Event:
    moved = {tag: Pointer(digest=DIGEST, images={"linux/amd64": DIGEST})}
    return Event(id=identity, kind="promote", time=now(), image=DIGEST, moved=moved)


def write(shelf: Shelf, identity: str, tag: str) -> catalog_writes.Snapshot:
    def change(catalog: Catalog) -> Catalog:
        return catalog.with_event(event(identity, tag))

    return write_catalog(shelf.repository, change, tags=[tag], events=[identity])


def rival(shelf: Shelf, tag: str, *at: tuple[str, int]) -> None:
    """Let somebody else write before the nth request of a kind, without minding us."""
    seen: dict[str, int] = {}

    def before(request: str) -> None:
        seen[request] = seen.get(request, 0) + 1
        if (request, seen[request]) in at:
            shelf.before = lambda _: None
            catalog = read_catalog(shelf.repository).catalog
            theirs = catalog.with_event(event(f"rival-{request}", tag))
            payload = Payload(DOCUMENT_TYPE, gzip.compress(theirs.to_json()))
            body = upload_artifact(shelf.repository, CATALOG_TYPE, [payload], annotations={})
            shelf.put_manifest(body, MANIFEST_TYPE, "catalog")
            shelf.before = before

    shelf.before = before


def slow_writes(shelf: Shelf, count: int) -> None:
    """Let the next writes take longer than the window."""
    delays = iter([1.0] * count)

    def before(request: str) -> None:
        if request == "write":
            shelf.time += next(delays, 0.0)

    shelf.before = before


def events(shelf: Shelf) -> list[str]:
    shelf.before = lambda _: None
    return [event.id for event in read_catalog(shelf.repository).catalog.events]


def test_a_catalog_is_written_and_grows_and_each_writer_waits_as_long_as_a_write_may_take(
    shelf: Shelf,
) -> None:
    write(shelf, "one", "tiny")
    assert shelf.time == WINDOW_HERE.wait
    written = write(shelf, "two", "tiny")
    assert events(shelf) == ["one", "two"]
    assert written.digest == shelf.written["catalog"].digest


# The looks of one writer: before its write, and after the wait.
@pytest.mark.parametrize("moment", [("look", 1), ("look", 2)])
def test_the_second_writer_of_a_tag_fails(shelf: Shelf, moment: tuple[str, int]) -> None:
    rival(shelf, "tiny", moment)
    with raises("race-lost", match="won the race") as lost:
        write(shelf, "mine", "tiny")
    assert "127.0.0.1:5000/a/b:tiny" in lost.value.where


@pytest.mark.parametrize("moment", [("look", 1), ("look", 2)])
def test_the_second_writer_of_other_tags_succeeds(shelf: Shelf, moment: tuple[str, int]) -> None:
    rival(shelf, "other", moment)
    write(shelf, "mine", "tiny")
    assert sorted(events(shelf)) == ["mine", "rival-look"]


def test_a_write_that_took_too_long_does_not_count_and_is_not_tried_forever(shelf: Shelf) -> None:
    slow_writes(shelf, 1)
    write(shelf, "mine", "tiny")
    assert shelf.requests["put"] == 2
    assert events(shelf) == ["mine"]
    slow_writes(shelf, catalog_writes.ATTEMPTS)
    with raises("race-lost", match="could not be written"):
        write(shelf, "another", "tiny")


def test_another_artifact_under_the_tag_is_refused(shelf: Shelf) -> None:
    payload = Payload("application/x", b"1")
    body = upload_artifact(shelf.repository, "application/x", [payload], annotations={})
    shelf.put_manifest(body, MANIFEST_TYPE, "catalog")
    with raises("bad-catalog", match="does not hold a catalog"):
        read_catalog(shelf.repository)
