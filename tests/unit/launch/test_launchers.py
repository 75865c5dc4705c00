"""Files for launchers on the same machine: Podman's quadlet, and llama-swap."""

import shlex
from pathlib import Path

import yaml

from imagefactory.launch.docker_run import Launch
from imagefactory.launch.launchers import FIRST_START, llama_swap, quadlet
from imagefactory.launch.prepare import prepare
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from tests.fixtures.serving import REPOSITORY

IMAGE = "ghcr.io/somebody/spark-vllm@sha256:" + "ef" * 32


def launch(target: str, key: Path | None = None, **given: str) -> Launch:
    project = Project(REPOSITORY)
    environment = {"HF_TOKEN": "secret"} | ({"VLLM_API_KEY_FILE": str(key)} if key else {})
    cell = select(project.matrix, [target])[0]
    return prepare(project, cell, IMAGE, given=given, environment=environment).launch


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
