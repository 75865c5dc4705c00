"""A fresh clone sets itself up with `./inv` and runs commands."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import check_failure

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone the repository and let `./inv` set it up."""
    folder = tmp_path_factory.mktemp("clone") / "factory"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    done = inv(folder, "--list")
    assert "setting up" in done.stderr
    assert "targets" in done.stdout, done.stderr
    return folder


def inv(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    return subprocess.run(
        [str(folder / "inv"), *arguments],
        cwd=cwd or folder,
        env={**environment, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_plan_has_the_same_bytes_from_anywhere(clone: Path, tmp_path: Path) -> None:
    command = ("plan", "--target", "gemma4-31b", "--json")
    here = inv(clone, *command, env={"TZ": "UTC", "PYTHONHASHSEED": "1"})
    there = inv(clone, *command, env={"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2"}, cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    assert here.stdout == there.stdout
    assert here.stderr == ""


def test_inv_passes_on_messages_and_exit_codes(clone: Path) -> None:
    done = inv(clone, "plan", "--target", "gemma4-31b@0.18")
    assert "Did you mean" in check_failure(done, "unknown-name")
