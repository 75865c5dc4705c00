"""The registry commands as a user runs them, and the whole way from a target to its tags."""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from imagefactory.check.smoke.record import Level, SmokeRecord
from imagefactory.errors import EngineError
from imagefactory.publish.staging import Staged
from imagefactory.publish.stored_catalog import write_catalog
from imagefactory.publish.tags import Tags
from tests.fixtures.failures import is_failure, raises, refused
from tests.fixtures.publishing import REQUIRED, Publisher, SmokeTest, attach_record, read_record, smoke_record
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_factory import CELL, SECOND


def test_push_promote_history_rollback_and_prune(publisher: Publisher) -> None:
    name = publisher.repository.reference.name
    assert refused(publisher.invoke("history"), "never-published")
    assert refused(publisher.invoke("rollback"), "never-published")
    assert refused(publisher.invoke("promote"), "not-pushed")
    digests = []
    for number in (1000, 1100):
        publisher.change(number)
        pushed = publisher.invoke("push", "--target", "tiny")
        assert pushed.returncode == 0, pushed.stderr
        digests.append(pushed.stdout.strip().removeprefix(f"{name}@"))
        assert refused(publisher.invoke("promote", "--target", "tiny"), "not-promotable")
        publisher.push_tested()
        promoted = publisher.invoke("promote", "--target", "tiny")
        assert promoted.returncode == 0, promoted.stderr
        assert "tiny-v1.0" in promoted.stdout
    assert publisher.tags()["tiny"] == digests[1]

    told = publisher.invoke("history", "--target", "tiny").stdout
    assert re.findall(r"promote +(\w+) .* (first|model tiny changed)", told) == [
        (digests[0][7:19], "first"),
        (digests[1][7:19], "model tiny changed"),
    ]

    assert len(json.loads(publisher.invoke("catalog", "--json").stdout)["images"]) == 2

    assert refused(publisher.invoke("rollback", "--target", "tiny", "--why", "\u00fc"), "bad-option")
    back = publisher.invoke("rollback", "--target", "tiny", "--why", "tool calls fail")
    past = publisher.invoke("history", "--target", "tiny")
    assert "rollback: tool calls fail" in past.stdout
    assert f"(tool calls fail); only `./inv promote --again` or `./inv rollback --to {digests[1][7:19]}`" in past.stderr
    assert back.stdout.strip() == f"{name}@{digests[0]}"
    assert publisher.tags()["tiny"] == publisher.tags()["latest"] == digests[0]
    held = publisher.invoke("promote", "--target", "tiny")
    assert refused(held, "held-back")
    assert f"{digests[0]}: tool calls fail." in held.stderr
    assert refused(publisher.invoke("rollback", "--target", "tiny", "--to", "2020-01-01"), "never-published")
    assert publisher.invoke("rollback", "--target", "tiny", "--to", digests[1]).returncode == 0
    assert publisher.tags()["tiny"] == digests[1]

    before = publisher.repository.tags()
    dry = publisher.invoke("prune", "--keep", "1")
    assert dry.returncode == 0, dry.stderr
    assert digests[0][7:19] in dry.stdout
    assert publisher.repository.tags() == before
    assert publisher.invoke("prune", "--delete", "--keep", "1").returncode == 0
    assert publisher.repository.manifest(digests[0]) is None
    assert publisher.repository.manifest(digests[1]) is not None


def smoke_tests(failing: Collection[str], ran: list[tuple[str, list[Level]]]) -> SmokeTest:
    """Make smoke tests that end as a test wants them to, and note what they ran."""

    def run(staged: Staged, levels: Sequence[Level]) -> SmokeRecord:
        ran.append((staged.digest, list(levels)))
        started = datetime.now(UTC)
        return smoke_record(staged.digest, staged.plan.key, failing=failing, levels=levels, started=started)

    return run


