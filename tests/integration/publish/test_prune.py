"""Pruning a real registry: what is in use stays whole, what is not goes, and a dry run changes nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from imagefactory.errors.publishing import PromotionLostError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.inventory import survey
from imagefactory.publish.prune import Policy, plan_pruning, prune
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import SMOKE_TYPE
from imagefactory.store.digests import Digest
from tests.fixtures.publishing import START, PublishingHouse
from tests.fixtures.small_factory import CELL

LATER = START + timedelta(days=40)


def everything(house: PublishingHouse) -> set[Digest]:
    return set(survey(house.repository).manifests)


def three_published(house: PublishingHouse) -> list[Digest]:
    found = []
    for number in (1000, 1100, 1200):
        house.change(number)
        found += house.publish()
    return found


def test_what_was_published_stays_unless_less_is_asked_for(house: PublishingHouse) -> None:
    images = three_published(house)
    pruning = prune(house.repository, Policy(), delete=True, moment=LATER)
    assert {item.kind for item in pruning.doomed} == {"catalog"}
    assert set(images) <= everything(house)
    assert len(referrers.find(house.repository, images[0], SMOKE_TYPE)) == 1


def test_a_dry_run_changes_nothing(house: PublishingHouse) -> None:
    three_published(house)
    before = everything(house)
    assert prune(house.repository, Policy(keep=1), moment=LATER).doomed
    assert everything(house) == before


def test_fewer_are_kept_with_everything_that_hangs_on_them(house: PublishingHouse) -> None:
    first, second, third = three_published(house)
    pruning = prune(house.repository, Policy(keep=2), delete=True, moment=LATER)
    assert pruning.forgotten == (first,)
    gone = [item for item in pruning.doomed if item.kind != "catalog"]
    assert [item.kind for item in gone] == ["image", "list", "attached"]
    assert house.repository.manifest(first) is None
    assert house.repository.resolve(first.replace(":", "-")) is None
    for digest in (second, third):
        assert house.repository.manifest(digest) is not None
        assert len(referrers.find(house.repository, digest, SMOKE_TYPE)) == 1
    assert [image.digest for image in read_catalog(house.repository).catalog.images] == [second, third]
    assert house.tags()["tiny"] == third


def test_what_users_get_stays_however_old_it_is(house: PublishingHouse) -> None:
    first, _, third = three_published(house)
    rollback(house.project, house.repository, CELL, first)
    prune(house.repository, Policy(keep=1), delete=True, moment=LATER)
    assert house.tags()["tiny"] == first
    assert house.repository.manifest(first) is not None
    assert house.repository.manifest(third) is not None  # the newest


def test_somebody_elses_tag_keeps_its_image(house: PublishingHouse) -> None:
    first, _, _ = three_published(house)
    manifest = house.repository.require_manifest(first)
    house.repository.put_manifest(manifest.body, MANIFEST_TYPE, "stable")
    prune(house.repository, Policy(keep=1), delete=True, moment=LATER)
    assert house.repository.resolve("stable") == first
    assert len(referrers.find(house.repository, first, SMOKE_TYPE)) == 1


def test_what_failed_its_tests_goes_after_a_while(house: PublishingHouse) -> None:
    house.publish()
    house.change(5000)
    [staged] = house.push()
    assert prune(house.repository, Policy(), moment=LATER).undated == (f"staging-{staged.plan.key}",)
    house.vouch(staged, failing=["serve"])
    young = plan_pruning(survey(house.repository), Policy(), START + timedelta(days=13))
    assert staged.image.digest not in {item.digest for item in young.doomed}
    prune(house.repository, Policy(), delete=True, moment=LATER)
    assert house.repository.manifest(staged.image.digest) is None


def test_old_nightlies_go_when_asked_to(house: PublishingHouse) -> None:
    house.change(1000)
    [first] = house.publish(nightly=True)
    house.change(1100)
    [second] = house.publish(nightly=True)
    house.change(1200)
    house.publish()
    moment = START + timedelta(days=32)  # 31 and 30 days later
    prune(house.repository, Policy(nightly_days=30), delete=True, moment=moment)
    assert house.repository.manifest(first) is None
    assert house.repository.manifest(second) is not None
    assert "nightly-20261103-tiny" in house.tags()


def test_an_interrupted_pruning_is_finished_by_the_next(house: PublishingHouse) -> None:
    first, _, _ = three_published(house)
    house.repository.delete(first)
    pruning = prune(house.repository, Policy(), delete=True, moment=LATER)
    assert pruning.forgotten == (first,)
    assert {item.kind for item in pruning.doomed} == {"catalog", "list", "attached"}
    assert prune(house.repository, Policy(), moment=LATER).forgotten == ()


def test_publishing_meanwhile_stops_a_pruning(
    house: PublishingHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_published(house)
    before = everything(house)

    def survey_then_publish(*_: object) -> object:
        found = survey(house.repository)
        house.change(9000)
        house.publish()
        return found

    monkeypatch.setattr("imagefactory.publish.prune.survey", survey_then_publish)
    with pytest.raises(PromotionLostError, match="Somebody published"):
        prune(house.repository, Policy(keep=1), delete=True, moment=LATER)
    assert before <= everything(house)
