"""Publishing to a real registry: what gets tags, in which order, and what a crash leaves behind."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Any

import pytest

from imagefactory.build.assemble import assemble
from imagefactory.errors import FactoryError
from imagefactory.errors.publishing import (
    NotPromotableError,
    NotStagedError,
    PromotionLostError,
    TagTakenError,
)
from imagefactory.matrix.cells import Cell
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.image_push import push_image
from imagefactory.oci.registry.reference import is_digest
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.publish import gate
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.promote import promote
from imagefactory.publish.push import refuse_unlocked
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import attach_record
from imagefactory.publish.tags import fixed_tag, staging_tag
from imagefactory.store.digests import Digest
from tests.fixtures.fault_proxy import Fault, FaultProxy, Kind, Request
from tests.fixtures.publishing import PublishingHouse, smoke_record
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_factory import CELL, SECOND, Silence


class PowerCutError(Exception):
    """The machine went away."""


class Interrupted(Repository):
    """A repository that stops working before the write with a number."""

    writes_left = 0

    def _count(self) -> None:
        if self.writes_left == 0:
            raise PowerCutError
        self.writes_left -= 1

    def write_manifest(self, *arguments: Any, **options: Any) -> Any:
        self._count()
        return super().write_manifest(*arguments, **options)

    def upload(self, *arguments: Any, **options: Any) -> Any:
        self._count()
        return super().upload(*arguments, **options)


def interrupted(house: PublishingHouse, writes: int) -> Interrupted:
    repository = Interrupted(house.repository.connection)
    repository.writes_left = writes
    return repository


def test_nothing_to_tags(house: PublishingHouse) -> None:
    [staged] = house.push()
    assert house.repository.tags() == [staging_tag(staged.plan.key)]
    house.vouch(staged)
    outcome = house.promote()
    digest = staged.image.digest
    assert outcome.refused == []
    assert house.tags() == {
        "tiny-v1.0": digest,
        "tiny": digest,
        "latest": digest,
        fixed_tag(CELL, staged.plan.key): digest,
    }
    [image] = read_catalog(house.repository).catalog.images
    assert (image.digest, image.plan_key, image.tag) == (
        digest,
        staged.plan.key,
        fixed_tag(CELL, staged.plan.key),
    )


def test_a_second_push_only_asks(house: PublishingHouse) -> None:
    house.push()
    [staged] = house.push()
    assert staged.pushed.count("present") == len(staged.plan.layers) + 1
    assert staged.pushed.uploaded == 0


def test_what_the_registry_has_is_not_made_again(house: PublishingHouse) -> None:
    [first] = house.push()
    # An empty machine, and nothing to download from.
    house.factory.cache = house.factory.folder / "another-cache"
    house.factory.links.rename(house.factory.folder / "gone")
    house.factory.mirror.rename(house.factory.folder / "gone-too")
    house.factory.watch.told.clear()
    house.change(2048)
    [second] = house.push()
    assert second.image.digest != first.image.digest
    assert second.pushed.count("uploaded") == 2  # the model's layer and the configuration
    assert second.pushed.uploaded < 100_000


def test_a_failed_smoke_test_keeps_every_tag_away(house: PublishingHouse) -> None:
    [staged] = house.push()
    house.vouch(staged, failing=["container"])
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert "container: failed (test_it: the entrypoint is broken)" in refusal.why
    assert house.tags() == {}


@pytest.mark.parametrize(
    ("levels", "missing"), [([], "no record"), (["static", "container"], "serve: no result")]
)
def test_a_level_that_is_missing_keeps_every_tag_away(
    house: PublishingHouse, levels: list[str], missing: str
) -> None:
    [staged] = house.push()
    if levels:
        house.vouch(staged, levels=levels)
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert missing in refusal.why
    assert house.tags() == {}


def test_a_failed_audit_keeps_every_tag_away(house: PublishingHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    [staged] = house.push()
    house.vouch(staged)
    monkeypatch.setattr(gate, "audit_verdict", lambda *_: (False, ["vllm/_C.abi3.so: no code for 12.1"]))
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert refusal.why == "audit: vllm/_C.abi3.so: no code for 12.1."
    assert house.tags() == {}


def test_an_image_with_other_files_than_the_locked_ones_never_leaves(house: PublishingHouse) -> None:
    project = house.project
    unlocked = project.base_lock(CELL).model_copy(update={"integrity": ""})
    plan = make_plan(project, CELL, base=unlocked)
    with pytest.raises(NotPromotableError, match="cannot be published"):
        refuse_unlocked(plan, house.repository)
    # Not even when somebody else brings it there.
    [built] = assemble(project, [plan], Silence(), house.factory.said.append, record=False)
    push_image(house.repository, built.layout, tag=staging_tag(plan.key))
    attach_record(house.repository, smoke_record(built.image.digest, plan.key))
    with pytest.raises(NotPromotableError, match="locked: the image has files that the lock does not name"):
        gate.candidate(project, house.repository, plan)
    assert house.tags() == {}


def test_a_record_of_another_image_counts_for_nothing(house: PublishingHouse) -> None:
    [first] = house.push()
    house.vouch(first)
    house.change(2048)
    house.push()
    [refusal] = house.promote().refused
    assert "no record for this digest" in refusal.why


def test_what_was_not_pushed_is_not_promoted(house: PublishingHouse) -> None:
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotStagedError)


def test_another_image_under_the_staging_tag_is_not_promoted(house: PublishingHouse) -> None:
    house.push(SECOND)
    [staged] = house.push()
    other = house.repository.require_manifest(staging_tag(house.key(SECOND)))  # type: ignore[arg-type]
    house.repository.put_manifest(other.body, MANIFEST_TYPE, staging_tag(staged.plan.key))
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotStagedError)
    assert "is another image" in refusal.what


def test_a_tag_that_never_moves_is_never_overwritten(house: PublishingHouse) -> None:
    [staged] = house.push()
    house.vouch(staged)
    [other] = house.push(SECOND)
    fixed = fixed_tag(CELL, staged.plan.key)
    house.repository.put_manifest(other.image.manifest, MANIFEST_TYPE, fixed)
    [refusal] = house.promote().refused
    assert isinstance(refusal, TagTakenError)
    assert house.tags() == {fixed: other.image.digest}


def test_one_that_is_refused_does_not_keep_the_others_from_their_tags(house: PublishingHouse) -> None:
    tiny, other = house.push(CELL, SECOND)
    house.vouch(other)
    outcome = house.promote(CELL, SECOND)
    assert [one.image.digest for one in outcome.promoted] == [other.image.digest]
    assert len(outcome.refused) == 1
    assert set(house.tags()) == {"other", "other-v1.0", fixed_tag(SECOND, other.plan.key)}
    assert tiny.image.digest not in house.tags().values()


def whole_and_tested(house: PublishingHouse, tested: set[Digest]) -> None:
    """Check that every tag names an image that was tested, all of which is there."""
    for tag, digest in house.tags().items():
        assert digest in tested, tag
        manifest = house.repository.require_manifest(digest).document()
        for blob in (manifest["config"], *manifest["layers"]):
            assert house.repository.has_blob(blob["digest"])
    for event in read_catalog(house.repository).catalog.events:
        assert event.image in tested


def test_a_crash_at_any_write_leaves_every_tag_at_a_complete_tested_image(house: PublishingHouse) -> None:
    [first] = house.publish()
    tested = {first}
    survived = False
    writes = 0
    while not survived:
        house.change(3000 + writes)
        [staged] = house.push()
        house.vouch(staged)
        tested.add(staged.image.digest)
        try:
            house.promote(repository=interrupted(house, writes))
            survived = True
        except PowerCutError:
            whole_and_tested(house, tested)
            # Whoever does it again finishes it.
            assert house.promote().refused == []
        writes += 1
        whole_and_tested(house, tested)
        tags = house.tags()
        assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {staged.image.digest}
    # Catalog (its content, the empty config, the tag), the fixed tag, three moving ones.
    assert writes - 1 == 7


def test_a_crash_at_any_write_of_a_push_moves_no_tag(house: PublishingHouse) -> None:
    house.publish()
    before = house.tags()
    writes = 0
    while True:
        house.change(4000)
        try:
            house.push(repository=interrupted(house, writes))
        except PowerCutError:
            assert house.tags() == before
            writes += 1
            continue
        break
    assert house.tags() == before
    assert writes >= 3


def test_of_two_promotions_at_once_one_wins_and_the_other_is_told(house: PublishingHouse) -> None:
    house.publish()
    candidates = []
    for number in (2100, 2200):
        house.change(number)
        [staged] = house.push()
        house.vouch(staged)
        candidates.append((house.project, staged.image.digest))
    # Each has read its own matrix.
    for (project, _), number in zip(candidates, (2100, 2200), strict=True):
        house.change(number)
        assert project.matrix.models["tiny"].serve.max_model_len == number
    told: dict[Digest, list[FactoryError]] = {}
    ready = threading.Barrier(2)

    def run(project: Any, digest: Digest) -> None:
        ready.wait()
        try:
            told[digest] = promote(project, house.repository, [CELL]).refused
        except FactoryError as error:
            told[digest] = [error]

    threads = [threading.Thread(target=run, args=candidate) for candidate in candidates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [digest for digest, errors in told.items() if not errors]
    [[loser]] = [errors for errors in told.values() if errors]
    assert isinstance(loser, PromotionLostError)
    [winner] = winners
    tags = house.tags()
    assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {winner}
    assert winner in loser.why


def test_promotions_of_different_models_at_once_both_succeed(house: PublishingHouse) -> None:
    for staged in house.push(CELL, SECOND):
        house.vouch(staged)
    outcomes: dict[Cell, list[FactoryError]] = {}
    ready = threading.Barrier(2)

    def run(cell: Cell) -> None:
        ready.wait()
        outcomes[cell] = house.promote(cell).refused

    threads = [threading.Thread(target=run, args=(cell,)) for cell in (CELL, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {CELL: [], SECOND: []}
    assert {"tiny", "other", "latest"} <= set(house.tags())
    assert len(read_catalog(house.repository).catalog.images) == 2


def test_an_image_that_was_rolled_back_from_is_not_promoted_by_accident(house: PublishingHouse) -> None:
    house.publish()
    house.change(2048)
    [second] = house.publish()
    rollback(house.project, house.repository, CELL)
    [refusal] = house.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert "rolled back" in refusal.what
    assert house.promote(again=True).refused == []
    assert house.tags()["tiny"] == second


def test_every_name_in_the_catalog_is_a_digest(house: PublishingHouse) -> None:
    house.publish()
    catalog = read_catalog(house.repository).catalog
    assert all(is_digest(pointer.digest) for event in catalog.events for pointer in event.moved.values())


def test_promotions_through_a_faulty_network_leave_every_tag_whole(
    house: PublishingHouse, guarded_registry: GuardedRegistry, fault_proxy: FaultProxy
) -> None:
    chance = random.Random(7)
    kinds: tuple[Kind, ...] = ("throttled", "unavailable", "reset", "unclear", "torn", "expired")

    def choose(_: Request) -> Fault | None:
        return Fault(chance.choice(kinds), read=chance.random() < 0.5) if chance.random() < 0.2 else None

    tested: set[Digest] = set()
    with guarded_registry.repository(house.repository.reference.repository, at=fault_proxy.address) as faulty:
        for number in range(10):
            house.change(6000 + number)
            [staged] = house.push()
            house.vouch(staged)
            tested.add(staged.image.digest)
            fault_proxy.choose = choose
            with contextlib.suppress(FactoryError):
                house.promote(repository=faulty)
            whole_and_tested(house, tested)
            fault_proxy.choose = lambda _: None
            assert house.promote(repository=faulty).refused == []
            tags = house.tags()
            assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {staged.image.digest}
    assert len(read_catalog(house.repository).catalog.images) == 10
