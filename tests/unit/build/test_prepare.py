"""What `invoke run` prints for a real cell of this checkout."""

from __future__ import annotations

import pytest
import yaml

from imagefactory.build.start.prepare import Start, prepare
from imagefactory.errors.serving import SettingRefusedError
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from tests.fixtures.serving import REPOSITORY

IMAGE = "ghcr.io/somebody/spark-vllm@sha256:" + "ef" * 32


def start(**given: str) -> Start:
    project = Project(REPOSITORY)
    cell = select(project.matrix, ["qwen3.5-27b-nvfp4"])[0]
    return prepare(project, cell, IMAGE, given=given, environment={})


def test_command_compose_file_and_recipes_agree() -> None:
    found = start(MAX_NUM_SEQS="8")
    assert "MAX_NUM_SEQS=8" in found.line()
    service = yaml.safe_load(found.compose())["services"]["vllm"]
    assert service["environment"]["MAX_NUM_SEQS"] == "${MAX_NUM_SEQS:-8}"
    for style in ("eugr", "sparkrun"):
        document = yaml.safe_load(found.recipe(style))
        assert document["defaults"]["max_num_seqs"] == 8
        assert document["container"] == IMAGE


def test_setting_that_the_image_would_refuse_is_refused() -> None:
    with pytest.raises(SettingRefusedError, match="MAX_NUM_SEQS is out of range"):
        start(MAX_NUM_SEQS="0")
