"""Promotion in a real registry: what gets tags, and who wins. test_state_machines.py has crashes and faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from imagefactory.assemble.assemble import BuildRun, assemble
from imagefactory.errors import FactoryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import LOCKED_LABEL
from imagefactory.project.cells import Cell
from imagefactory.publish import gate
from imagefactory.publish.handovers import handover_folder, write_handover
from imagefactory.publish.records import attach_record
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import fixed_tag, staging_tag
from imagefactory.store.digests import Digest
from tests.fixtures.failures import is_failure, raises
from tests.fixtures.publishing import Publisher, promote_cells, smoke_record
from tests.fixtures.small_factory import CELL, SECOND, RecordingWatcher


def at_once(run: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call a function with each of the arguments, all at the same moment."""
    ready = threading.Barrier(len(arguments))

    def start(*own: Any) -> None:
        ready.wait()
        run(*own)

    threads = [threading.Thread(target=start, args=own) for own in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tiny_images(publisher: Publisher) -> set[str]:
    """Return what the moving tags of the tiny model name."""
    tags = publisher.tags()
    return {tags["tiny-v1.0"], tags["tiny"], tags["latest"]}


def test_promotion_gives_an_image_its_tags(publisher: Publisher) -> None:
    [staged] = publisher.push()
    assert publisher.repository.tags() == [staging_tag(staged.plan.key)]
    publisher.vouch(staged)
    outcome = publisher.promote()
    digest = staged.digest
    assert outcome.refused == []
    assert publisher.tags() == {
        "tiny-v1.0": digest,
        "tiny": digest,
        "latest": digest,
        fixed_tag(CELL, staged.plan.key): digest,
    }
    [image] = publisher.catalog.images
    assert (image.digest, image.plan_key, image.tag) == (
        digest,
        staged.plan.key,
        fixed_tag(CELL, staged.plan.key),
    )


def test_a_second_push_uploads_nothing(publisher: Publisher) -> None:
    publisher.push()
    [staged] = publisher.push()
    assert staged.pushed.count("present") == len(staged.plan.layers) + 1
    assert staged.pushed.uploaded == 0


def test_a_layer_in_the_registry_is_not_built_again(publisher: Publisher) -> None:
    [first] = publisher.push()
    # An empty machine, and nothing to download from.
    publisher.factory.cache = publisher.factory.folder / "another-cache"
    publisher.factory.links.rename(publisher.factory.folder / "gone")
    publisher.factory.mirror.rename(publisher.factory.folder / "gone-too")
    publisher.factory.watch.told.clear()
    publisher.change(2048)
    [second] = publisher.push()
    assert second.digest != first.digest
    assert second.pushed.count("uploaded") == 2  # the model's layer and the configuration
    assert second.pushed.uploaded < 100_000


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        (None, "no record"),
        ({"levels": ["static", "container"]}, "serve: no result"),
        ({"failing": ["container"]}, "container: failed (test_it: the entrypoint is broken)"),
    ],
)
def test_an_image_that_did_not_pass_its_smoke_tests_gets_no_tag(
    publisher: Publisher, record: dict[str, Any] | None, missing: str
) -> None:
    [staged] = publisher.push()
    if record is not None:
        publisher.vouch(staged, **record)
    refusal = publisher.refusal()
    assert is_failure(refusal, "not-promotable")
    assert missing in refusal.why
    assert publisher.tags() == {}


