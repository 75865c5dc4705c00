"""Tests the doctor: every check runs, and whatever is wrong comes with a remedy."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from imagefactory.cli import doctor
from imagefactory.cli.doctor import Diagnosis, examine
from imagefactory.environment.setup import FOLDER, SETS, STAMPS
from imagefactory.offline.unpack import COMMIT
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

LAST_DAY = date(2026, 6, 10)
Look = Callable[..., dict[str, Diagnosis]]


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a Debian mirror in a folder."""
    folder = tmp_path / "debian"
    release = folder / "dists" / "bookworm" / "InRelease"
    release.parent.mkdir(parents=True)
    release.write_text("Suite: oldstable\n")
    monkeypatch.setenv("FACTORY_DEBIAN_MIRROR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def index(simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch) -> SimpleIndex:
    simple_index.add(wheel_factory("vllm"))
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url.replace("//", "//user:secret@"))
    return simple_index


@pytest.fixture
def look(locked_checkout: Checkout) -> Look:
    """Examine a small checkout; everything that is not well must have a remedy."""

    locked_checkout.edit_matrix('"2.36"\n', f'"2.36"\n    supported_until: {LAST_DAY}\n')

    def examine_all(store: Store | None = None, today: date = LAST_DAY) -> dict[str, Diagnosis]:
        found = list(examine(Project(locked_checkout.root, store=store or Store()), today))
        for finding in found:
            assert finding.detail
            assert finding.remedy or finding.health == "ok", f"{finding.subject} has no remedy"
        return {finding.subject.split(" (")[0]: finding for finding in found}

    return examine_all


def test_healthy_machine_passes(look: Look) -> None:
    found = look()
    healthy = {"system", "uv", "package index", "Debian mirror", "Debian support", "cache", "checkout"}
    others = {
        "environment",
        "container engine",
        "buildx",
        "GPU",
        "container toolkit",
        "free disk",
        "test programs",
        "host",
    }
    assert set(found) == {*healthy, *others}
    assert {found[subject].health for subject in healthy} == {"ok"}, found
    assert sys.executable in found["system"].detail
    assert "secret" not in found["package index"].detail


def test_index_or_mirror_without_the_packages_or_without_a_response_fails(
    look: Look, index: SimpleIndex, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files.clear()
    shutil.rmtree(mirror / "dists")
    found = look()
    assert (found["package index"].health, found["Debian mirror"].health) == ("failed", "failed")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert look()["package index"].health == "failed"


def test_a_checkout_that_was_brought_needs_no_network(
    look: Look, locked_checkout: Checkout, index: SimpleIndex, mirror: Path
) -> None:
    index.files.clear()
    shutil.rmtree(mirror / "dists")
    (locked_checkout.root / COMMIT).parent.mkdir(parents=True)
    (locked_checkout.root / COMMIT).write_text("a" * 40)
    found = look()
    assert found["network"].health == "ok"
    assert not {"package index", "Debian mirror"} & set(found)


def test_debian_past_its_support_is_a_warning(look: Look, locked_checkout: Checkout) -> None:
    found = look(today=LAST_DAY + timedelta(days=1))["Debian support"]
    assert found.health == "warning"
    assert found.detail == "Debian bookworm has had no regular security support since 2026-06-10"
    locked_checkout.edit_matrix(f"    supported_until: {LAST_DAY}\n", "")
    assert look()["Debian support"].health == "warning"


@pytest.mark.parametrize("script", [None, "exec sleep 60"])
def test_docker_that_is_missing_fails_or_hangs_is_a_warning(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _name: str(docker) if script else None)
    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    assert look()["container engine"].health == "warning"


@pytest.mark.parametrize(("code", "health"), [(0, "ok"), (1, "warning")])
def test_docker_without_buildx_is_a_warning(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, health: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho v0.20\ncase $1 in buildx) exit {code};; esac\n")
    docker.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(docker) if name == "docker" else None)
    assert look()["buildx"].health == health


def test_broken_uv_fails_and_an_untested_machine_is_a_warning(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*command: str) -> str:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(doctor, "_output", broken)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    found = look()
    assert (found["uv"].health, found["system"].health) == ("failed", "warning")


