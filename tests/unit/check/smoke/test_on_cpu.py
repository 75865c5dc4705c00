"""An image for GPUs that serves on a CPU, with what the smoke test brings along."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.check.smoke.levels.test_serve import TINY, on_cpu
from imagefactory.launch.preview import Preview
from imagefactory.project.cells import Cell
from imagefactory.project.counterparts import serving_elsewhere
from imagefactory.project.servers.known import SERVERS
from tests.fixtures.checkouts import REPOSITORY

Images = Callable[..., Preview]
LEVELS = REPOSITORY / "imagefactory" / "check" / "smoke" / "levels"
SHIM = LEVELS / "on_cpu" / "cpu_shim.py"


@pytest.mark.parametrize("target", ["gemma4-31b@sglang-0.5.21", "gpt-oss-120b@sglang-0.5.21"])
def test_the_settings_turn_any_image_of_sglang_into_a_server_of_the_tiny_model(
    served_image: Images, target: str
) -> None:
    variables = dict(SERVERS["sglang"].on_cpu) | {"MODEL_PATH": TINY, "HOST": "127.0.0.1"}
    preview = served_image(target)
    ran = preview.run("--dry-run", variables=variables)
    [command, *_] = ran.stdout.splitlines()
    for words in (
        "--model-path /opt/models/tiny --served-model-name tiny --attention-backend torch_native --context-length 256",
        "--mem-fraction-static 0.8",
        "--dtype float32",
        "--load-format dummy",
        "--disable-radix-cache",
        "--device cpu --disable-overlap-schedule --max-total-tokens 2048",
    ):
        assert words in command
    for word in ("speculative", "quantization", "trust", "parser", "cuda-graph"):
        assert word not in command


def test_the_container_gets_model_stub_and_shim_from_the_checkout(tmp_path: Path) -> None:
    options, arguments = on_cpu(tmp_path, {"DTYPE": "float32"})
    mounts = [words.split(":") for flag, words in itertools.pairwise(options) if flag == "--volume"]
    assert all(Path(source).exists() and mode == "ro" for source, _, mode in mounts)
    assert (tmp_path / "tiny" / "config.json").exists()
    assert arguments[0] in {target for _, target, _ in mounts}
    assert "DTYPE=float32" in options
    assert options[-2:] == ("--entrypoint", "/bin/sh")
    started = Path(next(source for source, target, _ in mounts if target == arguments[0])).read_text()
    places = {Path(target).name for _, target, _ in mounts}
    assert {"cpu_shim.py", "with_driver_stub.sh"} <= places
    assert all(f"$here/{name}" in started for name in ("cpu_shim.py", "with_driver_stub.sh"))


def with_shim(folder: Path, bootstrap: str) -> subprocess.CompletedProcess[str]:
    package = folder / "sglang" / "srt" / "distributed"
    package.mkdir(parents=True)
    (package / "bootstrap.py").write_text(bootstrap)
    shutil.copy(SHIM, folder / "cpu_shim.py")
    program = "import cpu_shim, json; from sglang.srt.distributed import bootstrap as b; print(b.threads(), b.other)"
    command, env = [sys.executable, "-B", "-c", program], {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_shim_changes_one_flag_of_one_module_and_fails_loudly_where_it_is_gone(tmp_path: Path) -> None:
    bootstrap = "_is_cpu_arm64 = True\nother = True\ndef threads(): return _is_cpu_arm64\n"
    ran = with_shim(tmp_path / "a", bootstrap)
    assert ran.stdout == "False True\n", ran.stderr
    ran = with_shim(tmp_path / "b", "other = True\ndef threads(): return None\n")
    assert ran.returncode
    assert "the shim of the smoke test is out of date" in ran.stderr


@pytest.mark.parametrize("package", ["vllm", "sgl_kernel"])
def test_the_stub_has_the_drivers_symbols_of_either_server(tmp_path: Path, package: str) -> None:
    site, programs = tmp_path / "site", tmp_path / "bin"
    (site / package).mkdir(parents=True)
    (site / package / "ops.so").write_text("U cuMemCreate\nU cudaMalloc\nU cuInit\n")
    programs.mkdir()
    stand_ins = {
        "nm": 'for last; do :; done; sed "s/^/  /" "$last"',
        "gcc": f'for last; do :; done; cp "$last" {tmp_path}/stub.c',
        "python3": f'[ "$1" != -c ] || {{ echo {site}; exit; }}; ls -d "${{LD_LIBRARY_PATH%%:*}}"; echo "$@"',
    }
    for name, script in stand_ins.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    command = ["sh", str(LEVELS / "inside" / "with_driver_stub.sh"), "program.py", "one"]
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "DRIVER_ANSWER": "100"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    stub = "int cuInit(void) { return 100; }\nint cuMemCreate(void) { return 100; }\n"
    assert (tmp_path / "stub.c").read_text() == stub
    assert ran.stdout.splitlines()[1:] == ["program.py one"]


def test_sglang_serves_on_the_images_own_platform() -> None:
    archs: Any = {"gb10": SimpleNamespace(capability="12.1")}
    project: Any = SimpleNamespace(matrix=SimpleNamespace(archs=archs))
    assert serving_elsewhere(project, Cell("m", "sglang-0.5.21", "gb10", "linux/arm64")) == ""
