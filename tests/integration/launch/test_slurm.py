"""Commands for a cluster, on a real Slurm."""

import json
import re
from pathlib import Path

import pytest

from imagefactory.ci.jobs import Night, Work
from imagefactory.project.cells import Cell
from tests.fixtures.checkouts import REPOSITORY
from tests.integration.launch.slurm_cluster import slurm_cluster, slurm_missing, wait_for

MISSING = slurm_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
END_LIMIT = 240
"""Seconds for two short jobs on a busy machine."""


def test_an_array_does_the_work_of_a_plan(tmp_path: Path) -> None:
    """With the command of docs/scale.md, and a stand-in for what it calls."""
    cells = [Cell(model, "0.32.0", arch, "linux/arm64") for arch in ("gb10", "h100") for model in ("a", "b")]
    night = Night("registry.test/x", tuple(Work(cell, "key", ("image",), "new") for cell in cells))
    (tmp_path / "plan.json").write_text(json.dumps(night.as_json()))
    (tmp_path / "inv").write_text('#!/bin/sh\necho "$@" > "done.$SLURM_ARRAY_TASK_ID"\n')
    (tmp_path / "inv").chmod(0o755)
    page = (REPOSITORY / "docs" / "scale.md").read_text("utf-8")
    [line] = re.findall(r"^\$ (sbatch --array=.*)$", page, re.MULTILINE)
    expected = [f"push --target {job['targets']}\n" for job in night.jobs()["image"]]
    with slurm_cluster(tmp_path, 1, {}) as cluster:
        cluster.call("sh", "-c", line.replace("0-3", f"0-{len(expected) - 1}"))
        files = [tmp_path / f"done.{index}" for index in range(len(expected))]
        wait_for("the array", lambda: all(file.exists() for file in files), END_LIMIT)
        wait_for("its texts", lambda: [file.read_text() for file in files] == expected, END_LIMIT)