def test_unusable_cache_fails_and_full_disk_is_a_warning(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file")
    monkeypatch.setattr(doctor, "NEEDED_DISK", 10**18)
    found = look(Store(occupied / "cache"))
    assert (found["cache"].health, found["free disk"].health) == ("failed", "warning")


@pytest.mark.parametrize("target", ["gemma4-31b", "qwen3.5-27b-nvfp4@sglang-0.5.23/rtx5090"])
def test_the_disk_that_an_image_needs_is_what_its_files_and_layers_add_up_to(target: str) -> None:
    project = Project(REPOSITORY)
    plan = make_plan(project, select_one(project.matrix, target))
    known = KnownLayers(project.known_layers)
    layers = [blob for layer in plan.layers if (blob := known.blob(layer.key))]  # a small one may be new
    needed = sum(layer.download for layer in plan.layers) + sum(layer.size for layer in layers)
    assert 0.8 * doctor.NEEDED_DISK < needed <= doctor.NEEDED_DISK
    assert round(sum(layer.unpacked for layer in layers) / 1e9) <= round(doctor.UNPACKED / 1e9)


def test_environment_is_compared_with_its_lock(
    look: Look, locked_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    assert look()["environment"].health == "warning", "not made by ./inv"
    stamps = tmp_path / "venv" / STAMPS
    shutil.copytree(locked_checkout.root / FOLDER, stamps)
    assert look()["environment"].detail == f"as locked ({', '.join(SETS)})"
    (stamps / "run.txt").write_text("older")
    assert look()["environment"].health == "failed"


def test_missing_test_programs_are_listed_with_their_packages(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "skopeo" else f"/bin/{name}")
    found = look()["test programs"]
    assert found.health == "warning"
    assert found.remedy.endswith("apt-get install skopeo")


@pytest.mark.parametrize(
    ("driver", "health", "reasons"),
    [
        ("580.95.05", ("ok", "ok"), "0x0"),
        ("580.95.05", ("warning", "ok"), "0x20"),
        ("575.1", ("warning", "warning"), "0x0"),
        ("", ("warning", "ok"), ""),
    ],
)
def test_gpu_driver_and_toolkit_are_looked_at(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, driver: str, health: tuple[str, str], reasons: str
) -> None:
    runtime = "nvidia" if health[1] == "ok" else "runc"
    programs = {"docker": f"echo '{{\"{runtime}\": 1}}'"}
    if driver:
        state = f"NVIDIA GB10, 91, 44.10, 96, 1800, {reasons}"
        programs["nvidia-smi"] = f"case $1 in *power*) echo '{state}';; *) echo '{driver}, NVIDIA GB10';; esac"
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if name in programs else None)
    monkeypatch.setattr(doctor, "CDI", (str(tmp_path / "none"),))
    found = look()
    assert (found["GPU"].health, found["container toolkit"].health) == health
    if driver:
        assert f"NVIDIA GB10, 91 °C, 44 W, 96 % busy, 1800 MHz, driver {driver}; images need" in found["GPU"].detail
        assert found["GPU"].detail.startswith("NVIDIA GB10 is slowed down to 1800 MHz by heat") == (reasons == "0x20")


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (("28.5.1", "580.95.05", "1.19.0"), []),
        (("28.5.1", "610.43.02", "1.19.1"), ["driver 610.43.02: one owner", "container toolkit 1.19.1: a Spark froze"]),
        (("20.10.8", "580.95.05", "1.18.0"), ["Docker 20.10.8: it answers clone3 with EPERM"]),
    ],
)
def test_a_host_with_known_faults_is_warned_about_with_source_and_date(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: tuple[str, str, str], words: list[str]
) -> None:
    docker, driver, toolkit = versions
    answers = f"*apps*) echo '4711, VLLM::EngineCore, 1000';; *) echo '{driver}, NVIDIA GB10';;"
    programs = {
        "docker": f"echo {docker}",
        "nvidia-ctk": f"echo 'NVIDIA Container Toolkit CLI version {toolkit}'; echo 'commit: 1'",
        "nvidia-smi": f"case $1 in {answers} esac",
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "nvidia.yaml").touch()
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if name in programs else None)
    monkeypatch.setattr(doctor, "CDI", (str(tmp_path),))
    found = doctor._host()
    assert [health for health, *_ in found] == (["warning"] * len(words) or ["ok"])
    for (_, detail, remedy), expected in zip(found, words, strict=False):
        assert expected in detail
        assert re.search(r"#\d+, 20\d\d-\d\d-\d\d\)$", detail), "a source, and a day"
        assert remedy
    assert "process 4711 (VLLM::EngineCore) holds 1.0 GB of the GPU" in look()["GPU"].detail
