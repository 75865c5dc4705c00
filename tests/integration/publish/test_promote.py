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
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.oci.registry.reference import is_digest
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.publish import gate
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import attach_record
from imagefactory.publish.staging import Staged, refuse_unlocked
from imagefactory.publish.tags import fixed_tag, staging_tag
from imagefactory.store.digests import Digest
from tests.fixtures.fault_proxy import Fault, FaultProxy, Kind, Request
from tests.fixtures.publishing import PublishingFactory, promote_cells, smoke_record
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


def interrupted(publishing_factory: PublishingFactory, writes: int) -> Interrupted:
    repository = Interrupted(publishing_factory.repository.connection)
    repository.writes_left = writes
    return repository


def test_nothing_to_tags(publishing_factory: PublishingFactory) -> None:
    [staged] = publishing_factory.push()
    assert publishing_factory.repository.tags() == [staging_tag(staged.plan.key)]
    publishing_factory.vouch(staged)
    outcome = publishing_factory.promote()
    digest = staged.image.digest
    assert outcome.refused == []
    assert publishing_factory.tags() == {
        "tiny-v1.0": digest,
        "tiny": digest,
        "latest": digest,
        fixed_tag(CELL, staged.plan.key): digest,
    }
    [image] = read_catalog(publishing_factory.repository).catalog.images
    assert (image.digest, image.plan_key, image.tag) == (
        digest,
        staged.plan.key,
        fixed_tag(CELL, staged.plan.key),
    )


def test_a_second_push_only_asks(publishing_factory: PublishingFactory) -> None:
    publishing_factory.push()
    [staged] = publishing_factory.push()
    assert staged.pushed.count("present") == len(staged.plan.layers) + 1
    assert staged.pushed.uploaded == 0


def test_what_the_registry_has_is_not_made_again(publishing_factory: PublishingFactory) -> None:
    [first] = publishing_factory.push()
    # An empty machine, and nothing to download from.
    publishing_factory.factory.cache = publishing_factory.factory.folder / "another-cache"
    publishing_factory.factory.links.rename(publishing_factory.factory.folder / "gone")
    publishing_factory.factory.mirror.rename(publishing_factory.factory.folder / "gone-too")
    publishing_factory.factory.watch.told.clear()
    publishing_factory.change(2048)
    [second] = publishing_factory.push()
    assert second.image.digest != first.image.digest
    assert second.pushed.count("uploaded") == 2  # the model's layer and the configuration
    assert second.pushed.uploaded < 100_000


def test_a_failed_smoke_test_keeps_every_tag_away(publishing_factory: PublishingFactory) -> None:
    [staged] = publishing_factory.push()
    publishing_factory.vouch(staged, failing=["container"])
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert "container: failed (test_it: the entrypoint is broken)" in refusal.why
    assert publishing_factory.tags() == {}


@pytest.mark.parametrize(
    ("levels", "missing"), [([], "no record"), (["static", "container"], "serve: no result")]
)
def test_a_level_that_is_missing_keeps_every_tag_away(
    publishing_factory: PublishingFactory, levels: list[str], missing: str
) -> None:
    [staged] = publishing_factory.push()
    if levels:
        publishing_factory.vouch(staged, levels=levels)
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert missing in refusal.why
    assert publishing_factory.tags() == {}


