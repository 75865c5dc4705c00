"""A week of nights on a real registry: which jobs there are, and which tags move."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from imagefactory.errors.registry import RegistryUnreachableError
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import read_records
from imagefactory.publish.tags import staging_tag
from tests.fixtures.fake_github import FakeGitHub
from tests.fixtures.nights import CELL, Nights
from tests.fixtures.platforms import MACHINE
from tests.fixtures.registries import HURRIED

TARGET = f"tiny@1.0/cpu/{MACHINE}"
TINY = ["latest", "tiny", "tiny-v1.0"]
OTHER = ["other", "other-v1.0"]
BOTH = {"image": ["tiny", "other"], "smoke": ["tiny", "other"], "promote": ["tiny", "other"]}
NOTHING: dict[str, list[str]] = {"image": [], "smoke": [], "promote": []}


def only(model: str) -> dict[str, list[str]]:
    return {need: [model] for need in NOTHING}


def test_a_week(nights: Nights) -> None:
    factory = nights.factory
    monday = nights.night("Mon", "the first night")
    assert monday.jobs == BOTH
    assert set(monday.reasons.values()) == {"never published"}
    assert monday.moved == sorted([*TINY, *OTHER])

    tuesday = nights.night("Tue", "nothing changed")
    assert (tuesday.jobs, tuesday.moved) == (NOTHING, [])
    assert nights.plan().is_empty

    factory.release_vllm("1.1")
    wednesday = nights.night("Wed", "vLLM 1.1")
    assert wednesday.jobs == BOTH
    assert set(wednesday.reasons.values()) == {"vllm 1.0 → 1.1"}
    assert wednesday.moved == sorted([*TINY, *OTHER])

    factory.write_mod("good day")
    thursday = nights.night("Thu", "a mod edited")
    assert thursday.jobs == only("tiny")
    assert thursday.reasons == {"tiny": "mod greeting changed"}
    assert thursday.moved == TINY

    factory.write_mod("good night", anchor="    return 'farewell'\n")
    factory.serve("other", 2000)
    friday = nights.night("Fri", "the mod broken; another model changed")
    assert friday.jobs == only("other")
    assert friday.reasons == {"other": "model other changed"}
    [broken] = friday.broken
    assert broken.startswith("tiny: ")
    assert friday.moved == OTHER

    factory.write_mod("good evening")
    with Repository.open("127.0.0.1:9/acme/gone", retry=HURRIED) as gone:
        saturday = nights.night("Sat", "the mod mended; the registry down", repository=gone)
    assert (saturday.jobs, saturday.moved) == ({}, [])
    assert saturday.failure

    sunday = nights.night("Sun", "the registry back; the smoke test of tiny fails", failing=["tiny"])
    assert sunday.jobs == only("tiny")
    assert sunday.moved == []

    again = nights.night("Mon", "nothing changed")
    assert (again.jobs, again.moved) == (NOTHING, [])
    assert again.held == ["tiny: failed its smoke tests"]
    print(nights.table())  # noqa: T201 - `pytest -s` shows the week

    # The record of the failure is in the registry, and whoever asks for it tests again.
    key = nights.plan(retry=True).works[0].key
    digest = nights.repository.resolve(staging_tag(key))  # type: ignore[arg-type]
    assert digest is not None
    record = read_records(nights.repository, digest, key)  # type: ignore[arg-type]
    assert record is not None
    assert record.levels["container"].outcome == "failed"
    assert [work.needs for work in nights.plan(retry=True).works] == [("smoke", "promote")]


def test_what_an_interrupted_night_did_is_not_done_again(nights: Nights) -> None:
    night = nights.plan()
    nights.night("one", "complete")
    nights.factory.serve("tiny", 3000)
    from imagefactory.publish.automation.stages import push_each  # noqa: PLC0415
    from tests.fixtures.small_factory import Silence  # noqa: PLC0415

    push_each(nights.project, nights.repository, [CELL], Silence(), nights.factory.said.append)
    [work] = nights.plan().works
    assert work.needs == ("smoke", "promote")
    assert work.reason == "model tiny changed; pushed, but not tested yet"
    assert len(night.works) == 2


def test_an_image_that_was_rolled_back_from_is_left_alone(nights: Nights) -> None:
    nights.night("one", "first")
    nights.factory.serve("tiny", 3000)
    nights.night("two", "changed")
    rollback(nights.project, nights.repository, CELL)
    morning = nights.night("three", "rolled back")
    assert (morning.jobs, morning.moved) == (NOTHING, [])
    assert morning.held == ["tiny: rolled back"]
    nights.factory.serve("tiny", 4000)
    assert nights.night("four", "mended").moved == TINY


def test_tags_that_somebody_moved_are_put_back(nights: Nights) -> None:
    nights.night("one", "first")
    other = nights.repository.require_manifest("other")
    nights.repository.put_manifest(other.body, other.media_type, "tiny")
    morning = nights.night("two", "a tag was moved by hand")
    assert morning.jobs == {"image": [], "smoke": [], "promote": ["tiny"]}
    assert morning.moved == ["tiny"]
    assert len(read_catalog(nights.repository).catalog.images) == 2


def ask(nights: Nights, *arguments: str, **env: str) -> dict[str, Any]:
    environment = {**nights.factory.environment(), "FACTORY_REGISTRY": os.environ["FACTORY_REGISTRY"]}
    environment |= {"DOCKER_CONFIG": os.environ["DOCKER_CONFIG"], **env}
    done = subprocess.run(
        nights.factory.command("ci.plan", "--json", *arguments),
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_command_lists_no_job_when_all_is_there_and_exactly_the_affected_after_an_edit(
    nights: Nights,
) -> None:
    nights.night("one", "first")
    quiet = ask(nights)
    assert all(jobs == [] for jobs in quiet["jobs"].values())
    assert quiet["cells"] == []
    nights.factory.write_mod("good day")
    output, summary = (nights.factory.folder / name for name in ("output", "summary"))
    edited = ask(nights, GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(summary))
    assert [(cell["target"], cell["reason"]) for cell in edited["cells"]] == [
        (TARGET, "mod greeting changed")
    ]
    told = dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())
    [job] = json.loads(told["image"])
    assert (job["targets"], job["runner"]) == (TARGET, "ubuntu-24.04")
    assert told["targets"] == TARGET
    assert "mod greeting changed" in summary.read_text("utf-8")


def test_a_registry_that_is_down_ends_the_run_with_its_own_code(nights: Nights) -> None:
    environment = {**nights.factory.environment(), "FACTORY_REGISTRY": "127.0.0.1:9/acme/gone"}
    done = subprocess.run(
        nights.factory.command("ci.plan"), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == RegistryUnreachableError.exit_code
    assert done.stdout == ""


@pytest.fixture(autouse=True)
def _no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def command(nights: Nights, github: FakeGitHub, *arguments: str) -> str:
    """Run a command as a step of the workflow does."""
    environment = {
        **nights.factory.environment(),
        "FACTORY_REGISTRY": os.environ["FACTORY_REGISTRY"],
        "DOCKER_CONFIG": os.environ["DOCKER_CONFIG"],
        "FACTORY_GITHUB_API": github.url,
        "GITHUB_REPOSITORY": "acme/factory",
        "GITHUB_TOKEN": "a-token",
        "GITHUB_OUTPUT": str(nights.factory.folder / "output"),
        "GITHUB_STEP_SUMMARY": str(nights.factory.folder / "summary"),
    }
    done = subprocess.run(
        nights.factory.command(*arguments),
        env=environment,
        cwd=nights.factory.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_a_night_end_with_tags_and_a_history_page(
    nights: Nights, fake_github: FakeGitHub
) -> None:
    [pushed] = command(nights, fake_github, "ci.push", "--target", TARGET).splitlines()
    digest = pushed.split()[1]
    nights.tested(nights.project, nights.repository, CELL, ("static", "container", "serve"), print)
    assert "container passed" in command(nights, fake_github, "ci.summary", "--records", "build/smoke")
    shown = command(nights, fake_github, "ci.promote", "--target", TARGET, "--subjects", "subjects.txt")
    assert f"| `{TARGET}` | `{digest}` |" in shown
    subjects = (nights.factory.root / "subjects.txt").read_text()
    assert subjects == f"{digest.removeprefix('sha256:')}  {nights.repository.reference.name}\n"
    assert "promoted=1" in (nights.factory.folder / "output").read_text().splitlines()
    assert set(nights.tags().values()) == {digest}
    command(nights, fake_github, "ci.record")
    files = fake_github.files("records")
    assert digest in files["README.md"]
    assert json.loads(files["catalog.json"])["images"][0]["digest"] == digest
    assert command(nights, fake_github, "ci.record").strip() == "nothing new"
    needs = json.dumps({"plan": {"result": "success"}})
    assert "| plan | success |" in command(
        nights, fake_github, "ci.status", "--needs", needs, "--broken", "0"
    )
