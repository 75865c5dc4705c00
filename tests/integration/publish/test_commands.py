"""The commands of the registry, as a user runs them, and the whole way from a target to its tags."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import pytest

from imagefactory.build import assemble, recording
from imagefactory.environment.progress import Say
from imagefactory.errors.layers import EngineError
from imagefactory.errors.publishing import NotPromotableError
from imagefactory.locks.project import Project
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan import make
from imagefactory.publish.pipeline import SmokeTest, publish
from imagefactory.publish.smoke_records import read_records
from imagefactory.publish.staging import Staged
from imagefactory.smoke.record import Level, SmokeRecord
from tests.fixtures.publishing import PublishingFactory, plans, smoke_record
from tests.fixtures.small_factory import CELL, SECOND, Silence


def invoke(publishing_factory: PublishingFactory, *arguments: str) -> subprocess.CompletedProcess[str]:
    factory = publishing_factory.factory
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


def test_push_promote_history_rollback_and_prune(publishing_factory: PublishingFactory) -> None:
    name = publishing_factory.repository.reference.name
    digests = []
    for number in (1000, 1100):
        publishing_factory.change(number)
        pushed = invoke(publishing_factory, "push", "--target", "tiny")
        assert pushed.returncode == 0, pushed.stderr
        digests.append(pushed.stdout.strip().removeprefix(f"{name}@"))
        assert invoke(publishing_factory, "promote", "--target", "tiny").returncode == 113
        [staged] = publishing_factory.push()
        publishing_factory.vouch(staged)
        promoted = invoke(publishing_factory, "promote", "--target", "tiny")
        assert promoted.returncode == 0, promoted.stderr
        assert "tiny-v1.0" in promoted.stdout
    assert publishing_factory.tags()["tiny"] == digests[1]

    told = invoke(publishing_factory, "history", "--target", "tiny", "--json")
    assert [(line["digest"], line["changed"]) for line in json.loads(told.stdout)] == [
        (digests[0], ["first"]),
        (digests[1], ["model tiny changed"]),
    ]
    assert digests[1][7:19] in invoke(publishing_factory, "history").stdout

    assert digests[1] in invoke(publishing_factory, "catalog", "--markdown").stdout
    assert len(json.loads(invoke(publishing_factory, "catalog", "--json").stdout)["images"]) == 2

    back = invoke(publishing_factory, "rollback", "--target", "tiny")
    assert back.stdout.strip() == f"{name}@{digests[0]}"
    assert publishing_factory.tags()["tiny"] == publishing_factory.tags()["latest"] == digests[0]
    assert invoke(publishing_factory, "promote", "--target", "tiny").returncode == 113
    assert invoke(publishing_factory, "rollback", "--target", "tiny", "--to", "2020-01-01").returncode == 117
    assert invoke(publishing_factory, "rollback", "--target", "tiny", "--to", digests[1]).returncode == 0
    assert publishing_factory.tags()["tiny"] == digests[1]

    before = publishing_factory.repository.tags()
    dry = invoke(publishing_factory, "prune", "--dry-run", "--keep", "1")
    assert dry.returncode == 0, dry.stderr
    assert digests[0][7:19] in dry.stdout
    assert publishing_factory.repository.tags() == before
    assert invoke(publishing_factory, "prune", "--delete", "--keep", "1").returncode == 0
    assert publishing_factory.repository.manifest(digests[0]) is None
    assert publishing_factory.repository.manifest(digests[1]) is not None


def test_what_was_never_published_has_no_history(publishing_factory: PublishingFactory) -> None:
    assert invoke(publishing_factory, "history").returncode == 117
    assert invoke(publishing_factory, "rollback").returncode == 117
    assert invoke(publishing_factory, "promote").returncode == 118


def smoke_tests(
    failing: Collection[str], ran: list[str], asked: list[Sequence[Level]] | None = None
) -> SmokeTest:
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


def test_what_fails_its_tests_gets_no_tag_and_the_record_says_why(
    publishing_factory: PublishingFactory,
) -> None:
    ran: list[str] = []
    asked: list[Sequence[Level]] = []
    outcome = publish(
        publishing_factory.project,
        publishing_factory.repository,
        plans(publishing_factory.project, CELL),
        Silence(),
        publishing_factory.factory.said.append,
        run=smoke_tests(["serve"], ran),
    )
    [refusal] = outcome.refused
    assert isinstance(refusal, NotPromotableError)
    assert publishing_factory.tags() == {}
    [digest] = ran
    record = read_records(publishing_factory.repository, digest, publishing_factory.key())  # type: ignore[arg-type]
    assert record is not None
    assert record.levels["serve"].why == "test_it: the entrypoint is broken"
    # What was wrong was the test, say.
    outcome = publish(
        publishing_factory.project,
        publishing_factory.repository,
        plans(publishing_factory.project, CELL),
        Silence(),
        publishing_factory.factory.said.append,
        run=smoke_tests([], ran, asked),
    )
    assert outcome.refused == []
    assert asked == [["serve"]]  # the others had passed
    assert publishing_factory.tags()["tiny"] == digest


def test_what_was_tested_before_is_not_tested_again(publishing_factory: PublishingFactory) -> None:
    ran: list[str] = []
    for _ in range(2):
        publish(
            publishing_factory.project,
            publishing_factory.repository,
            plans(publishing_factory.project, CELL),
            Silence(),
            publishing_factory.factory.said.append,
            run=smoke_tests([], ran),
        )
    assert len(ran) == 1
    assert publishing_factory.tags()["tiny"] == ran[0]


def test_one_that_cannot_be_tested_does_not_keep_the_others_from_their_tags(
    publishing_factory: PublishingFactory,
) -> None:
    ran: list[str] = []

    def test(
        project: Project, repository: Repository, staged: Staged, levels: Sequence[Level], say: Say
    ) -> SmokeRecord:
        if staged.plan.cell == CELL:
            raise EngineError("Docker is gone.", where="here", why="It was stopped.", fix="Start it.")
        return smoke_tests([], ran)(project, repository, staged, levels, say)

    outcome = publish(
        publishing_factory.project,
        publishing_factory.repository,
        plans(publishing_factory.project, CELL, SECOND),
        Silence(),
        publishing_factory.factory.said.append,
        run=test,
    )
    assert [error.what for error in outcome.refused] == ["Docker is gone."]
    assert [one.image.cell for one in outcome.promoted] == [SECOND]
    assert "tiny" not in publishing_factory.tags()


def test_a_plan_is_made_once(publishing_factory: PublishingFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    project, repository = publishing_factory.project, publishing_factory.repository
    planned = plans(project, CELL)

    def make_plan(*_: object) -> None:
        raise AssertionError("planned again")

    for module in (assemble, make):
        monkeypatch.setattr(module, "make_plan", make_plan)
    monkeypatch.setattr(recording, "locked_plans", lambda *_: planned.finished.values())
    said = publishing_factory.factory.said.append
    outcome = publish(project, repository, planned, Silence(), said, run=smoke_tests([], []))
    assert outcome.refused == []
    assert "tiny" in publishing_factory.tags()