def test_a_failed_audit_keeps_every_tag_away(
    publishing_factory: PublishingFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    [staged] = publishing_factory.push()
    publishing_factory.vouch(staged)
    monkeypatch.setattr(gate, "audit_verdict", lambda *_: (False, ["vllm/_C.abi3.so: no code for 12.1"]))
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert refusal.why == "audit: vllm/_C.abi3.so: no code for 12.1."
    assert publishing_factory.tags() == {}


def test_an_image_with_other_files_than_the_locked_ones_never_leaves(
    publishing_factory: PublishingFactory,
) -> None:
    project = publishing_factory.project
    unlocked = project.base_lock(CELL).model_copy(update={"integrity": ""})
    plan = make_plan(project, CELL, base=unlocked)
    with pytest.raises(NotPromotableError, match="cannot be published"):
        refuse_unlocked(plan, publishing_factory.repository)
    # Not even when somebody else brings it there.
    [built] = assemble(project, [plan], Silence(), publishing_factory.factory.said.append, record=False)
    pushable = Pushable.of_image(built.image, project.store.blob)
    pushed = push_image(publishing_factory.repository, pushable, tag=staging_tag(plan.key))
    attach_record(publishing_factory.repository, smoke_record(built.image.digest, plan.key))
    with pytest.raises(NotPromotableError) as refused:
        gate.candidate(project, publishing_factory.repository, Staged(plan, built.image, pushed))
    assert "locked: the image has files that the lock does not name" in refused.value.why
    assert publishing_factory.tags() == {}


def test_a_record_of_another_image_counts_for_nothing(publishing_factory: PublishingFactory) -> None:
    [first] = publishing_factory.push()
    publishing_factory.vouch(first)
    publishing_factory.change(2048)
    publishing_factory.push()
    [refusal] = publishing_factory.promote().refused
    assert "no record for this digest" in refusal.why


def test_what_was_not_pushed_is_not_promoted(publishing_factory: PublishingFactory) -> None:
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotStagedError)


def test_another_image_under_the_staging_tag_is_not_promoted(publishing_factory: PublishingFactory) -> None:
    publishing_factory.push(SECOND)
    [staged] = publishing_factory.push()
    other = publishing_factory.repository.require_manifest(staging_tag(publishing_factory.key(SECOND)))  # type: ignore[arg-type]
    publishing_factory.repository.put_manifest(other.body, MANIFEST_TYPE, staging_tag(staged.plan.key))
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotStagedError)
    assert "has another image" in refusal.what


def test_a_tag_that_never_moves_is_never_overwritten(publishing_factory: PublishingFactory) -> None:
    [staged] = publishing_factory.push()
    publishing_factory.vouch(staged)
    [other] = publishing_factory.push(SECOND)
    fixed = fixed_tag(CELL, staged.plan.key)
    publishing_factory.repository.put_manifest(other.image.manifest, MANIFEST_TYPE, fixed)
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, TagTakenError)
    assert publishing_factory.tags() == {fixed: other.image.digest}


def test_one_that_is_refused_does_not_keep_the_others_from_their_tags(
    publishing_factory: PublishingFactory,
) -> None:
    tiny, other = publishing_factory.push(CELL, SECOND)
    publishing_factory.vouch(other)
    outcome = publishing_factory.promote(CELL, SECOND)
    assert [one.image.digest for one in outcome.promoted] == [other.image.digest]
    assert len(outcome.refused) == 1
    assert set(publishing_factory.tags()) == {"other", "other-v1.0", fixed_tag(SECOND, other.plan.key)}
    assert tiny.image.digest not in publishing_factory.tags().values()


def whole_and_tested(publishing_factory: PublishingFactory, tested: set[Digest]) -> None:
    """Check that every tag names an image that was tested, all of which is there."""
    for tag, digest in publishing_factory.tags().items():
        assert digest in tested, tag
        manifest = publishing_factory.repository.require_manifest(digest).document()
        for blob in (manifest["config"], *manifest["layers"]):
            assert publishing_factory.repository.has_blob(blob["digest"])
    for event in read_catalog(publishing_factory.repository).catalog.events:
        assert event.image in tested


def test_a_crash_at_any_write_leaves_every_tag_at_a_complete_tested_image(
    publishing_factory: PublishingFactory,
) -> None:
    [first] = publishing_factory.publish()
    tested = {first}
    survived = False
    writes = 0
    while not survived:
        publishing_factory.change(3000 + writes)
        [staged] = publishing_factory.push()
        publishing_factory.vouch(staged)
        tested.add(staged.image.digest)
        try:
            publishing_factory.promote(repository=interrupted(publishing_factory, writes))
            survived = True
        except PowerCutError:
            whole_and_tested(publishing_factory, tested)
            # Whoever does it again finishes it.
            assert publishing_factory.promote().refused == []
        writes += 1
        whole_and_tested(publishing_factory, tested)
        tags = publishing_factory.tags()
        assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {staged.image.digest}
    # Catalog (its content, the empty config, the tag), the fixed tag, three moving ones.
    assert writes - 1 == 7


