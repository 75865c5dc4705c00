"""Pruning a real registry: what is in use stays complete, the rest goes, and a dry run changes nothing."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.errors import FactoryError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.dossier import SMOKE_TYPE
from imagefactory.publish.github import GitHubPackages
from imagefactory.publish.prune import Policy, prune, take_inventory
from imagefactory.publish.stored_catalog import PREVIOUS
from imagefactory.store.digests import Digest
from tests.fixtures.failures import is_failure, raises
from tests.fixtures.publishing import START, PowerCutError, Publisher, read_record

LATER = START + timedelta(days=40)


def everything(publisher: Publisher, *, catalogs: bool = True) -> set[Digest]:
    """List all manifests that tags lead to, and the older catalogs."""
    repository = publisher.repository
    found: set[Digest] = set()
    waiting: list[str] = list(repository.tags())
    while waiting:
        manifest = repository.manifest(waiting.pop())
        if manifest is not None and manifest.digest not in found:
            found.add(manifest.digest)
            document = manifest.document()
            waiting += [item["digest"] for item in document.get("manifests", ())]
            waiting += [item.digest for item in referrers.find(repository, manifest.digest)]
            waiting += filter(None, [document.get("annotations", {}).get(PREVIOUS)] if catalogs else [])
    return found if catalogs else found - {repository.resolve("catalog")}


def test_only_keep_deletes_published_images_and_a_dry_run_deletes_nothing(publisher: Publisher) -> None:
    first, second, third = publisher.publish_changed(1000, 1100, 1200)
    before = everything(publisher)
    assert prune(publisher.repository, Policy(keep=1), moment=LATER).deletions
    assert everything(publisher) == before
    pruning = prune(publisher.repository, Policy(), delete=True, moment=LATER)
    assert {item.kind for item in pruning.deletions} == {"catalog"}
    assert {first, second, third} <= everything(publisher)
    assert len(referrers.find(publisher.repository, first, SMOKE_TYPE)) == 1
    pruning = prune(publisher.repository, Policy(keep=2), delete=True, moment=LATER)
    assert pruning.forgotten == (first,)
    gone = [item.kind for item in pruning.deletions if item.kind != "catalog"]
    assert gone == ["image", "list", *["attached"] * 5]  # SBOM, smoke record, statements
    assert publisher.repository.manifest(first) is None
    assert publisher.repository.resolve(first.replace(":", "-")) is None
    for digest in (second, third):
        assert publisher.repository.manifest(digest) is not None
        assert len(referrers.find(publisher.repository, digest, SMOKE_TYPE)) == 1
    assert [image.digest for image in publisher.catalog.images] == [second, third]
    assert publisher.tags()["tiny"] == third


def test_an_image_in_use_or_with_a_foreign_tag_stays_however_old_it_is(publisher: Publisher) -> None:
    first, second, third = publisher.publish_changed(1000, 1100, 1200)
    publisher.rollback(first)
    manifest = publisher.repository.require_manifest(second)
    publisher.repository.put_manifest(manifest.body, MANIFEST_TYPE, "stable")
    prune(publisher.repository, Policy(keep=1), delete=True, moment=LATER)
    assert publisher.tags()["tiny"] == first
    assert publisher.repository.resolve("stable") == second
    assert len(referrers.find(publisher.repository, second, SMOKE_TYPE)) == 1
    assert all(publisher.repository.manifest(one) for one in (first, third))  # in use, and the newest


def test_an_image_that_failed_its_tests_goes_after_two_weeks(publisher: Publisher) -> None:
    publisher.publish()
    publisher.change(5000)
    [staged] = publisher.push()
    assert prune(publisher.repository, Policy(), moment=LATER).undated == (f"staging-{staged.plan.key}",)
    publisher.vouch(staged, failing=["serve"])
    young = prune(publisher.repository, Policy(), moment=START + timedelta(days=13))
    assert staged.digest not in {item.digest for item in young.deletions}
    prune(publisher.repository, Policy(), delete=True, moment=LATER)
    assert publisher.repository.manifest(staged.digest) is None


def test_old_nightlies_go_on_request(publisher: Publisher) -> None:
    first, second = publisher.publish_changed(1000, 1100, nightly=True)
    publisher.publish_changed(1200)
    moment = START + timedelta(days=32)  # 31 and 30 days later
    prune(publisher.repository, Policy(nightly_days=30), delete=True, moment=moment)
    assert publisher.repository.manifest(first) is None
    assert publisher.repository.manifest(second) is not None
    assert "nightly-20261103-tiny" in publisher.tags()


def test_pruning_stops_when_somebody_publishes_meanwhile(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.publish_changed(1000, 1100, 1200)
    before = everything(publisher, catalogs=False)

    def look_then_publish(*how: Any) -> object:
        found = take_inventory(*how)
        publisher.publish_changed(9000)
        return found

    monkeypatch.setattr("imagefactory.publish.prune.take_inventory", look_then_publish)
    with raises("race-lost", match="Somebody published"):
        prune(publisher.repository, Policy(keep=1), delete=True, moment=LATER)
    assert before <= everything(publisher)


def test_a_deleted_smoke_record_is_no_record_and_its_list_takes_new_ones(publisher: Publisher) -> None:
    [image] = publisher.publish()
    repository = publisher.repository
    [deleted] = referrers.find(repository, image, SMOKE_TYPE)
    repository.delete(deleted.digest)
    assert read_record(repository, image, publisher.key()) is None
    publisher.publish(again=True)
    assert deleted in referrers.find(repository, image, SMOKE_TYPE)
    repository.delete(deleted.digest)
    note = [Payload("text/plain", b"a note")]
    added = referrers.attach(repository, repository.require_manifest(image).descriptor(), "text/plain", note)
    found = {item.digest for item in referrers.find(repository, image)}
    assert added.digest in found
    assert deleted.digest not in found


def test_an_attachment_that_was_lost_from_its_list_stays_and_is_listed_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    [image] = publisher.publish()
    repository = publisher.repository
    [lost] = referrers.find(repository, image, SMOKE_TYPE)
    repository.put_manifest(index_document([]), INDEX_TYPE, referrers.fallback_tag(image))
    assert referrers.find(repository, image) == []
    # GitHub lists what has no tag, too.
    github = SimpleNamespace(untagged={lost.digest: START}, delete=repository.delete)
    monkeypatch.setattr(GitHubPackages, "of", lambda _: github)
    pruning = prune(repository, Policy(), delete=True, moment=LATER)
    assert lost.digest not in {item.digest for item in pruning.deletions}
    assert repository.manifest(lost.digest) is not None
    assert referrers.find(repository, image, SMOKE_TYPE) == [lost]


def test_nobody_promotes_what_a_prune_is_deleting(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher.publish()
    staged = publisher.push_tested(5000)
    refused: list[FactoryError] = []
    delete = Repository.delete

    def promote_then_delete(repository: Repository, digest: Digest) -> bool:
        if not refused:
            refused.append(publisher.refusal())
        return delete(repository, digest)

    monkeypatch.setattr(Repository, "delete", promote_then_delete)
    prune(publisher.repository, Policy(), delete=True, moment=LATER)
    assert is_failure(refused[0], "being-pruned")
    assert publisher.repository.manifest(staged.digest) is None
    assert publisher.catalog.deleting == ()
    # What was deleted can be published anew.
    assert publisher.publish() == [staged.digest]


def test_an_interrupted_prune_is_finished_by_the_next_one(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = publisher.publish_changed(1000, 1100)

    def fail(*_: object) -> bool:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "delete", fail)
        with pytest.raises(PowerCutError):
            prune(publisher.repository, Policy(keep=1), delete=True, moment=LATER)
    with raises("being-pruned"):
        publisher.rollback()
    prune(publisher.repository, Policy(keep=1), delete=True, moment=LATER)
    assert publisher.repository.manifest(first) is None
    assert publisher.catalog.deleting == ()
    assert publisher.tags()["tiny"] == second
