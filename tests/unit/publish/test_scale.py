"""A large catalog: read and written whole, in linear time, and pruned without a request per image."""

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
from imagefactory.publish.stored_catalog import CATALOG_TYPE, DOCUMENT_TYPE, LARGEST, read_catalog, write_catalog
from imagefactory.store.digests import Digest
from tests.fixtures.big_catalog import PLATFORM, START, big_catalog, cells, registry_of
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
    "a dry prune": lambda catalog: prune(registry_of(catalog), Policy(), moment=LATER),
    "an event more": lambda catalog: catalog.with_event(replace(catalog.events[-1], id="more")),
}


@pytest.mark.parametrize("name", WORK)
def test_four_times_the_images_take_four_times_as_long(name: str) -> None:
    few, many = (big_catalog(count, CELLS) for count in (100, 400))
    assert steps(lambda: WORK[name](many)) < 6 * steps(lambda: WORK[name](few))


def test_pruning_asks_for_what_goes_and_not_for_what_stays() -> None:
    def requests(count: int, policy: Policy) -> int:
        registry = registry_of(big_catalog(count, CELLS))
        prune(registry, policy, moment=LATER)
        return registry.requests.total()

    assert requests(2000, Policy()) == requests(200, Policy()) < 30
    # For each image that goes: itself, its list, and its smoke record.
    assert requests(400, Policy(keep=20)) - requests(200, Policy(keep=20)) <= 5 * 200


def test_pruning_deletes_images_with_their_attachments_and_nothing_if_that_is_too_much() -> None:
    registry = registry_of(big_catalog(100, CELLS))
    with raises("too-many-deletions"):
        prune(registry, Policy(keep=4, most=239), delete=True, moment=LATER)
    before = {*registry.content.manifests}
    pruning = prune(registry, Policy(keep=4, most=240), delete=True, moment=LATER)
    assert sorted({item.kind for item in pruning.deletions}) == ["attached", "image", "list"]
    gone = {item.digest for item in pruning.deletions}
    assert len(gone) == 3 * 80
    assert gone == before - registry.content.manifests.keys()
    assert len(read_catalog(registry).catalog.images) == 20


def test_who_may_not_delete_leaves_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_of(big_catalog(100, CELLS))
    for _ in range(2):  # there are older catalogs
        write_catalog(registry, lambda catalog: replace(catalog, pruned=catalog.pruned + 1))

    def denied(_: Digest) -> None:
        raise PermissionError

    monkeypatch.setattr(registry, "delete", denied)
    with pytest.raises(PermissionError):
        prune(registry, Policy(keep=4), delete=True, moment=LATER)
    assert read_catalog(registry).catalog.deleting == ()


def test_five_thousand_images_come_back_as_they_were_written_and_fit() -> None:
    marked = {"deleting": (Digest(f"sha256:{'1' * 64}"),), "pruned": 3, "swept": START}
    catalog = replace(big_catalog(5000, CELLS), **marked)  # type: ignore[arg-type]
    registry = registry_of(catalog)
    read = read_catalog(registry)
    assert (registry.requests["GET manifests"], registry.requests["GET blobs"]) == (1, 1)
    assert read.catalog == catalog
    assert read.catalog.current(TAGS, PLATFORM) == catalog.current(TAGS, PLATFORM)
    assert len(catalog.to_json()) < LARGEST / 4
    assert max(map(len, registry.content.blobs.values())) < 5000 * 300


def test_a_full_catalog_takes_no_more_images_but_can_be_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    full = big_catalog(500, CELLS)
    registry = registry_of(full)
    before = registry.resolve("catalog")
    monkeypatch.setattr(catalogs, "LARGEST", 2 * len(full.to_json()))
    again = replace(full.events[-1], id="one more")
    with raises("catalog-full", match="is full"):
        write_catalog(registry, lambda catalog: catalog.with_event(again))
    assert registry.resolve("catalog") == before
    prune(registry, Policy(keep=10), delete=True, moment=LATER)
    assert len(read_catalog(registry).catalog.images) == 50


def test_a_catalog_that_inflates_without_end_or_is_in_pages_is_refused() -> None:
    registry = registry_of(Catalog())
    bomb = Payload(DOCUMENT_TYPE, gzip.compress(b" " * (LARGEST + 1)))
    old = Payload("application/vnd.imagefactory.catalog.v2+json+gzip", b"")
    for payloads, says in (([bomb], "cannot be read"), ([old, old], "that this factory reads")):
        body = upload_artifact(registry, CATALOG_TYPE, payloads, annotations={})
        registry.put_manifest(body, MANIFEST_TYPE, "catalog")
        with raises("bad-catalog", match=says):
            read_catalog(registry)


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
