"""Files for other launchers, read back as those launchers read them."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.launch.docker_run import Launch
from imagefactory.launch.preview import Preview
from imagefactory.launch.recipes import (
    FIRST_START,
    Format,
    llama_swap,
    quadlet,
    recipe_document,
    recipe_text,
    refuse_unknown,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import select_one
from tests.fixtures.failures import raises
from tests.fixtures.serving import IMAGE, prepared

TARGETS = ("gemma4-31b", "gpt-oss-120b")
"""One with a drafter, whose configuration has braces, and one without."""
Images = Callable[..., Preview]


def export(style: Format, preview: Preview, matrix: Matrix, image: str = IMAGE) -> dict[str, Any]:
    cell = select_one(matrix, preview.description["image"]["target"])
    launch = Launch(cell, image, preview.description)
    env = matrix.models[cell.model].serve.env
    document = yaml.safe_load(recipe_text(recipe_document(style, launch, preview.model, preview.command(), env)))
    assert isinstance(document, dict)
    return document


def rendered_by_sparkrun(document: dict[str, Any]) -> list[str]:
    command = document["command"]
    for name, value in document["defaults"].items():
        command = command.replace(f"{{{name}}}", str(value))
    return shlex.split(command.replace("\\\n", " "))


@pytest.mark.parametrize("target", TARGETS)
def test_eugr_recipe_renders_to_our_command(served_image: Images, real_matrix: Matrix, target: str) -> None:
    preview = served_image(target)
    document = export("eugr", preview, real_matrix)
    assert document["recipe_version"] == "1"
    assert {"name", "container", "command"} <= set(document)
    # Its runner uses str.format, so literal braces are doubled.
    rendered = shlex.split(document["command"].format(**document["defaults"]).replace("\\\n", " "))
    assert rendered == [*preview.command(), "--host", "0.0.0.0", "--port", "8000", "-tp", "1"]  # noqa: S104


@pytest.mark.parametrize("target", TARGETS)
def test_sparkrun_recipe_pins_image_and_revision(served_image: Images, real_matrix: Matrix, target: str) -> None:
    preview = served_image(target, revision="0" * 40)
    document = export("sparkrun", preview, real_matrix)
    assert document["recipe_version"] == "2"
    assert document["model_revision"] == "0" * 40
    assert document["container"] == IMAGE
    assert rendered_by_sparkrun(document)[: len(preview.command())] == preview.command()
    assert document["metadata"]["model_vram"] == 24.0


def test_a_recipe_for_sglang_names_its_runtime_and_its_flags(served_image: Images, serving_matrix: Matrix) -> None:
    preview = served_image("gemma4-31b@sglang-0.5.21")
    document = export("sparkrun", preview, serving_matrix)
    assert (document["runtime"], document["runtime_version"]) == ("sglang", "0.5.21")
    assert document["defaults"]["max_model_len"] == 16384
    expected = [word for word in preview.command() if word not in {"--host", "0.0.0.0", "--port", "8000"}]  # noqa: S104
    assert rendered_by_sparkrun(document) == [*expected, "--host", "0.0.0.0", "--port", "8000", "--tp-size", "1"]  # noqa: S104


def test_an_image_without_digest_and_sglang_for_a_launcher_of_vllm_get_no_recipe(
    served_image: Images, serving_matrix: Matrix
) -> None:
    with raises("unpinned-image"):
        export("sparkrun", served_image("gemma4-31b"), serving_matrix, image="spark-vllm:latest")
    with raises("unknown-name", match="Unknown launcher for SGLang 'eugr'"):
        refuse_unknown("eugr", select_one(serving_matrix, "gemma4-31b@sglang-0.5.21"))


def launch(target: str, key: Path | None = None, **given: str) -> Launch:
    environment = {"HF_TOKEN": "secret"} | ({"VLLM_API_KEY_FILE": str(key)} if key else {})
    return prepared(target, environment=environment, **given).launch


def test_a_quadlet_unit_has_the_gpu_the_key_a_health_check_and_starts_again(tmp_path: Path) -> None:
    key = tmp_path / "100%"
    key.write_text("hunter2")
    unit = quadlet(launch("gemma4-31b", key, SERVED_MODEL_NAME="a$b", LIMIT_MM_PER_PROMPT='{"image": 1}'))
    lines = unit.splitlines()
    for line in (
        f"Image={IMAGE}",
        "AddDevice=nvidia.com/gpu=all",
        "PodmanArgs=--ipc=host",
        "PodmanArgs=--ulimit=memlock=-1",
        f"Volume={tmp_path}/100%%:/run/secrets/vllm_api_key:ro",
        'Environment="SERVED_MODEL_NAME=a$$b"',
        'Environment="LIMIT_MM_PER_PROMPT={\\"image\\": 1}"',
        "HealthStartPeriod=3600s",
        "Restart=always",
    ):
        assert line in lines
    assert "hunter2" not in unit
    assert "HF_TOKEN" not in unit
    assert "nvidia.com" not in quadlet(launch("tiny"))


def test_llama_swap_starts_each_model_on_a_port_of_its_own_and_waits_for_a_first_start() -> None:
    config = yaml.safe_load(llama_swap([launch("gemma4-31b", PORT="9000"), launch("qwen3.5-27b-nvfp4")]))
    assert config["healthCheckTimeout"] == FIRST_START
    first, second = config["models"].values()
    assert list(config["models"]) == ["gemma4-31b", "qwen3.5-27b-nvfp4"]
    assert (first["useModelName"], first["aliases"]) == ("google/gemma-4-31B-it", ["google/gemma-4-31B-it"])
    assert second["aliases"] == ["qwen35-dflash"]
    words = shlex.split(first["cmd"].replace("\\\n", " "))
    assert words[-5:] == ["--env", "HOST=127.0.0.1", "--env", "PORT=${PORT}", IMAGE]
    assert {"--rm", "HF_TOKEN"} <= set(words)
    assert "PORT=9000" not in words
    assert first["cmdStop"] == f"docker stop {words[words.index('--name') + 1]}"
    # llama-swap gives up on a stop after this; the container's own limit comes first.
    assert config["unloadTimeout"] > int(words[words.index("--stop-timeout") + 1])


def test_models_of_one_name_have_other_ids() -> None:
    launches = [launch("qwen3.5-27b-nvfp4"), launch("qwen3.5-27b-nvfp4@sglang-0.5.21")]
    models = yaml.safe_load(llama_swap(launches))["models"]
    assert list(models) == ["qwen3.5-27b-nvfp4@0.32.0", "qwen3.5-27b-nvfp4@sglang-0.5.21"]
    assert all("aliases" not in model for model in models.values())
