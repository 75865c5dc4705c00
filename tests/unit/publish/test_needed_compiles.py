"""Which commit a night compiles: the one that the branch is at on FACTORY_GIT_HOST."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imagefactory.locks.project import Project
from imagefactory.publish.automation.needed_compiles import find_compiles
from imagefactory.publish.automation.night import nightly_cells
from tests.fixtures.checkouts import REPOSITORY


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A git host with one commit of vLLM, which is returned."""
    git = ["git", "-C", str(tmp_path / "vllm-project/vllm"), "-c", "user.name=t", "-c", "user.email=t@t"]
    (tmp_path / "vllm-project/vllm").mkdir(parents=True)
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "one"], check=True)
    monkeypatch.setenv("FACTORY_GIT_HOST", f"file://{tmp_path}")
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def reasons() -> set[str]:
    project = Project(REPOSITORY)
    cells = [cell for cell in nightly_cells(project) if cell.vllm == "nightly"]
    return {job.reason for job in find_compiles(project, None, cells).jobs}


def test_the_branch_is_looked_up_on_the_configured_host(vllm: str) -> None:
    assert reasons() == {f"vllm-project/vllm main is at {vllm[:12]}"}


def test_a_host_that_cannot_be_reached_does_not_stop_a_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORY_GIT_HOST", f"file://{tmp_path}/nowhere")
    assert reasons() == {"vLLM nightly was never compiled for gb10"}