def test_an_image_that_fails_its_tests_gets_no_tag_and_its_record_says_why(publisher: Publisher) -> None:
    ran: list[tuple[str, list[Level]]] = []
    [refusal] = publisher.publish_with(smoke_tests(["serve"], ran), CELL).refused
    assert is_failure(refusal, "not-promotable")
    assert publisher.tags() == {}
    [(digest, _)] = ran
    record = read_record(publisher.repository, digest, publisher.key())
    assert record is not None
    assert record.levels["serve"].why == "test_it: the entrypoint is broken"
    # Suppose that the test itself was wrong.
    assert publisher.publish_with(smoke_tests([], ran), CELL).refused == []
    assert ran[1:] == [(digest, ["serve"])]  # the other levels had passed
    assert publisher.tags()["tiny"] == digest


def test_an_image_that_passed_is_not_tested_again(publisher: Publisher) -> None:
    ran: list[tuple[str, list[Level]]] = []
    for _ in range(2):
        publisher.publish_with(smoke_tests([], ran), CELL)
    [(digest, levels)] = ran
    assert publisher.tags()["tiny"] == digest
    publisher.publish_with(smoke_tests([], ran), CELL, retest=True)
    assert ran[1:] == [(digest, levels)]


def test_a_failure_that_is_attached_during_the_tests_counts(publisher: Publisher) -> None:
    passing = smoke_tests([], [])

    def run(staged: Staged, levels: Sequence[Level]) -> SmokeRecord:
        record = passing(staged, levels)
        started = record.started + timedelta(seconds=1)
        failed = smoke_record(staged.digest, staged.plan.key, failing=["serve"], started=started)
        attach_record(publisher.repository, failed)
        return record

    [refusal] = publisher.publish_with(run, CELL).refused
    assert is_failure(refusal, "not-promotable")
    assert publisher.tags() == {}


def test_what_forbids_publishing_is_found_before_anything_is_built(
    publisher: Publisher, guarded_registry: GuardedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("it was built")

    publisher.publish_changed(1000, 1100)
    publisher.rollback()
    monkeypatch.setattr("imagefactory.publish.staging.make_layers", build)
    [refusal] = publisher.publish_with(smoke_tests([], []), CELL).refused
    assert is_failure(refusal, "held-back")
    _, _, name = publisher.repository.reference.name.partition("/")
    with guarded_registry.repository(name, "reader") as reader, raises("access-denied"):
        publisher.push(repository=reader)
    write_catalog(publisher.repository, lambda catalog: replace(catalog, events=catalog.events[:-1]))
    fixed = publisher.catalog.images[0].tag
    monkeypatch.setattr("imagefactory.publish.standing.tags_of", lambda *_, **__: Tags("new", (), (fixed,)))
    [refusal] = publisher.publish_with(smoke_tests([], []), CELL).refused
    assert is_failure(refusal, "tag-taken")


@pytest.mark.parametrize(
    ("key", "levels", "left"),
    [("", REQUIRED, []), ("", ["static"], [{"container", "serve"}]), ("0" * 64, REQUIRED, [set(REQUIRED)])],
    ids=["all levels", "not all levels", "another plan"],
)
def test_what_did_not_pass_on_this_machine_is_tested(
    publisher: Publisher, key: str, levels: Sequence[Level], left: list[set[str]]
) -> None:
    publisher.leave_record(key, levels)
    ran: list[tuple[str, list[Level]]] = []
    [promoted] = publisher.publish_with(smoke_tests([], ran), CELL).promoted
    assert [set(tested) for _, tested in ran] == left
    record = read_record(publisher.repository, promoted.image.digest, publisher.key())
    assert record is not None
    assert set(record.passed) == set(REQUIRED)
    assert "/" not in record.image


def test_an_image_that_cannot_be_tested_does_not_keep_others_from_their_tags(publisher: Publisher) -> None:
    def run(staged: Staged, levels: Sequence[Level]) -> SmokeRecord:
        if staged.plan.cell == CELL:
            raise EngineError("engine-failed", "Docker is gone.", where="here", why="It was stopped.", fix="Start it.")
        return smoke_tests([], [])(staged, levels)

    outcome = publisher.publish_with(run, CELL, SECOND)
    assert [error.what for error in outcome.refused] == ["Docker is gone."]
    assert [one.image.cell for one in outcome.promoted] == [SECOND]
    assert "tiny" not in publisher.tags()
