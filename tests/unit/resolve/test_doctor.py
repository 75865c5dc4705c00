"""The doctor: looks at everything, never falls over, and has a remedy for what is not well."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.environment.setup import STAMPS
from imagefactory.locks.project import Project
from imagefactory.resolve import doctor
from imagefactory.resolve.doctor import Diagnosis, examine
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian mirror in a folder."""
    folder = tmp_path / "debian"
    release = folder / "dists" / "bookworm" / "InRelease"
    release.parent.mkdir(parents=True)
    release.write_text("Suite: oldstable\n")
    monkeypatch.setenv("FACTORY_DEBIAN_MIRROR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def index(
    simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> SimpleIndex:
    simple_index.add(wheel_factory("vllm"))
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url.replace("//", "//user:secret@"))
    return simple_index


def look(store: Store | None = None) -> dict[str, Diagnosis]:
    project = Project(REPOSITORY, store=store or Store())
    found = list(examine(project))
    for finding in found:
        assert finding.detail
        assert finding.remedy or finding.health == "ok", f"{finding.subject} has no remedy"
    return {finding.subject.split(" (")[0]: finding for finding in found}


@pytest.mark.usefixtures("mirror")
def test_a_healthy_machine_is_said_to_be_so() -> None:
    found = look()
    assert set(found) == {
        "system",
        "environment",
        "uv",
        "container engine",
        "package index",
        "Debian mirror",
        "cache",
        "free disk",
        "checkout",
        "test programs",
    }
    for subject in ("system", "uv", "package index", "Debian mirror", "cache", "checkout"):
        assert found[subject].health == "ok", found[subject]
    assert sys.executable in found["system"].detail
    assert "secret" not in found["package index"].detail


@pytest.mark.usefixtures("mirror")
def test_an_index_without_vllm_or_without_an_answer_is_a_failure(
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files.clear()
    assert look()["package index"].health == "failed"
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert look()["package index"].health == "failed"


def test_a_mirror_without_the_release_is_a_failure(mirror: Path) -> None:
    shutil.rmtree(mirror / "dists")
    assert look()["Debian mirror"].health == "failed"


@pytest.mark.usefixtures("mirror")
def test_without_docker_only_a_warning_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert look()["container engine"].health == "warning"


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize("script", ["exit 1", "sleep 60"])
def test_a_docker_that_fails_or_hangs_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\nexec {script}\n" if "sleep" in script else f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _name: str(docker))
    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    assert look()["container engine"].health == "warning"


@pytest.mark.usefixtures("mirror")
def test_a_broken_uv_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: list[str]) -> str:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(doctor, "_output", broken)
    assert look()["uv"].health == "failed"


@pytest.mark.usefixtures("mirror")
def test_a_cache_that_is_no_folder_and_a_full_disk_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    monkeypatch.setattr(doctor, "NEEDED_DISK", 10**18)
    found = look(Store(occupied / "cache"))
    assert found["cache"].health == "failed"
    assert found["free disk"].health == "warning"


@pytest.mark.usefixtures("mirror")
def test_an_environment_is_compared_with_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert look()["environment"].health == "warning", "not one of ours"
    stamps = tmp_path / "venv" / STAMPS
    shutil.copytree(REPOSITORY / "locks" / "environment", stamps)
    assert look()["environment"].detail == "as locked (run, smoke, sign, test)"
    (stamps / "run.txt").write_text("older")
    assert look()["environment"].health == "failed"


@pytest.mark.usefixtures("mirror")
@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_a_system_that_is_not_tested_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert look()["system"].health == "warning"


@pytest.mark.usefixtures("mirror")
def test_programs_that_tests_miss_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "skopeo" else f"/bin/{name}")
    found = look()["test programs"]
    assert found.health == "warning"
    assert found.remedy.endswith("apt-get install skopeo")