def test_a_crash_at_any_write_of_a_push_moves_no_tag(publishing_factory: PublishingFactory) -> None:
    publishing_factory.publish()
    before = publishing_factory.tags()
    writes = 0
    while True:
        publishing_factory.change(4000)
        try:
            publishing_factory.push(repository=interrupted(publishing_factory, writes))
        except PowerCutError:
            assert publishing_factory.tags() == before
            writes += 1
            continue
        break
    assert publishing_factory.tags() == before
    assert writes >= 3


def test_of_two_promotions_at_once_one_wins_and_the_other_is_told(
    publishing_factory: PublishingFactory,
) -> None:
    publishing_factory.publish()
    candidates = []
    for number in (2100, 2200):
        publishing_factory.change(number)
        [staged] = publishing_factory.push()
        publishing_factory.vouch(staged)
        candidates.append((publishing_factory.project, staged.image.digest))
    # Each has read its own matrix.
    for (project, _), number in zip(candidates, (2100, 2200), strict=True):
        publishing_factory.change(number)
        assert project.matrix.models["tiny"].serve.max_model_len == number
    told: dict[Digest, list[FactoryError]] = {}
    ready = threading.Barrier(2)

    def run(project: Any, digest: Digest) -> None:
        ready.wait()
        try:
            told[digest] = promote_cells(project, publishing_factory.repository, CELL).refused
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
    tags = publishing_factory.tags()
    assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {winner}
    assert winner in loser.why


def test_promotions_of_different_models_at_once_both_succeed(publishing_factory: PublishingFactory) -> None:
    for staged in publishing_factory.push(CELL, SECOND):
        publishing_factory.vouch(staged)
    outcomes: dict[Cell, list[FactoryError]] = {}
    ready = threading.Barrier(2)

    def run(cell: Cell) -> None:
        ready.wait()
        outcomes[cell] = publishing_factory.promote(cell).refused

    threads = [threading.Thread(target=run, args=(cell,)) for cell in (CELL, SECOND)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {CELL: [], SECOND: []}
    assert {"tiny", "other", "latest"} <= set(publishing_factory.tags())
    assert len(read_catalog(publishing_factory.repository).catalog.images) == 2


def test_an_image_that_was_rolled_back_from_is_not_promoted_by_accident(
    publishing_factory: PublishingFactory,
) -> None:
    publishing_factory.publish()
    publishing_factory.change(2048)
    [second] = publishing_factory.publish()
    rollback(publishing_factory.project, publishing_factory.repository, CELL)
    [refusal] = publishing_factory.promote().refused
    assert isinstance(refusal, NotPromotableError)
    assert "rolled back" in refusal.what
    assert publishing_factory.promote(again=True).refused == []
    assert publishing_factory.tags()["tiny"] == second


def test_every_name_in_the_catalog_is_a_digest(publishing_factory: PublishingFactory) -> None:
    publishing_factory.publish()
    catalog = read_catalog(publishing_factory.repository).catalog
    assert all(is_digest(pointer.digest) for event in catalog.events for pointer in event.moved.values())


def test_promotions_through_a_faulty_network_leave_every_tag_whole(
    publishing_factory: PublishingFactory, guarded_registry: GuardedRegistry, fault_proxy: FaultProxy
) -> None:
    chance = random.Random(7)
    kinds: tuple[Kind, ...] = ("throttled", "unavailable", "reset", "unclear", "torn", "expired")

    def choose(_: Request) -> Fault | None:
        return Fault(chance.choice(kinds), read=chance.random() < 0.5) if chance.random() < 0.2 else None

    tested: set[Digest] = set()
    with guarded_registry.repository(
        publishing_factory.repository.reference.repository, at=fault_proxy.address
    ) as faulty:
        for number in range(10):
            publishing_factory.change(6000 + number)
            [staged] = publishing_factory.push()
            publishing_factory.vouch(staged)
            tested.add(staged.image.digest)
            fault_proxy.choose = choose
            with contextlib.suppress(FactoryError):
                publishing_factory.promote(repository=faulty)
            whole_and_tested(publishing_factory, tested)
            fault_proxy.choose = lambda _: None
            assert publishing_factory.promote(repository=faulty).refused == []
            tags = publishing_factory.tags()
            assert {tags["tiny-v1.0"], tags["tiny"], tags["latest"]} == {staged.image.digest}
    assert len(read_catalog(publishing_factory.repository).catalog.images) == 10
