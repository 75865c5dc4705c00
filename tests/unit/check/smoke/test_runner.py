"""Smoke runs: levels that cannot run, and tests that do not end."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.smoke.assignment import Assignment, assigned
from imagefactory.check.smoke.containers import ContainerError, Containers, docker
from imagefactory.check.smoke.record import LEVELS, Level, LevelResult, TestResult
from imagefactory.check.smoke.runner import _follow, _level, refuse_failed
from imagefactory.check.smoke.subject import Subject
from imagefactory.errors import EngineError
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, scripted
from tests.fixtures.serving import SERVING
from tests.unit.check.smoke.test_record import record

DIGEST = Digest(f"sha256:{'a' * 64}")
OTHER = Digest(f"sha256:{'b' * 64}")


def subject(**cell: str) -> Subject:
    told = {"model": "gemma4-31b", "version": "0.32.0", "arch": "rtx5090", "platform": "linux/amd64"} | cell
    facts = {"cell": Cell(**told), "digest": DIGEST, "config": OTHER, "plan_key": Sha256("c" * 64)}
    return Subject(name="x", layout=Path("x"), **facts)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend to have a daemon on amd64 with every image."""
    monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("20.10.24", "amd64"))
    monkeypatch.setattr(daemon, "inspect", {OTHER: {}}.get)
    monkeypatch.setattr(Containers, "remove_all", lambda _: None)


