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
from tests.fixtures.publishing import START, PublishingFactory
from tests.fixtures.small_factory import CELL

LATER = START + timedelta(days=40)


def everything(publishing_factory: PublishingFactory) -> set[Digest]:
    return set(survey(publishing_factory.repository).manifests)


def three_published(publishing_factory: PublishingFactory) -> list[Digest]:
    found = []
    for number in (1000, 1100, 1200):
        publishing_factory.change(number)
        found += publishing_factory.publish()
    return found


def test_what_was_published_stays_unless_less_is_asked_for(publishing_factory: PublishingFactory) -> None:
    images = three_published(publishing_factory)
    pruning = prune(publishing_factory.repository, Policy(), delete=True, moment=LATER)
    assert {item.kind for item in pruning.doomed} == {"catalog"}
    assert set(images) <= everything(publishing_factory)
    assert len(referrers.find(publishing_factory.repository, images[0], SMOKE_TYPE)) == 1


def test_a_dry_run_changes_nothing(publishing_factory: PublishingFactory) -> None:
    three_published(publishing_factory)
    before = everything(publishing_factory)
    assert prune(publishing_factory.repository, Policy(keep=1), moment=LATER).doomed
    assert everything(publishing_factory) == before


def test_fewer_are_kept_with_everything_that_hangs_on_them(publishing_factory: PublishingFactory) -> None:
    first, second, third = three_published(publishing_factory)
    pruning = prune(publishing_factory.repository, Policy(keep=2), delete=True, moment=LATER)
    assert pruning.forgotten == (first,)
    gone = [item for item in pruning.doomed if item.kind != "catalog"]
    assert [item.kind for item in gone] == ["image", "list", "attached"]
    assert publishing_factory.repository.manifest(first) is None
    assert publishing_factory.repository.resolve(first.replace(":", "-")) is None
    for digest in (second, third):
        assert publishing_factory.repository.manifest(digest) is not None
        assert len(referrers.find(publishing_factory.repository, digest, SMOKE_TYPE)) == 1
    assert [image.digest for image in read_catalog(publishing_factory.repository).catalog.images] == [
        second,
        third,
    ]
    assert publishing_factory.tags()["tiny"] == third


def test_what_users_get_stays_however_old_it_is(publishing_factory: PublishingFactory) -> None:
    first, _, third = three_published(publishing_factory)
    rollback(publishing_factory.project, publishing_factory.repository, CELL, first)
    prune(publishing_factory.repository, Policy(keep=1), delete=True, moment=LATER)
    assert publishing_factory.tags()["tiny"] == first
    assert publishing_factory.repository.manifest(first) is not None
    assert publishing_factory.repository.manifest(third) is not None  # the newest


def test_somebody_elses_tag_keeps_its_image(publishing_factory: PublishingFactory) -> None:
    first, _, _ = three_published(publishing_factory)
    manifest = publishing_factory.repository.require_manifest(first)
    publishing_factory.repository.put_manifest(manifest.body, MANIFEST_TYPE, "stable")
    prune(publishing_factory.repository, Policy(keep=1), delete=True, moment=LATER)
    assert publishing_factory.repository.resolve("stable") == first
    assert len(referrers.find(publishing_factory.repository, first, SMOKE_TYPE)) == 1


def test_what_failed_its_tests_goes_after_a_while(publishing_factory: PublishingFactory) -> None:
    publishing_factory.publish()
    publishing_factory.change(5000)
    [staged] = publishing_factory.push()
    assert prune(publishing_factory.repository, Policy(), moment=LATER).undated == (
        f"staging-{staged.plan.key}",
    )
    publishing_factory.vouch(staged, failing=["serve"])
    young = plan_pruning(survey(publishing_factory.repository), Policy(), START + timedelta(days=13))
    assert staged.image.digest not in {item.digest for item in young.doomed}
    prune(publishing_factory.repository, Policy(), delete=True, moment=LATER)
    assert publishing_factory.repository.manifest(staged.image.digest) is None


def test_old_nightlies_go_when_asked_to(publishing_factory: PublishingFactory) -> None:
    publishing_factory.change(1000)
    [first] = publishing_factory.publish(nightly=True)
    publishing_factory.change(1100)
    [second] = publishing_factory.publish(nightly=True)
    publishing_factory.change(1200)
    publishing_factory.publish()
    moment = START + timedelta(days=32)  # 31 and 30 days later
    prune(publishing_factory.repository, Policy(nightly_days=30), delete=True, moment=moment)
    assert publishing_factory.repository.manifest(first) is None
    assert publishing_factory.repository.manifest(second) is not None
    assert "nightly-20261103-tiny" in publishing_factory.tags()


def test_an_interrupted_pruning_is_finished_by_the_next(publishing_factory: PublishingFactory) -> None:
    first, _, _ = three_published(publishing_factory)
    publishing_factory.repository.delete(first)
    pruning = prune(publishing_factory.repository, Policy(), delete=True, moment=LATER)
    assert pruning.forgotten == (first,)
    assert {item.kind for item in pruning.doomed} == {"catalog", "list", "attached"}
    assert prune(publishing_factory.repository, Policy(), moment=LATER).forgotten == ()


def test_publishing_meanwhile_stops_a_pruning(
    publishing_factory: PublishingFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_published(publishing_factory)
    before = everything(publishing_factory)

    def survey_then_publish(*_: object) -> object:
        found = survey(publishing_factory.repository)
        publishing_factory.change(9000)
        publishing_factory.publish()
        return found

    monkeypatch.setattr("imagefactory.publish.prune.survey", survey_then_publish)
    with pytest.raises(PromotionLostError, match="Somebody published"):
        prune(publishing_factory.repository, Policy(keep=1), delete=True, moment=LATER)
    assert before <= everything(publishing_factory)
