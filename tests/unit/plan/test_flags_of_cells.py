"""Compares the command of every cell with the flags that its server's sources define, without a container."""

from pathlib import Path

import pytest

from imagefactory.launch.preview import Preview
from imagefactory.lock.flag_records import FlagLock, recorded_version
from imagefactory.plan.serve.description import describe_cell, image_environment
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.project import Project
from images.serve.program import settings as program_settings
from images.serve.program.servers.known import server_of
from tests.fixtures.checkouts import REPOSITORY

PROJECT = Project(REPOSITORY)
WITHOUT_RECORD = {name for name, version in PROJECT.matrix.versions.items() if version.git is not None}
SHARES = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"}


def command_of(cell: Cell) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of the server in a cell's image, built by the image's own program, and its environment."""
    served = describe_cell(PROJECT, cell)
    image = Preview(PROJECT.root, served.description, served.model).image()
    node = PROJECT.matrix.models[cell.model].node_settings(1)
    settings = program_settings.read(image, image_environment(served.description) | node, ())
    return list(server_of(image).build(image, settings).arguments), served.extra


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_cell_has_a_complete_command_that_its_server_accepts(step: int) -> None:
    cells, matrix, wrong = 0, PROJECT.matrix, []
    for cell in buildable(matrix)[::step]:
        command, variables = command_of(cell)
        model = matrix.models[cell.model]
        assert model.repo is None or model.repo in command, cell
        if matrix.archs[cell.arch].capability is not None:
            shapes = model.shapes(cell.server, cell.arch)
            [*_, share] = [shape.gpu_memory_utilization for shape in shapes if shape.gpu_memory_utilization]
            assert command[command.index(SHARES[cell.server]) + 1] == str(share), cell
        if cell.version not in WITHOUT_RECORD:
            flags = FlagLock.read(record_of(cell.version))
            wrong += [f"{cell}/{cell.machine}: {one}" for one in flags.refused(command, variables)]
            cells += 1
    assert wrong == []
    assert cells > 100 // step


def record_of(version: str) -> Path:
    return FlagLock.path(PROJECT.locks, recorded_version(PROJECT, version))


def test_every_locked_image_for_the_spark_has_the_loader_that_it_loads_with() -> None:
    found: dict[str, set[str]] = {}
    for cell in buildable(PROJECT.matrix):
        if cell.arch != "gb10" or not (PROJECT.root / "locks" / cell.version / "gb10-linux-arm64.toml").exists():
            continue
        command, _ = command_of(cell)
        loader = command[command.index("--load-format") + 1] if "--load-format" in command else "auto"
        locked = {wheel.name for wheel in PROJECT.wheel_lock(cell).wheels}
        assert loader == "auto" or loader in locked, cell
        if not cell.model.startswith(("mistral-", "gemma4-")):
            fast = [name for name in ("instanttensor", "fastsafetensors") if name in locked]
            assert loader == [*fast, "auto"][0], cell
        found.setdefault(cell.version, set()).add(loader)
    assert found["0.32.0"] == found["0.32.0-b12x"] == {"instanttensor", "auto"}
    assert found["0.20.2"] == found["0.28.0"] == {"fastsafetensors", "auto"}
    assert found["sglang-0.5.23"] == {"auto"}


def test_weights_that_are_quantized_at_the_start_have_the_name_that_the_version_wants() -> None:
    for cell in buildable(PROJECT.matrix):
        if cell.model != "gemma4-31b" or cell.version in WITHOUT_RECORD:
            continue
        command, _ = command_of(cell)
        late = cell.server == "vllm" and PROJECT.matrix.versions[cell.version].within(">=0.32")
        word = "fp8_per_tensor" if late else "fp8"
        assert command[command.index("--quantization") + 1] == word, cell
        recorded = FlagLock.read(record_of(cell.version))
        assert word in recorded.flags["--quantization"].split(), cell


def test_only_git_references_have_no_record_of_flags() -> None:
    missing = {name for name in PROJECT.matrix.versions if not record_of(name).exists()}
    assert missing == WITHOUT_RECORD


KNOWN = {"--eager": "", "--backend": "FLASH TRITON", "--dtype": "auto fp8", "--speculative-config": ""}
FLAGS = FlagLock(
    made_from={},
    version="1.0",
    flags={**KNOWN, "--speculative-config.method": "mtp"},
    switches=("--eager",),
    variables=("VLLM_KNOWN",),
)


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("model --eager --dtype fp8 --backend flash --no-eager --dtype=auto", []),
        ("model --dtype --eagre", ["--dtype without a value", "--eagre"]),
        ("model --dtype=fp9 --no-dtype", ["--dtype fp9", "--no-dtype"]),
        ('model --speculative-config {"method":"mtp"}', []),
        ('model --speculative-config {"mode":1}', ["--speculative-config.mode 1"]),
    ],
)
def test_record_refuses_what_the_server_does_not_have(command: str, wrong: list[str]) -> None:
    variables = {"VLLM_KNOWN": "1", "VLLM_UNKNOWN": "1", "CUTE_DSL_ARCH": "sm_121a"}
    assert list(FLAGS.refused(command.split(), variables)) == [*wrong, "VLLM_UNKNOWN"]
