"""A large catalog: read and written page by page, in linear time, and pruned without a request per image."""

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

from imagefactory.ci.run_summary import history_page
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.publish import stored_catalog as catalogs
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.history import current_images, history
from imagefactory.publish.prune import Policy, outdated, prune
from imagefactory.publish.stored_catalog import CATALOG_TYPE, PAGE_TYPE, read_catalog, write_catalog
from imagefactory.store.digests import Digest
from tests.fixtures.big_catalog import PLATFORM, START, StandIn, big_catalog, cells
from tests.fixtures.failures import raises

LATER = START + timedelta(days=3650)
CELLS = cells(5)
TAGS = ("model0-v0.32.0", "model0")


def steps(work: Callable[[], object]) -> int:
    """Count the lines and calls of Python that something takes: the same on every machine."""
    count = 0

    def trace(_frame: FrameType, _what: str, _argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


WORK: dict[str, Callable[[Catalog], object]] = {
    "history": lambda catalog: history(catalog, TAGS, PLATFORM),
    "catalog": current_images,
    "the history page": lambda catalog: history_page(catalog, "registry"),
    "what is outdated": lambda catalog: outdated(catalog, Policy(keep=5), LATER),
    "pages": lambda catalog: list(catalog.pages()),
    "a dry prune": lambda catalog: prune(StandIn(catalog).repository, Policy(), moment=LATER),
    "an event more": lambda catalog: catalog.with_event(replace(catalog.events[-1], id="more")),
}


@pytest.mark.parametrize("name", WORK)
def test_four_times_the_images_take_four_times_as_long(name: str) -> None:
    few, many = (big_catalog(count, CELLS) for count in (100, 400))
    assert steps(lambda: WORK[name](many)) < 6 * steps(lambda: WORK[name](few))


def test_pruning_asks_for_what_goes_and_not_for_what_stays() -> None:
    def requests(count: int, policy: Policy) -> int:
        registry = StandIn(big_catalog(count, CELLS))
        prune(registry.repository, policy, moment=LATER)
        found = registry.requests
        return found.total() - found["tags"] - found["blob"]

    assert requests(2000, Policy()) == requests(200, Policy()) < 30
    # For each image that goes: itself, its list, and its smoke record.
    assert requests(400, Policy(keep=20)) - requests(200, Policy(keep=20)) <= 5 * 200


def test_pruning_deletes_images_with_their_attachments_and_nothing_if_that_is_too_much() -> None:
    registry = StandIn(big_catalog(100, CELLS))
    with raises("too-many-deletions"):
        prune(registry.repository, Policy(keep=4, most=239), delete=True, moment=LATER)
    assert not registry.deleted
    pruning = prune(registry.repository, Policy(keep=4, most=240), delete=True, moment=LATER)
    assert sorted({item.kind for item in pruning.deletions}) == ["attached", "image", "list"]
    assert len(pruning.deletions) == len(registry.deleted) == 3 * 80
    assert len(read_catalog(registry.repository).catalog.images) == 20


def test_who_may_not_delete_leaves_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = StandIn(big_catalog(100, CELLS))
    for _ in range(2):  # there are older catalogs
        write_catalog(registry.repository, lambda catalog: replace(catalog, pruned=catalog.pruned + 1))

    def denied(_: Digest) -> None:
        raise PermissionError

    monkeypatch.setattr(registry, "delete", denied)
    with pytest.raises(PermissionError):
        prune(registry.repository, Policy(keep=4), delete=True, moment=LATER)
    assert read_catalog(registry.repository).catalog.deleting == ()


def test_a_catalog_comes_back_as_it_was_written_in_little_more_than_a_kilobyte_for_an_image() -> None:
    marked = {"deleting": (Digest(f"sha256:{'1' * 64}"),), "pruned": 3, "swept": START}
    catalog = replace(big_catalog(3000, CELLS), **marked)  # type: ignore[arg-type]
    read = read_catalog(StandIn(catalog).repository)
    assert len(read.pages) > 3
    assert read.catalog == catalog
    assert read.catalog.current(TAGS, PLATFORM) == catalog.current(TAGS, PLATFORM)
    assert sum(page.size for page in read.pages) < 3000 * 1400
    assert sum(page.descriptor.size for page in read.pages) < 3000 * 300


def test_a_change_rewrites_only_the_pages_that_it_touches() -> None:
    catalog = big_catalog(3000, CELLS)
    registry = StandIn(catalog)
    before = {page.descriptor.digest for page in read_catalog(registry.repository).pages}
    more = big_catalog(3001, CELLS)
    written = write_catalog(registry.repository, lambda catalog: catalog.with_event(more.events[-1], more.images[-1]))
    assert len({page.descriptor.digest for page in written.pages} - before) == 1
    forgotten = catalog.images[1000].digest
    shorter = write_catalog(registry.repository, lambda catalog: catalog.without([forgotten]))
    known = {page.descriptor.digest for page in written.pages}
    assert len({page.descriptor.digest for page in shorter.pages} - known) == 1
    assert read_catalog(registry.repository).catalog == shorter.catalog


@pytest.mark.parametrize("limit", [("LARGEST", 200_000), ("LARGEST_PAGE", 100_000), ("MOST_PAGES", 2)])
def test_what_nobody_could_read_is_not_written(limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    registry = StandIn(Catalog())
    before = registry.written["catalog"]
    monkeypatch.setattr(catalogs, *limit)
    with raises("catalog-full", match="is full"):
        write_catalog(registry.repository, lambda _: big_catalog(2000, CELLS))
    assert registry.written["catalog"] == before
    assert len(registry.blobs) == 2  # the first page, and the empty configuration


def test_a_full_catalog_can_be_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = StandIn(big_catalog(500, CELLS))
    size = sum(page.size for page in read_catalog(registry.repository).pages)
    monkeypatch.setattr(catalogs, "LARGEST", 2 * size)
    one = replace(registry.catalog.events[-1], id="one more")
    with raises("catalog-full"):
        write_catalog(registry.repository, lambda catalog: catalog.with_event(one))
    prune(registry.repository, Policy(keep=10), delete=True, moment=LATER)
    assert len(read_catalog(registry.repository).catalog.images) == 50


def test_a_page_that_inflates_without_end_is_refused() -> None:
    registry = StandIn(Catalog())
    bomb = gzip.compress(b" " * (catalogs.LARGEST_PAGE + 1))
    body = upload_artifact(registry.repository, CATALOG_TYPE, [Payload(PAGE_TYPE, bomb)], annotations={})
    registry.put_manifest(body, MANIFEST_TYPE, "catalog")
    with raises("bad-catalog", match="cannot be read"):
        read_catalog(registry.repository)


def test_a_catalog_of_format_1_is_read_and_converted() -> None:
    catalog = big_catalog(20, CELLS)
    document = json.loads(catalog.to_json())
    for image, published in zip(document["images"], catalog.images, strict=True):
        image["made_of"] = {part.name: {"key": part.key, "version": part.version} for part in published.made_of}
    old = {name: document[name] for name in ("images", "events", "deleting", "pruned")} | {"format": 1}
    registry = StandIn(Catalog())
    payload = Payload(CATALOG_TYPE, json.dumps(old, indent=1).encode())
    body = upload_artifact(registry.repository, CATALOG_TYPE, [payload], annotations={})
    registry.put_manifest(body, MANIFEST_TYPE, "catalog")
    assert read_catalog(registry.repository).catalog == catalog
    written = write_catalog(registry.repository, lambda catalog: catalog.with_deleting([]))
    assert {page.descriptor.media_type for page in written.pages} == {PAGE_TYPE}
    assert read_catalog(registry.repository).catalog == catalog


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x9b31m", "\ufffe", "a\nb", "x" * 501, "\u202e"])
@pytest.mark.parametrize("place", ["tag", "model", "made_of", "mods", "event"])
def test_texts_that_are_more_than_text_are_refused(text: str, place: str) -> None:
    document = json.loads(big_catalog(1, CELLS).to_json())
    [image], [event] = document["images"], document["events"]
    if place == "made_of":
        document["parts"][0]["name"] = text
    elif place == "event":
        event["named"] = [text]
    else:
        image[place] = [text] if place == "mods" else text
    with raises("bad-catalog") as refused:
        Catalog.from_json(json.dumps(document).encode(), "here")
    assert text not in refused.value.why


@pytest.mark.parametrize("made_of", [[99], ["x"], 3, {"a": 1}, None])
def test_parts_that_nobody_lists_are_refused(made_of: object) -> None:
    document = json.loads(big_catalog(1, CELLS).to_json())
    document["images"][0]["made_of"] = made_of
    with raises("bad-catalog"):
        Catalog.from_json(json.dumps(document).encode(), "here")
