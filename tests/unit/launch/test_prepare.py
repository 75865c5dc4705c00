"""What `./inv run` prints for a real cell of this checkout."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Self

import pytest
import yaml

from imagefactory.errors import RegistryError
from imagefactory.launch import prepare as prepare_module
from imagefactory.launch.prepare import image_to_run, image_to_show, make_room, with_settings
from tests.fixtures.failures import raises
from tests.fixtures.serving import IMAGE, REPOSITORY, prepared
from tests.fixtures.small_factory import CELL, SmallFactory

start = partial(prepared, "qwen3.5-27b-nvfp4")


def test_command_compose_file_and_recipes_agree() -> None:
    found = start(MAX_NUM_SEQS="8", MAX_MODEL_LEN="32k", MAX_NUM_BATCHED_TOKENS="auto")
    assert {"MAX_MODEL_LEN=32768", "MAX_NUM_BATCHED_TOKENS=auto"} <= set(found.line())
    assert "MAX_NUM_SEQS=8" in found.line()
    service = yaml.safe_load(found.compose())["services"]["vllm"]
    assert service["environment"]["MAX_NUM_SEQS"] == "${MAX_NUM_SEQS:-8}"
    for style in ("eugr", "sparkrun"):
        document = yaml.safe_load(found.recipe(style))
        assert document["defaults"]["max_num_seqs"] == 8
        assert document["container"] == IMAGE


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
    line = start("qwen35-chat-template", CHAT_TEMPLATE="{{ messages }}").line()
    assert "CHAT_TEMPLATE={{ messages }}" in line
    joined = with_settings({"EXTRA_ARGS": "--one 1", "MODS": "a"}, {"EXTRA_ARGS": "--two 2"})
    assert joined == {"EXTRA_ARGS": "--one 1 --two 2", "MODS": "a"}


def test_a_mod_or_setting_that_the_image_would_refuse_is_refused() -> None:
    with raises("bad-setting", match="^MAX_NUM_SEQS is out of range") as refusal:
        start(MAX_NUM_SEQS="0")
    assert refusal.value.where == "MAX_NUM_SEQS=0"
    assert refusal.value.why == "Allowed: a whole number from 1 to 65536, or auto."
    assert refusal.value.fix.startswith("Set MAX_NUM_SEQS to a number in that range")
    with raises("bad-setting", match="needs a parser for the tool calls of AEON-7/") as refusal:
        start(ENABLE_AUTO_TOOL_CHOICE="1")
    assert refusal.value.fix == "Set TOOL_CALL_PARSER=qwen3_xml, or leave out ENABLE_AUTO_TOOL_CHOICE."
    with raises("not-applicable", match="eagle3-marker does not apply"):
        start("eagle3-marker")
    with raises("unknown-name", match="Unknown mod 'nothing'"):
        start("nothing")


class Registry:
    """A registry that has one image, or none."""

    def __init__(self, digest: str | None) -> None:
        self.digest = digest

    def open(self, _: str, retry: object = None) -> Registry:  # noqa: ARG002 - as the real one
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def resolve(self, _: str) -> str | None:
        return self.digest


class Silent:
    """A registry that does not answer."""

    def open(self, _: str, retry: object = None) -> Registry:  # noqa: ARG002 - as the real one
        raise RegistryError("registry-unreachable", "No answer.", where="x", why="No route to host.", fix="Wait.")


def test_the_image_is_the_loaded_one_else_the_built_one_else_the_published_one(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = small_factory.project
    loaded: dict[str, str] = {}
    said: list[str] = []
    monkeypatch.setattr(prepare_module, "image_id", loaded.get)
    monkeypatch.setattr(prepare_module, "load", lambda layout, _: f"loaded {layout.config_digest()}")
    monkeypatch.setenv("FACTORY_REGISTRY", "registry.example/me/images")
    with raises("no-image", match="is not built here") as caught:
        image_to_run(project, CELL, said.append)
    assert caught.value.fix == f"Run `./inv build --target {CELL}/{CELL.machine}`."
    monkeypatch.delenv("FACTORY_REGISTRY")
    small_factory.edit_matrix("registry.example/factory/small", "ghcr.io/OWNER/small")
    with raises("no-image", match="is not built here"):
        image_to_show(small_factory.project, CELL, said.append)
    monkeypatch.setenv("FACTORY_REGISTRY", "registry.example/me/images")
    [built] = small_factory.build()
    published = f"registry.example/me/images@{built.image.digest}"
    config = built.layout.config_digest()
    assert image_to_run(project, CELL, said.append) == f"loaded {config}"
    assert said[-1].startswith(f"loading images:{CELL.slug} into Docker: ")
    monkeypatch.setattr(prepare_module, "Repository", Registry(None))
    with raises("no-image", match="is not published") as caught:
        image_to_show(project, CELL, said.append)
    assert caught.value.fix.startswith(f"Run `./inv load --target {CELL.full_target}`;")
    monkeypatch.setattr(prepare_module, "Repository", Silent())
    assert image_to_show(project, CELL, said.append) == published
    assert said[-1].startswith("what registry.example/me/images has is not known")
    monkeypatch.setattr(prepare_module, "Repository", Registry(built.image.digest))
    assert image_to_show(project, CELL, said.append) == published
    monkeypatch.delenv("FACTORY_REGISTRY")
    with raises("no-image", match="Docker does not have"):
        image_to_show(small_factory.project, CELL, said.append)
    monkeypatch.setenv("FACTORY_REGISTRY", "registry.example/me/images")
    loaded[f"images:{CELL.slug}"] = config
    assert image_to_run(project, CELL, said.append) == image_to_show(project, CELL, said.append) == config
    shutil.rmtree(built.layout.folder)
    monkeypatch.setattr(prepare_module, "Repository", Registry(built.image.digest))
    assert image_to_run(project, CELL, said.append) == image_to_show(project, CELL, said.append) == published
    monkeypatch.setattr(prepare_module, "Repository", Registry(None))
    with raises("no-image", match="is not built here"):
        image_to_run(project, CELL, said.append)
    with raises("no-image", match="is not published") as caught:
        image_to_show(project, CELL, said.append)
    assert caught.value.fix.startswith(f"Run `./inv build --target {CELL.full_target}`, then `./inv load ")


def fake_docker(folder: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> Path:
    docker, record = folder / "docker", folder / "record"
    docker.write_text(f"#!/bin/sh\necho $1 >> {record}\necho '{state}'\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.defpath}")
    return record


def test_only_a_container_of_ours_that_ended_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for state, removed in {"exited a-plan": True, "created a-plan": True, "exited ": False}.items():
        record = fake_docker(tmp_path, monkeypatch, state)
        said: list[str] = []
        make_room("vllm-tiny", said.append)
        assert ("rm" in record.read_text().split()) == removed == bool(said), state
        record.unlink()
    record = fake_docker(tmp_path, monkeypatch, "running a-plan")
    with raises("container-exists", match="vllm-tiny is running"):
        make_room("vllm-tiny", print)
    assert "rm" not in record.read_text().split()
