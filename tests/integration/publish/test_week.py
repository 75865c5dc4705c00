"""A week of nights on a real registry: which jobs there are, and which tags move."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from imagefactory.environment.progress import Say
from imagefactory.errors.registry import RegistryUnreachableError
from imagefactory.locks.project import Project
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.pipeline import smoke_test
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import attach_record, read_records
from imagefactory.publish.staging import Staged, find_staged, stage
from imagefactory.publish.tags import staging_tag
from imagefactory.smoke.record import Level, SmokeRecord
from tests.fixtures.fake_github import FakeGitHub
from tests.fixtures.night_factory import CELL, NightFactory
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import plans
from tests.fixtures.registries import HURRIED
from tests.fixtures.small_factory import Silence

TARGET = f"tiny@1.0/cpu/{MACHINE}"
TINY = ["latest", "tiny", "tiny-v1.0"]
OTHER = ["other", "other-v1.0"]
BOTH = {"image": ["tiny", "other"], "smoke": ["tiny", "other"], "promote": ["tiny", "other"]}
NOTHING: dict[str, list[str]] = {"image": [], "smoke": [], "promote": []}


def only(model: str) -> dict[str, list[str]]:
    return {need: [model] for need in NOTHING}


def test_a_week(night_factory: NightFactory) -> None:
    factory = night_factory.factory
    monday = night_factory.night("Mon", "the first night")
    assert monday.jobs == BOTH
    assert set(monday.reasons.values()) == {"never published"}
    assert monday.moved == sorted([*TINY, *OTHER])

    tuesday = night_factory.night("Tue", "nothing changed")
    assert (tuesday.jobs, tuesday.moved) == (NOTHING, [])
    assert night_factory.plan().is_empty

    factory.release_vllm("1.1")
    wednesday = night_factory.night("Wed", "vLLM 1.1")
    assert wednesday.jobs == BOTH
    assert set(wednesday.reasons.values()) == {"vllm 1.0 → 1.1"}
    assert wednesday.moved == sorted([*TINY, *OTHER])

    factory.write_mod("good day")
    thursday = night_factory.night("Thu", "a mod edited")
    assert thursday.jobs == only("tiny")
    assert thursday.reasons == {"tiny": "mod greeting changed"}
    assert thursday.moved == TINY

    factory.write_mod("good night", anchor="    return 'farewell'\n")
    factory.serve("other", 2000)
    friday = night_factory.night("Fri", "the mod broken; another model changed")
    assert friday.jobs == only("other")
    assert friday.reasons == {"other": "model other changed"}
    [broken] = friday.broken
    assert broken.startswith("tiny: ")
    assert friday.moved == OTHER

    factory.write_mod("good evening")
    with Repository.open("127.0.0.1:9/acme/gone", retry=HURRIED) as gone:
        saturday = night_factory.night("Sat", "the mod mended; the registry down", repository=gone)
    assert (saturday.jobs, saturday.moved) == ({}, [])
    assert saturday.failure

    sunday = night_factory.night("Sun", "the registry back; the smoke test of tiny fails", failing=["tiny"])
    assert sunday.jobs == only("tiny")
    assert sunday.moved == []

    again = night_factory.night("Mon", "nothing changed")
    assert (again.jobs, again.moved) == (NOTHING, [])
    assert again.held == ["tiny: failed its smoke tests"]
    print(night_factory.table())  # noqa: T201 - `pytest -s` shows the week

    # The record of the failure is in the registry, and whoever asks for it tests again.
    key = night_factory.plan(retry=True).works[0].key
    digest = night_factory.repository.resolve(staging_tag(key))  # type: ignore[arg-type]
    assert digest is not None
    record = read_records(night_factory.repository, digest, key)  # type: ignore[arg-type]
    assert record is not None
    assert record.levels["container"].outcome == "failed"
    assert [work.needs for work in night_factory.plan(retry=True).works] == [("smoke", "promote")]


def test_what_an_interrupted_night_did_is_not_done_again(night_factory: NightFactory) -> None:
    night = night_factory.plan()
    night_factory.night("one", "complete")
    night_factory.factory.serve("tiny", 3000)
    project, repository = night_factory.project, night_factory.repository
    stage(project, repository, plans(project, CELL), Silence(), night_factory.factory.said.append)
    [work] = night_factory.plan().works
    assert work.needs == ("smoke", "promote")
    assert work.reason == "model tiny changed; pushed, but not tested yet"
    assert len(night.works) == 2


def test_a_level_that_passed_is_not_tested_again_by_another_night(night_factory: NightFactory) -> None:
    project, repository = night_factory.project, night_factory.repository
    night_factory.night("one", "the smoke test of tiny fails", failing=["tiny"])
    [staged] = find_staged(project, repository, plans(project, CELL)).finished.values()
    asked: list[Sequence[Level]] = []

    def run(_p: Project, _r: Repository, one: Staged, levels: Sequence[Level], _s: Say) -> SmokeRecord:
        asked.append(levels)
        return night_factory.tested(project, repository, one, levels, print)

    def test(levels: Sequence[Level] = ()) -> SmokeRecord | None:
        say = night_factory.factory.said.append
        return smoke_test(project, repository, staged, say, levels=levels, must_pass=True, run=run)

    assert test(["static"]) is None
    record = test()
    assert asked == [["container"]]
    assert record is not None
    attach_record(repository, record.model_copy(update={"started": record.started + timedelta(days=1)}))
    assert [work.needs for work in night_factory.plan().works] == [("promote",)]


def test_an_image_that_was_rolled_back_from_is_left_alone(night_factory: NightFactory) -> None:
    night_factory.night("one", "first")
    night_factory.factory.serve("tiny", 3000)
    night_factory.night("two", "changed")
    rollback(night_factory.project, night_factory.repository, CELL)
    morning = night_factory.night("three", "rolled back")
    assert (morning.jobs, morning.moved) == (NOTHING, [])
    assert morning.held == ["tiny: rolled back"]
    night_factory.factory.serve("tiny", 4000)
    assert night_factory.night("four", "mended").moved == TINY


def test_tags_that_somebody_moved_are_put_back(night_factory: NightFactory) -> None:
    night_factory.night("one", "first")
    other = night_factory.repository.require_manifest("other")
    night_factory.repository.put_manifest(other.body, other.media_type, "tiny")
    morning = night_factory.night("two", "a tag was moved by hand")
    assert morning.jobs == {"image": [], "smoke": [], "promote": ["tiny"]}
    assert morning.moved == ["tiny"]
    assert len(read_catalog(night_factory.repository).catalog.images) == 2


def ask(night_factory: NightFactory, *arguments: str, **env: str) -> dict[str, Any]:
    environment = {**night_factory.factory.environment(), "FACTORY_REGISTRY": os.environ["FACTORY_REGISTRY"]}
    environment |= {"DOCKER_CONFIG": os.environ["DOCKER_CONFIG"], **env}
    done = subprocess.run(
        night_factory.factory.command("ci.plan", "--json", *arguments),
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_command_lists_no_job_when_all_is_there_and_exactly_the_affected_after_an_edit(
    night_factory: NightFactory,
) -> None:
    night_factory.night("one", "first")
    quiet = ask(night_factory)
    assert all(jobs == [] for jobs in quiet["jobs"].values())
    assert quiet["cells"] == []
    night_factory.factory.write_mod("good day")
    output, summary = (night_factory.factory.folder / name for name in ("output", "summary"))
    edited = ask(night_factory, GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(summary))
    assert [(cell["target"], cell["reason"]) for cell in edited["cells"]] == [
        (TARGET, "mod greeting changed")
    ]
    told = dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())
    [job] = json.loads(told["image"])
    assert (job["targets"], job["runner"]) == (TARGET, "ubuntu-24.04")
    assert told["targets"] == TARGET
    assert "mod greeting changed" in summary.read_text("utf-8")


def test_a_registry_that_is_down_ends_the_run_with_its_own_code(night_factory: NightFactory) -> None:
    environment = {**night_factory.factory.environment(), "FACTORY_REGISTRY": "127.0.0.1:9/acme/gone"}
    done = subprocess.run(
        night_factory.factory.command("ci.plan"), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == RegistryUnreachableError.exit_code
    assert done.stdout == ""


@pytest.fixture(autouse=True)
def _no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def command(night_factory: NightFactory, github: FakeGitHub, *arguments: str) -> str:
    """Run a command as a step of the workflow does."""
    environment = {
        **night_factory.factory.environment(),
        "FACTORY_REGISTRY": os.environ["FACTORY_REGISTRY"],
        "DOCKER_CONFIG": os.environ["DOCKER_CONFIG"],
        "FACTORY_GITHUB_API": github.url,
        "GITHUB_REPOSITORY": "acme/factory",
        "GITHUB_TOKEN": "a-token",
        "GITHUB_OUTPUT": str(night_factory.factory.folder / "output"),
        "GITHUB_STEP_SUMMARY": str(night_factory.factory.folder / "summary"),
    }
    done = subprocess.run(
        night_factory.factory.command(*arguments),
        env=environment,
        cwd=night_factory.factory.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_a_night_end_with_tags_and_a_history_page(
    night_factory: NightFactory, fake_github: FakeGitHub
) -> None:
    [pushed] = command(night_factory, fake_github, "ci.push", "--target", TARGET).splitlines()
    digest = pushed.split()[1]
    project, repository = night_factory.project, night_factory.repository
    staged = find_staged(project, repository, plans(project, CELL)).finished[CELL]
    night_factory.tested(project, repository, staged, ("static", "container", "serve"), print)
    assert "container passed" in command(night_factory, fake_github, "ci.summary", "--records", "build/smoke")
    shown = command(
        night_factory, fake_github, "ci.promote", "--target", TARGET, "--subjects", "subjects.txt"
    )
    assert f"| `{TARGET}` | `{digest}` |" in shown
    subjects = (night_factory.factory.root / "subjects.txt").read_text()
    assert subjects == f"{digest.removeprefix('sha256:')}  {night_factory.repository.reference.name}\n"
    assert "promoted=1" in (night_factory.factory.folder / "output").read_text().splitlines()
    assert set(night_factory.tags().values()) == {digest}
    command(night_factory, fake_github, "ci.record")
    files = fake_github.files("records")
    assert digest in files["README.md"]
    assert json.loads(files["catalog.json"])["images"][0]["digest"] == digest
    assert command(night_factory, fake_github, "ci.record").strip() == "nothing new"
    needs = json.dumps({"plan": {"result": "success"}})
    assert "| plan | success |" in command(
        night_factory, fake_github, "ci.status", "--needs", needs, "--broken", "0"
    )
