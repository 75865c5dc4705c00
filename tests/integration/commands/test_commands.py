"""A fresh clone: sets itself up with `./inv` and answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagefactory.errors.matrix import UnknownNameError
from tests.fixtures.checkouts import REPOSITORY

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clone the repository and let `./inv` make its environment."""
    folder = tmp_path_factory.mktemp("clone") / "factory"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    done = inv(folder, "--list")
    assert "setting up" in done.stderr
    assert "targets" in done.stdout, done.stderr
    return folder


def inv(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}
    }
    return subprocess.run(
        [str(folder / "inv"), *arguments],
        cwd=cwd or folder,
        env={**environment, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def test_targets_lists_every_cell_as_a_table_and_as_json(clone: Path) -> None:
    rows = json.loads(inv(clone, "targets", "--json").stdout)
    table = inv(clone, "targets").stdout.splitlines()
    assert len(table) == len(rows) + 1
    assert {row["arch"] for row in rows} == {"gb10", "rtx5090", "b200", "h100", "cpu"}


def test_a_plan_has_the_same_bytes_from_anywhere(clone: Path, tmp_path: Path) -> None:
    command = ("plan", "--target", "gemma4-31b", "--json")
    here = inv(clone, *command, env={"TZ": "UTC", "PYTHONHASHSEED": "1"})
    there = inv(clone, *command, env={"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2"}, cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    assert here.stdout == there.stdout
    assert here.stderr == ""


def test_the_committed_locks_agree_with_the_committed_matrix(clone: Path) -> None:
    done = inv(clone, "lock", "--check")
    assert done.returncode == 0, done.stderr


def test_a_mistyped_target_ends_with_a_message_and_its_own_code(clone: Path) -> None:
    done = inv(clone, "plan", "--target", "gemma4-31b@0.18")
    assert done.returncode == UnknownNameError.exit_code
    assert "Did you mean" in done.stderr
    assert "Traceback" not in done.stderr
