"""Concurrent writes of the catalog: a writer notices interference, and nobody's write is lost."""

import gzip

import pytest

from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import tag_writes
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.oci.registry.repository import WINDOW_HERE
from imagefactory.publish import stored_catalog as catalog_writes
from imagefactory.publish.catalog import Catalog, Event, Pointer, now
from imagefactory.publish.stored_catalog import CATALOG_TYPE, DOCUMENT_TYPE, read_catalog, write_catalog
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.memory_registry import MemoryRepository

DIGEST = Digest(f"sha256:{'a' * 64}")


class Shelf(MemoryRepository):
    """A registry that is also the clock: time passes when somebody sleeps, or when a test says so."""

    time = 0.0

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


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

    return write_catalog(shelf, change, tags=[tag], events=[identity])


def rival(shelf: Shelf, tag: str, at: int) -> None:
    """Let somebody else write before the nth look at the tag, without minding us."""
    looks = 0

    def before(request: str) -> None:
        nonlocal looks
        looks += request == "HEAD manifests"
        if (request, looks) == ("HEAD manifests", at):
            shelf.before = lambda _: None
            catalog = read_catalog(shelf).catalog
            theirs = catalog.with_event(event("rival", tag))
            payload = Payload(DOCUMENT_TYPE, gzip.compress(theirs.to_json()))
            body = upload_artifact(shelf, CATALOG_TYPE, [payload], annotations={})
            shelf.put_manifest(body, MANIFEST_TYPE, "catalog")
            shelf.before = before

    shelf.before = before


def slow_writes(shelf: Shelf, count: int) -> None:
    """Let the next writes take longer than the window."""
    delays = iter([1.0] * count)

    def before(request: str) -> None:
        if request == "PUT manifests":
            shelf.time += next(delays, 0.0)

    shelf.before = before


def events(shelf: Shelf) -> list[str]:
    shelf.before = lambda _: None
    return [event.id for event in read_catalog(shelf).catalog.events]


def test_a_catalog_is_written_and_grows_and_each_writer_waits_as_long_as_a_write_may_take(
    shelf: Shelf,
) -> None:
    write(shelf, "one", "tiny")
    assert shelf.time == WINDOW_HERE.wait
    written = write(shelf, "two", "tiny")
    assert events(shelf) == ["one", "two"]
    assert written.digest == shelf.resolve("catalog")


# The looks of one writer: before its write, and after the wait.
@pytest.mark.parametrize("moment", [1, 2])
def test_the_second_writer_of_a_tag_fails(shelf: Shelf, moment: int) -> None:
    rival(shelf, "tiny", moment)
    with raises("race-lost", match="won the race") as lost:
        write(shelf, "mine", "tiny")
    assert "127.0.0.1:5000/a/b:tiny" in lost.value.where


@pytest.mark.parametrize("moment", [1, 2])
def test_the_second_writer_of_other_tags_succeeds(shelf: Shelf, moment: int) -> None:
    rival(shelf, "other", moment)
    write(shelf, "mine", "tiny")
    assert sorted(events(shelf)) == ["mine", "rival"]


def test_a_write_that_took_too_long_does_not_count_and_is_not_tried_forever(shelf: Shelf) -> None:
    slow_writes(shelf, 1)
    write(shelf, "mine", "tiny")
    assert shelf.requests["PUT manifests"] == 2
    assert events(shelf) == ["mine"]
    slow_writes(shelf, catalog_writes.ATTEMPTS)
    with raises("race-lost", match="could not be written"):
        write(shelf, "another", "tiny")