def test_an_image_that_failed_the_audit_gets_no_tag(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.push_tested()
    monkeypatch.setattr(gate, "audit_verdict", lambda *_: ["vllm/_C.abi3.so: no code for 12.1"])
    refusal = publisher.refusal()
    assert is_failure(refusal, "not-promotable")
    assert refusal.why == "audit: vllm/_C.abi3.so: no code for 12.1."
    assert publisher.tags() == {}


def test_an_image_with_unlocked_files_is_not_promoted(publisher: Publisher) -> None:
    project = publisher.project
    plan = make_plan(project, CELL)
    labels = plan.config.labels | {LOCKED_LABEL: "no"}
    plan = plan.model_copy(update={"config": plan.config.model_copy(update={"labels": labels})})
    [built] = assemble(BuildRun(project, [plan], RecordingWatcher()))
    pushable = Pushable.of_image(built.image, project.store.blob)
    pushed = push_image(publisher.repository, pushable, tag=staging_tag(plan.key))
    attach_record(publisher.repository, smoke_record(built.image.digest, plan.key))
    with raises("not-promotable") as refused:
        gate.pass_gate(project, publisher.repository, Staged(plan, built.image, pushed), None)
    assert "locked: the image has files that the lock does not name" in refused.value.why
    assert publisher.tags() == {}


def test_a_smoke_record_of_another_image_does_not_count(publisher: Publisher) -> None:
    publisher.push_tested()
    publisher.change(2048)
    publisher.push()
    assert "no record for this digest" in publisher.refusal().why


def test_an_image_that_was_not_pushed_is_not_promoted(publisher: Publisher) -> None:
    assert is_failure(publisher.refusal(), "not-pushed")


def test_another_image_under_the_staging_tag_is_not_promoted(publisher: Publisher) -> None:
    publisher.push(SECOND)
    [staged] = publisher.push()
    other = publisher.repository.require_manifest(staging_tag(publisher.key(SECOND)))  # type: ignore[arg-type]
    publisher.repository.put_manifest(other.body, MANIFEST_TYPE, staging_tag(staged.plan.key))
    refusal = publisher.refusal()
    assert is_failure(refusal, "swapped-image")
    assert "has another image" in refusal.what


def test_a_tag_that_never_moves_is_never_overwritten(publisher: Publisher) -> None:
    staged = publisher.push_tested()
    [other] = publisher.push(SECOND)
    fixed = fixed_tag(CELL, staged.plan.key)
    publisher.repository.put_manifest(other.image.manifest, MANIFEST_TYPE, fixed)
    refusal = publisher.refusal()
    assert is_failure(refusal, "tag-taken")
    assert publisher.tags() == {fixed: other.digest}


def test_a_refused_image_does_not_keep_others_from_their_tags(publisher: Publisher) -> None:
    tiny, other = publisher.push(CELL, SECOND)
    publisher.vouch(other)
    outcome = publisher.promote(CELL, SECOND)
    assert [one.image.digest for one in outcome.promoted] == [other.digest]
    assert len(outcome.refused) == 1
    assert set(publisher.tags()) == {"other", "other-v1.0", fixed_tag(SECOND, other.plan.key)}
    assert tiny.digest not in publisher.tags().values()


@pytest.mark.usefixtures("rivals")
def test_of_two_promotions_at_once_one_wins_and_the_other_fails(publisher: Publisher) -> None:
    publisher.publish()
    candidates = []
    for number in (2100, 2200):
        staged = publisher.push_tested(number)
        # The record of the checkout only has what it plans now.
        write_handover(handover_folder(publisher.project), staged.plan, staged.image)
        candidates.append((publisher.project, staged.digest))
    # Each has read its own matrix.
    for (project, _), number in zip(candidates, (2100, 2200), strict=True):
        publisher.change(number)
        assert project.matrix.models["tiny"].serve.max_model_len == number
    told: dict[Digest, list[FactoryError]] = {}

    def run(project: Any, digest: Digest) -> None:
        try:
            handed_on = [handover_folder(project)]
            told[digest] = promote_cells(project, publisher.repository, CELL, handed_on=handed_on).refused
        except FactoryError as error:
            told[digest] = [error]

    at_once(run, candidates)
    [winner] = [digest for digest, errors in told.items() if not errors]
    [[loser]] = [errors for errors in told.values() if errors]
    assert is_failure(loser, "race-lost")
    assert tiny_images(publisher) == {winner}
    assert winner in loser.why


@pytest.mark.usefixtures("rivals")
def test_promotions_of_different_models_at_once_both_succeed(publisher: Publisher) -> None:
    for staged in publisher.push(CELL, SECOND):
        publisher.vouch(staged)
    outcomes: dict[Cell, list[FactoryError]] = {}

    def run(cell: Cell) -> None:
        outcomes[cell] = publisher.promote(cell).refused

    at_once(run, [(CELL,), (SECOND,)])
    assert outcomes == {CELL: [], SECOND: []}
    assert {"tiny", "other", "latest"} <= set(publisher.tags())
    assert len(publisher.catalog.images) == 2


def test_an_image_that_was_rolled_back_is_promoted_only_with_again(publisher: Publisher) -> None:
    _, second = publisher.publish_changed(1024, 2048)
    publisher.rollback()
    refusal = publisher.refusal()
    assert is_failure(refusal, "held-back")
    assert "rolled back" in refusal.what
    assert publisher.promote(again=True).refused == []
    assert publisher.tags()["tiny"] == second


def test_a_rollback_during_a_promotion_is_not_undone_by_it(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = publisher.publish_changed(1024, 2048)
    passed = gate.pass_gate

    def roll_back_then_pass(*arguments: Any) -> Any:
        publisher.rollback()
        return passed(*arguments)

    monkeypatch.setattr("imagefactory.publish.promote.pass_gate", roll_back_then_pass)
    with raises("race-lost", match="won the race"):
        publisher.promote()
    assert tiny_images(publisher) == {first}