def says(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str = "", stderr: str = "") -> None:
    done = subprocess.CompletedProcess(["docker"], code, stdout, stderr)
    monkeypatch.setattr(Containers, "once", lambda *_, **__: done)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout without locks."""
    shutil.copy(SERVING, tmp_path / "matrix.yaml")
    return Project(tmp_path)


def hindrances(project: Project, tested: Subject, *levels: Level) -> dict[Level, str]:
    with assigned(project, tested, levels) as assignment:
        return assignment.hindered


def test_without_an_engine_only_the_static_level_can_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = EngineError("engine-failed", "It does not answer.", where="here", why="No\nsocket.", fix="x")
    monkeypatch.setattr(daemon, "ask", Mock(side_effect=silent))
    found = hindrances(project, subject(), *LEVELS)
    assert found == dict.fromkeys(("container", "serve", "gpu"), "It does not answer. No socket.")


def test_an_image_that_cannot_be_downloaded_is_not_called_faulty(project: Project) -> None:
    with scripted(lambda _: Answer(status=404)) as registry:
        tested = subject().model_copy(update={"name": f"{registry.address}/o/n@{DIGEST}", "layout": None})
        found = hindrances(project, tested, "static")
    assert "does not have that content" in found["static"]


SPARK = {"arch": "gb10", "platform": "linux/arm64"}
FOREIGN = "the image is for linux/arm64 and the engine runs on linux/amd64"


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("level", "cell", "why"),
    [
        ("container", SPARK, FOREIGN),
        ("gpu", SPARK, FOREIGN),
        ("serve", {"model": "tiny", "arch": "cpu", "platform": "linux/arm64"}, FOREIGN),
        ("serve", {**SPARK, "version": "0.28.0"}, f"tiny@0.28.0/cpu is not locked for linux/amd64, and {FOREIGN}"),
        ("serve", {**SPARK, "version": "nightly"}, f"vLLM nightly has no cell for a CPU on linux/amd64, and {FOREIGN}"),
        ("gpu", {"model": "tiny", "arch": "cpu"}, "cpu has no GPU"),
    ],
)
def test_a_level_that_cannot_run_says_why(project: Project, level: Level, cell: dict[str, str], why: str) -> None:
    assert hindrances(project, subject(**cell), level) == {level: why}


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("code", "printed", "why"),
    [
        (
            *(125, "could not select driver \"\"\nSee 'docker run --help'."),
            'containers see no NVIDIA GPU here (could not select driver "")',
        ),
        (0, "NVIDIA H200, 9.0\n", "the image is for compute capability 12.0; here is NVIDIA H200 (9.0)"),
    ],
)
def test_a_missing_gpu_or_one_of_another_arch_is_not_used(
    project: Project, monkeypatch: pytest.MonkeyPatch, code: int, printed: str, why: str
) -> None:
    says(monkeypatch, code, printed)
    assert hindrances(project, subject(), "gpu") == {"gpu": why}


@pytest.mark.usefixtures("engine")
def test_a_gpu_of_the_arch_is_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, 0, "NVIDIA GeForce RTX 5090, 12.0\n")
    with assigned(project, subject(), ["gpu"]) as assignment:
        assert assignment.hindered == {}
        assert (assignment.image, assignment.gpus) == (OTHER, ("NVIDIA GeForce RTX 5090",))


@pytest.mark.usefixtures("engine")
def test_an_image_without_one_for_cpus_serves_by_itself_on_its_gpu(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, 0, "NVIDIA GeForce RTX 5090, 12.0\n")
    with assigned(project, subject(), ["serve"]) as assignment:
        assert (assignment.hindered, assignment.gpus) == ({}, ("NVIDIA GeForce RTX 5090",))
        serving = assignment.serving
        assert serving is not None
        assert (serving.on_gpu, serving.image, serving.digest) == (True, OTHER, DIGEST)
        assert serving.variables["SERVED_MODEL_NAME"] == "tiny"


@pytest.mark.usefixtures("engine")
def test_loaded_images_are_removed_after_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(daemon, "inspect", {}.get)
    monkeypatch.setattr(daemon, "load", lambda *_: OTHER)
    monkeypatch.setattr(daemon, "remove_name", removed.append)
    tested = subject().model_copy(update={"layout": project.root})
    with assigned(project, tested, ["container"]):
        assert removed == []
    assert removed == [f"imagefactory-smoke:{'b' * 12}"]


def planned(name: str) -> dict[str, Any]:
    return {"kind": "planned", "level": "static", "name": name, "means": "it is broken"}


def ended(name: str, outcome: str = "passed", message: str = "") -> dict[str, Any]:
    facts = {"outcome": outcome, "message": message, "seconds": 1.0, "measured": {"figure": 2}}
    return {"kind": "ended", "level": "static", "name": name, **facts}


def judged(entries: list[dict[str, Any]], tmp_path: Path, code: int = 0) -> LevelResult:
    (tmp_path / "log.txt").write_text("something\nINTERNALERROR> broken\n")
    assignment = Assignment(root=tmp_path, run="x", subject=subject())
    return _level("static", assignment, entries, code, tmp_path)


def test_a_level_passes_only_if_its_tests_ran(tmp_path: Path) -> None:
    found = judged([planned("one"), ended("one")], tmp_path)
    [test] = found.tests
    assert (found.outcome, test.means, test.measured) == ("passed", "it is broken", {"figure": 2.0})
    found = judged([planned("one"), planned("two"), ended("one")], tmp_path, code=-9)
    assert (found.outcome, found.why) == ("not-run", "two: the test run ended before this test did")
    found = judged([], tmp_path, code=3)
    why = "pytest ended with code 3 before any test: INTERNALERROR> broken"
    assert (found.outcome, found.why) == ("not-run", why)


def test_results_are_reported_as_they_arrive(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    lines = [
        json.dumps(entry) for entry in (planned("one"), ended("one"), ended("two", "failed", "broken"), ended("six"))
    ]
    writing = "open(sys.argv[1], 'a').write(line + '\\n'); time.sleep(0.1)"
    program = f"import sys, time\nfor line in sys.argv[2:]:\n {writing}"
    said: list[str] = []
    with subprocess.Popen([sys.executable, "-c", program, str(results), *lines]) as process:
        seen = _follow(process, results, said.append)
    assert len(seen) == 4
    passed = "passed (1.0 s, figure 2)"
    assert said == [
        *(f"static: one: {passed}", "static: two: failed (1.0 s, figure 2): broken", f"static: six: {passed}")
    ]


FAILED = LevelResult.of([TestResult(name="one", outcome="failed", message="broken")])
PASSED = LevelResult.of([TestResult(name="one", outcome="passed")])


def test_a_level_of_this_run_fails_the_command_if_it_failed_or_was_requested(tmp_path: Path) -> None:
    with raises("smoke-failed") as caught:
        refuse_failed(record({"static": FAILED}), ["static"], by_name=False, folder=tmp_path)
    assert caught.value.why == "static: failed (one: broken)"
    found = record({"static": PASSED, "container": LevelResult.not_run("no engine"), "serve": FAILED})
    refuse_failed(found, ["static", "container"], by_name=False, folder=tmp_path)
    with raises("smoke-failed", match="did not pass"):
        refuse_failed(found, ["container"], by_name=True, folder=tmp_path)


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a script as the docker command."""

    def write(script: str) -> None:
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return write


def test_a_failing_docker_command_is_explained(
    fake_docker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_docker('echo "exec: /none: no such file" >&2; exit 127')
    with pytest.raises(ContainerError, match="does not start: exec: /none: no such file"):
        Containers("x").start("image")
    fake_docker("exec sleep 60")
    done = docker("run", timeout=0.2)
    assert (done.returncode, done.stderr) == (124, "timed out after 0 s")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert docker("version").returncode == 127
