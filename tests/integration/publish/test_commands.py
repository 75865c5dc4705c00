"""The commands of the registry, as a user runs them, and the whole way from a target to its tags."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from imagefactory.environment.progress import Say
from imagefactory.errors.layers import EngineError
from imagefactory.errors.publishing import NotPromotableError
from imagefactory.locks.project import Project
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.pipeline import Test, publish
from imagefactory.publish.push import Staged
from imagefactory.publish.smoke_records import read_records
from imagefactory.smoke.record import Level, SmokeRecord
from tests.fixtures.publishing import PublishingHouse, smoke_record
from tests.fixtures.small_factory import CELL, SECOND, Silence


def invoke(house: PublishingHouse, *arguments: str) -> subprocess.CompletedProcess[str]:
    factory = house.factory
    environment = factory.environment() | {
        name: os.environ[name] for name in ("FACTORY_REGISTRY", "DOCKER_CONFIG")
    }
    return subprocess.run(
        factory.command(*arguments),
        cwd=factory.root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_push_promote_history_rollback_and_prune(house: PublishingHouse) -> None:
    name = house.repository.reference.name
    digests = []
    for number in (1000, 1100):
        house.change(number)
        pushed = invoke(house, "push", "--target", "tiny")
        assert pushed.returncode == 0, pushed.stderr
        digests.append(pushed.stdout.strip().removeprefix(f"{name}@"))
        assert invoke(house, "promote", "--target", "tiny").returncode == 113
        [staged] = house.push()
        house.vouch(staged)
        promoted = invoke(house, "promote", "--target", "tiny")
        assert promoted.returncode == 0, promoted.stderr
        assert "tiny-v1.0" in promoted.stdout
    assert house.tags()["tiny"] == digests[1]

    told = invoke(house, "history", "--target", "tiny", "--json")
    assert [(line["digest"], line["changed"]) for line in json.loads(told.stdout)] == [
        (digests[0], ["first"]),
        (digests[1], ["model tiny changed"]),
    ]
    assert digests[1][7:19] in invoke(house, "history").stdout

    assert digests[1] in invoke(house, "catalog", "--markdown").stdout
    assert len(json.loads(invoke(house, "catalog", "--json").stdout)["images"]) == 2

    back = invoke(house, "rollback", "--target", "tiny")
    assert back.stdout.strip() == f"{name}@{digests[0]}"
    assert house.tags()["tiny"] == house.tags()["latest"] == digests[0]
    assert invoke(house, "promote", "--target", "tiny").returncode == 113
    assert invoke(house, "rollback", "--target", "tiny", "--to", "2020-01-01").returncode == 117
    assert invoke(house, "rollback", "--target", "tiny", "--to", digests[1]).returncode == 0
    assert house.tags()["tiny"] == digests[1]

    before = house.repository.tags()
    dry = invoke(house, "prune", "--dry-run", "--keep", "1")
    assert dry.returncode == 0, dry.stderr
    assert digests[0][7:19] in dry.stdout
    assert house.repository.tags() == before
    assert invoke(house, "prune", "--delete", "--keep", "1").returncode == 0
    assert house.repository.manifest(digests[0]) is None
    assert house.repository.manifest(digests[1]) is not None


def test_what_was_never_published_has_no_history(house: PublishingHouse) -> None:
    assert invoke(house, "history").returncode == 117
    assert invoke(house, "rollback").returncode == 117
    assert invoke(house, "promote").returncode == 118


def smoke_tests(failing: Collection[str], ran: list[str], asked: list[Sequence[Level]] | None = None) -> Test:
    """Make smoke tests that end as a test wants them to."""

    def test(
        _project: Project, _repository: Repository, staged: Staged, levels: Sequence[Level], _say: Say
    ) -> SmokeRecord:
        ran.append(staged.image.digest)
        if asked is not None:
            asked.append(levels)
        return smoke_record(
            staged.image.digest, staged.plan.key, failing=failing, levels=levels, started=datetime.now(UTC)
        )

    return test


def test_what_fails_its_tests_gets_no_tag_and_the_record_says_why(house: PublishingHouse) -> None:
    ran: list[str] = []
    asked: list[Sequence[Level]] = []
    outcome = publish(
        house.project,
        house.repository,
        [CELL],
        Silence(),
        house.factory.said.append,
        test=smoke_tests(["serve"], ran),
    )
    [refusal] = outcome.refused
    assert isinstance(refusal, NotPromotableError)
    assert house.tags() == {}
    [digest] = ran
    record = read_records(house.repository, digest, house.key())  # type: ignore[arg-type]
    assert record is not None
    assert record.levels["serve"].why == "test_it: the entrypoint is broken"
    # What was wrong was the test, say.
    outcome = publish(
        house.project,
        house.repository,
        [CELL],
        Silence(),
        house.factory.said.append,
        test=smoke_tests([], ran, asked),
    )
    assert outcome.refused == []
    assert asked == [["serve"]]  # the others had passed
    assert house.tags()["tiny"] == digest


def test_what_was_tested_before_is_not_tested_again(house: PublishingHouse) -> None:
    ran: list[str] = []
    for _ in range(2):
        publish(
            house.project,
            house.repository,
            [CELL],
            Silence(),
            house.factory.said.append,
            test=smoke_tests([], ran),
        )
    assert len(ran) == 1
    assert house.tags()["tiny"] == ran[0]


def test_one_that_cannot_be_tested_does_not_keep_the_others_from_their_tags(house: PublishingHouse) -> None:
    ran: list[str] = []

    def test(
        project: Project, repository: Repository, staged: Staged, levels: Sequence[Level], say: Say
    ) -> SmokeRecord:
        if staged.plan.cell == CELL:
            raise EngineError("Docker is gone.", where="here", why="It was stopped.", fix="Start it.")
        return smoke_tests([], ran)(project, repository, staged, levels, say)

    outcome = publish(
        house.project, house.repository, [CELL, SECOND], Silence(), house.factory.said.append, test=test
    )
    assert [error.what for error in outcome.refused] == ["Docker is gone."]
    assert [one.image.cell for one in outcome.promoted] == [SECOND]
    assert "tiny" not in house.tags()
