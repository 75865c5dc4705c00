"""A week of nights on a real registry: which jobs there are, and which tags move."""

import json
from typing import Any

import pytest

from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.history import history
from imagefactory.publish.run import PublishRun
from imagefactory.publish.staging import find_staged, stage
from imagefactory.publish.standing import Gate
from imagefactory.publish.tags import staging_tag
from tests.fixtures.failures import is_failure
from tests.fixtures.fake_github import REPOSITORY, TOKEN, FakeGitHub
from tests.fixtures.night_factory import NightFactory
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import REQUIRED, plans, promote_cells, read_record
from tests.fixtures.registries import HURRIED
from tests.fixtures.small_factory import CELL, RecordingWatcher

TARGET = f"tiny@1.0/cpu/{MACHINE}"
TINY = ["latest", "tiny", "tiny-v1.0"]
OTHER = ["other", "other-v1.0"]
BOTH = {"image": ["tiny", "other"], "smoke": ["tiny", "other"], "promote": ["tiny", "other"]}
NOT_YET = "tiny: tiny@1.0/cpu may not be published yet."
ROLLED_BACK = "tiny: tiny@1.0/cpu was rolled back from this very image."
NOTHING: dict[str, list[str]] = {"image": [], "smoke": [], "promote": []}


def only(model: str) -> dict[str, list[str]]:
    return {need: [model] for need in NOTHING}


@pytest.mark.slow
def test_a_week(night_factory: NightFactory) -> None:
    factory = night_factory.factory
    monday = night_factory.night()
    assert monday.jobs == BOTH
    assert set(monday.reasons.values()) == {"never published"}
    assert monday.moved == sorted([*TINY, *OTHER])

    tuesday = night_factory.night()  # nothing changed
    assert (tuesday.jobs, tuesday.moved) == (NOTHING, [])
    assert night_factory.plan().is_empty

    factory.release_vllm("1.1")
    wednesday = night_factory.night()
    assert wednesday.jobs == BOTH
    assert set(wednesday.reasons.values()) == {"vllm 1.0 → 1.1"}
    assert wednesday.moved == sorted([*TINY, *OTHER])

    factory.write_mod("good day")
    thursday = night_factory.night()
    assert thursday.jobs == only("tiny")
    assert thursday.reasons == {"tiny": "mod greeting changed"}
    assert thursday.moved == TINY

    factory.write_mod("good night", anchor="    return 'farewell'\n")
    night_factory.serve("other", 2000)
    friday = night_factory.night()  # the mod is broken
    assert friday.jobs == only("other")
    assert friday.reasons == {"other": "model other changed"}
    [broken] = friday.broken
    assert broken.startswith("tiny: ")
    assert friday.moved == OTHER

    factory.write_mod("good evening")
    with Repository.open("127.0.0.1:9/acme/gone", retry=HURRIED) as gone:
        saturday = night_factory.night(repository=gone)
    assert (saturday.jobs, saturday.moved) == ({}, [])
    assert saturday.failure

    sunday = night_factory.night(failing=["tiny"])
    assert sunday.jobs == only("tiny")
    assert sunday.moved == []

    again = night_factory.night()
    assert (again.jobs, again.moved) == (NOTHING, [])
    assert again.held == [NOT_YET]

    # The record of the failure is in the registry, and whoever asks for it tests again.
    key = night_factory.plan(retry=True).works[0].key
    digest = night_factory.repository.resolve(staging_tag(key))  # type: ignore[arg-type]
    assert digest is not None
    record = read_record(night_factory.repository, digest, key)
    assert record is not None
    assert record.levels["container"].outcome == "failed"
    assert [work.needs for work in night_factory.plan(retry=True).works] == [("smoke", "promote")]


@pytest.mark.slow
def test_no_night_brings_back_an_image_that_a_second_rollback_left_behind(
    night_factory: NightFactory,
) -> None:
    """Publish Z, A and B, and roll back twice: neither B nor A may return by itself."""
    z, a, b = night_factory.publish_nights(3000, 4000, 5000)
    assert night_factory.rollback().image.digest == a
    assert night_factory.rollback().image.digest == z
    for number in (5000, 4000):
        night_factory.serve("tiny", number)
        morning = night_factory.night()
        assert (morning.jobs, morning.moved) == (NOTHING, [])
        assert morning.held == [ROLLED_BACK]
        [refusal] = promote_cells(night_factory.project, night_factory.repository, CELL).refused
        assert is_failure(refusal, "held-back")
        assert night_factory.tags()["tiny"] == z
    told = history(night_factory.catalog, ["tiny"], CELL.platform)
    assert {line.image.digest: line.held for line in told} == {z: False, a: True, b: True}
    # Asking for A lifts its hold and no other.
    assert promote_cells(night_factory.project, night_factory.repository, CELL, again=True).refused == []
    night_factory.serve("tiny", 5000)
    assert night_factory.night().held == [ROLLED_BACK]
    shown = night_factory.invoke("history")
    assert f"{b[7:19]} is held back" in shown.stderr
    assert a[7:19] not in shown.stderr


