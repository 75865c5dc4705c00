"""What `./inv run` prints for a real cell of this checkout."""

from __future__ import annotations

import yaml

from imagefactory.launch.prepare import Start, prepare, with_settings
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from tests.fixtures.failures import raises
from tests.fixtures.serving import REPOSITORY

IMAGE = "ghcr.io/somebody/spark-vllm@sha256:" + "ef" * 32


def start(*mods: str, target: str = "qwen3.5-27b-nvfp4", **given: str) -> Start:
    project = Project(REPOSITORY)
    cell = select(project.matrix, [target])[0]
    return prepare(project, cell, IMAGE, given=given, environment={}, mods=mods)


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
    with raises("bad-setting", match="MAX_NUM_SEQS is out of range"):
        start(MAX_NUM_SEQS="0")


def test_mods_are_mounted_and_named_for_the_start() -> None:
    found = start("turboquant-cuda-graph")
    line = found.line()
    assert f"{REPOSITORY / 'mods'}:/mods:ro" in line
    assert "MODS=turboquant-cuda-graph" in line
    service = yaml.safe_load(found.compose())["services"]["vllm"]
    assert f"{REPOSITORY / 'mods'}:/mods:ro" in service["volumes"]
    assert service["environment"]["MODS"] == "${MODS:-turboquant-cuda-graph}"


def test_a_mod_of_files_alone_is_mounted_with_its_flags() -> None:
    line = start("qwen35-chat-template").line()
    place = "/usr/share/imagefactory/mods/qwen3.5.jinja"
    assert f"{REPOSITORY}/mods/qwen35-chat-template/files/qwen3.5.jinja:{place}:ro" in line
    assert f"CHAT_TEMPLATE={place}" in line
    assert not any(word.startswith("MODS=") for word in line)


def test_the_users_settings_win_over_those_of_mods() -> None:
    assert (
        "CHAT_TEMPLATE={{ messages }}" in start("qwen35-chat-template", CHAT_TEMPLATE="{{ messages }}").line()
    )
    joined = with_settings({"EXTRA_ARGS": "--one 1", "MODS": "a"}, {"EXTRA_ARGS": "--two 2"})
    assert joined == {"EXTRA_ARGS": "--one 1 --two 2", "MODS": "a"}


def test_a_mod_that_is_not_for_the_version_is_refused() -> None:
    with raises("not-applicable", match="eagle3-marker does not apply"):
        start("eagle3-marker")
    with raises("unknown-name", match="no mod 'nothing'"):
        start("nothing")
