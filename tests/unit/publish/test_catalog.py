"""The catalog: what users of tags get, what they can go back to, and what history tells."""

from dataclasses import replace
from datetime import timedelta

import pytest

from imagefactory.project.cells import Cell
from imagefactory.publish.catalog import Catalog, ImagePart, Pointer, pointed_at
from imagefactory.publish.history import changes, current_images, history, misplaced_tags
from imagefactory.publish.rollback import choose
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.small_catalogs import CELL, OLDER, START, TAGS, digest, event, image, promoted, rolled_back


@pytest.fixture
def three() -> Catalog:
    catalog = Catalog()
    for day, name in enumerate("abc"):
        catalog = promoted(catalog, image(name), day)
    return catalog


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        *(("", "b"), ("2026-11-01", "a"), ("2026-11-02", "b"), ("2026-12-24", "c")),
        *((digest("b"), "b"), (digest("b")[7:], "b")),
    ],
)
def test_rollback_goes_to_the_image_before_or_to_a_day_or_a_digest(three: Catalog, to: str, expected: str) -> None:
    assert choose(three, TAGS, CELL, to).digest == digest(expected)


def test_a_second_rollback_goes_further_back_until_the_first_image(three: Catalog) -> None:
    back = rolled_back(three, image("b"), 5, digest("c"))
    assert choose(back, TAGS, CELL).digest == digest("a")
    with raises("never-published", match="was the first"):
        choose(rolled_back(back, image("a"), 6, digest("b")), TAGS, CELL)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("2026-10-31", "first image is of"),
        ("2026-02-31", "neither a digest"),
        ("ffffff", "no image begins"),
        ("616161", "several images begin"),
        ("last week", "neither a digest"),
    ],
)
def test_rollback_refuses_what_names_no_image_or_several(three: Catalog, to: str, says: str) -> None:
    catalog = promoted(promoted(three, image("aaaaaaa1"), 3), image("aaaaaaa2"), 4)
    with raises("never-published", match=says):
        choose(catalog, TAGS, CELL, to)


def test_rollback_to_another_version_moves_only_the_tags_that_it_had() -> None:
    old = image("old", OLDER)
    catalog = promoted(Catalog(), old, 0, ("gemma-v0.28.0", "gemma", "latest"))
    catalog = promoted(catalog, image("new"), 1)
    assert choose(catalog, TAGS, CELL) == old
    assert catalog.tags_of(old.digest) & set(TAGS) == {"gemma", "latest"}


def test_each_platform_has_its_own_history_and_an_image_counts_by_its_last_time(three: Catalog) -> None:
    with raises("never-published", match="never published"):
        choose(three, TAGS, Cell("gemma", "0.32.0", "gb10", "linux/amd64"))
    assert choose(promoted(three, image("a"), 4), TAGS, CELL).digest == digest("c")


def test_history_lists_events_changes_and_current_tags(three: Catalog) -> None:
    lines = history(rolled_back(three, image("b"), 5, digest("c")), TAGS, CELL.platform)
    assert [(line.kind, line.image.digest) for line in lines] == [
        ("promote", digest("a")),
        ("promote", digest("b")),
        ("promote", digest("c")),
        ("rollback", digest("b")),
    ]
    assert [line.now for line in lines] == [(), TAGS, (), TAGS]
    assert lines[0].changed == ("first",)


def test_changes_are_described_in_the_users_terms() -> None:
    before = image("a", OLDER, mods=("one", "two"))
    after = image(
        "b",
        mods=("two", "three"),
        made_of=(ImagePart("wheel torch", "9", "2.13.0"), ImagePart("wheel new", "1", "1"),
                 ImagePart("base bookworm", "7"), ImagePart("mod three", "3")),
    )  # fmt: skip
    assert changes(before, after) == (
        "vLLM 0.28.0 → 0.32.0",
        "mod three added",
        "mod one gone",
        "base bookworm changed",
        "new added",
        "torch 2.12.0 → 2.13.0",
    )
    assert changes(image("a"), image("b")) == ("configuration",)
    assert changes(image("a"), image("a")) == ("the same image",)


def test_a_tag_that_points_elsewhere_is_astray(three: Catalog) -> None:
    found: dict[str, Digest | None] = {TAGS[0]: digest("c"), TAGS[1]: digest("a"), TAGS[2]: None}
    assert misplaced_tags(found, three, TAGS) == ["gemma", "latest"]