@pytest.mark.slow
def test_a_night_finishes_a_rollback_that_was_interrupted(night_factory: NightFactory) -> None:
    z, a = night_factory.publish_nights(3000, 4000)
    broken = night_factory.repository.require_manifest(a)
    night_factory.rollback()
    night_factory.repository.put_manifest(broken.body, broken.media_type, "tiny")
    morning = night_factory.night()
    assert morning.jobs == {"image": [], "smoke": [], "promote": ["tiny"]}
    assert night_factory.tags()["tiny"] == z
    assert night_factory.night().held == [ROLLED_BACK]


def test_a_night_restores_moved_tags_and_does_not_repeat_what_an_interrupted_one_did(
    night_factory: NightFactory,
) -> None:
    night_factory.night()
    other = night_factory.repository.require_manifest("other")
    night_factory.repository.put_manifest(other.body, other.media_type, "tiny")
    morning = night_factory.night()
    assert morning.jobs == {"image": [], "smoke": [], "promote": ["tiny"]}
    assert morning.moved == ["tiny"]
    assert len(night_factory.catalog.images) == 2
    night_factory.serve("tiny", 3000)
    project = night_factory.project
    stage(PublishRun(Gate(project, night_factory.repository), print, watch=RecordingWatcher()), plans(project, CELL))
    [work] = night_factory.plan().works
    assert work.needs == ("smoke", "promote")
    assert work.reason == "model tiny changed; pushed, but not tested yet"


def ask(night_factory: NightFactory, **env: str) -> Any:
    done = night_factory.invoke("ci.plan", "--json", **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_plan_command_lists_exactly_the_jobs_that_an_edit_causes(night_factory: NightFactory) -> None:
    night_factory.night()
    quiet = ask(night_factory)
    assert all(jobs == [] for jobs in quiet["jobs"].values())
    assert quiet["cells"] == []
    night_factory.factory.write_mod("good day")
    night_factory.record()
    output, summary = (night_factory.factory.folder / name for name in ("output", "summary"))
    edited = ask(night_factory, GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(summary))
    assert [(cell["target"], cell["reason"]) for cell in edited["cells"]] == [(TARGET, "mod greeting changed")]
    told = dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())
    [job] = json.loads(told["image"])
    assert (job["targets"], job["runner"]) == (TARGET, "ubuntu-24.04")
    assert told["targets"] == TARGET
    assert "mod greeting changed" in summary.read_text("utf-8")


@pytest.fixture(autouse=True)
def _no_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def command(night_factory: NightFactory, github: FakeGitHub, *arguments: str) -> str:
    """Run a command as a step of the workflow does."""
    done = night_factory.invoke(
        *arguments,
        FACTORY_GITHUB_API=github.url,
        GITHUB_REPOSITORY=REPOSITORY,
        GITHUB_TOKEN=TOKEN,
        GITHUB_OUTPUT=str(night_factory.factory.folder / "output"),
        GITHUB_STEP_SUMMARY=str(night_factory.factory.folder / "summary"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_a_night_end_with_tags_and_a_history_page(
    night_factory: NightFactory, fake_github: FakeGitHub
) -> None:
    [pushed] = command(night_factory, fake_github, "push", "--target", TARGET).splitlines()
    digest = pushed.partition("@")[2]
    project = night_factory.project
    run = PublishRun(Gate(project, night_factory.repository), print)
    staged = find_staged(run, plans(project, CELL)).finished[CELL]
    night_factory.tested(staged, REQUIRED)
    command(night_factory, fake_github, "promote", "--target", TARGET, "--subjects", "subjects.txt")
    assert f"| `{TARGET}` | `{digest}` |" in (night_factory.factory.folder / "summary").read_text()
    subjects = (night_factory.factory.root / "subjects.txt").read_text()
    assert subjects == f"{digest.removeprefix('sha256:')}  {night_factory.repository.reference.name}\n"
    assert "promoted=1" in (night_factory.factory.folder / "output").read_text().splitlines()
    assert set(night_factory.tags().values()) == {digest}
    command(night_factory, fake_github, "ci.record")
    files = fake_github.files("records")
    assert digest in files["README.md"]
    [notes] = [text for path, text in files.items() if path.startswith("notes/")]
    assert digest in notes
    assert command(night_factory, fake_github, "ci.record").strip() == "nothing new"