def test_other_platforms_keep_their_images() -> None:
    amd, arm = "linux/amd64", "linux/arm64"
    old, other = image("old", CELL), image("other", Cell("gemma", "0.32.0", "gb10", amd))
    new = image("new", CELL)
    known = {item.digest: item for item in (old, other, new)}
    current = Pointer(digest=digest("index"), images={arm: old.digest, amd: other.digest})
    assert pointed_at(new, current, known, [arm, amd]) == {amd: other.digest, arm: new.digest}
    # One that was forgotten, or whose platform is gone, is not carried on.
    assert pointed_at(new, current, {new.digest: new}, [arm, amd]) == {arm: new.digest}
    assert pointed_at(new, current, known, [arm]) == {arm: new.digest}


def test_events_stay_in_order_when_clocks_disagree(three: Catalog) -> None:
    later = promoted(three, image("d"), -30)
    assert [event.time for event in later.events] == sorted(event.time for event in later.events)
    assert later.current(TAGS, CELL.platform) == image("d")


@pytest.mark.parametrize("text", [b"", b"[]", b'{"format": 2}', b'{"format": 3, "images": [{}]}', b"\xff"])
def test_a_malformed_catalog_is_refused(text: bytes) -> None:
    with raises("bad-catalog", match="cannot be read"):
        Catalog.from_json(text, "here")


def held(catalog: Catalog) -> set[str]:
    return {name for name in "abcd" if digest(name) in catalog.holds(TAGS)}


def test_a_rollback_holds_the_image_that_it_left_until_that_image_is_promoted_again(three: Catalog) -> None:
    back = rolled_back(three, image("b"), 5, digest("c"))
    assert held(back) == {"c"}
    assert [line.held for line in history(back, TAGS, CELL.platform)] == [False, False, True, False]
    later = promoted(back, image("d"), 6)
    assert held(later) == {"c"}
    assert held(later.without([digest("b"), digest("c")])) == {"c"}, "forgetting images lifts no hold"
    assert held(promoted(back, image("c"), 6)) == set()
    again = promoted(back, image("c"), 6, ("gemma",))
    assert digest("c") not in again.holds(["gemma"])
    assert digest("c") in again.holds(TAGS), "only the tags that name the image again are free"


def test_the_reason_of_a_rollback_stays_and_a_catalog_without_any_is_what_older_factories_read(three: Catalog) -> None:
    assert b'"why"' not in rolled_back(three, image("b"), 5, digest("c")).to_json()
    reason = three.with_event(event("rollback", image("b"), 5, TAGS, left=digest("c"), why="tool calls fail"))
    kept = Catalog.from_json(reason.to_json(), "here")
    assert [line.why for line in history(kept, TAGS, CELL.platform)][-2:] == ["", "tool calls fail"]
    assert kept.holds(TAGS)[digest("c")].why == "tool calls fail"


def test_a_second_rollback_holds_both_images(three: Catalog) -> None:
    back = rolled_back(rolled_back(three, image("b"), 5, digest("c")), image("a"), 6, digest("b"))
    assert held(back) == {"b", "c"}
    assert held(rolled_back(back, image("b"), 7, digest("a"))) == {"a", "c"}


def test_a_promotion_for_another_platform_lifts_no_hold_and_a_rollback_skips_what_is_held(three: Catalog) -> None:
    back = rolled_back(three, image("b"), 5, digest("c"))
    other = image("d", platform="linux/amd64")
    both = {"linux/arm64": digest("b"), "linux/amd64": other.digest}
    moved = {tag: Pointer(digest=digest("x"), images=both) for tag in TAGS}
    assert held(back.with_event(replace(event("promote", other, 6, TAGS), moved=moved), other)) == {"c"}
    later = promoted(back, image("d"), 6)
    assert choose(later, TAGS, CELL).digest == digest("b")
    assert choose(later, TAGS, CELL, "2026-11-04").digest == digest("b")
    assert choose(later, TAGS, CELL, digest("c")).digest == digest("c")


def test_current_images_are_listed_with_the_day_they_came(three: Catalog) -> None:
    again = promoted(three, image("c"), 9)
    found = current_images(rolled_back(again, image("b"), 12, digest("c")))
    expected = [(tag, digest("b")) for tag in sorted(TAGS)]
    assert [(offer.tag, offer.image.digest) for offer in found] == expected
    assert {offer.since for offer in found} == {START + timedelta(days=12)}
    # The same image once more is no news.
    assert {offer.since for offer in current_images(again)} == {START + timedelta(days=2)}
