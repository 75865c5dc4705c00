"""Every model in a container of its server: the dry run of its image, and the server's own parser of the command.

The program of this checkout and what describes a model's image are mounted over the image of another model. vLLM is its
build for CPUs, from the same sources.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import docker
from imagefactory.plan.serve.description import image_environment
from imagefactory.plan.serve.image_paths import PROGRAM, SHARE, program_folder
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import MACHINE
from tests.fixtures.serving import write_description

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
PROJECT = Project(REPOSITORY)
DEFAULTS = {name: select_one(PROJECT.matrix, name) for name in PROJECT.matrix.models}
SGLANG = next(cell.version for cell in DEFAULTS.values() if cell.server == "sglang")
GPU = {"amd64": "rtx5090", "arm64": "gb10"}[MACHINE]
PARSERS = {
    "vllm": """
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
""",
    "sglang": """
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
parser.add_argument("--model-type")  # of `sglang serve` itself, which takes it away
ServerArgs.add_cli_args(parser)
""",
}
PARSE = "import json; print(len([parser.parse_args(words) for words in json.load(open('/commands.json'))]), 'accepted')"


def check(image: str, server: str, folder: Path) -> None:
    """Run the image of each model of a server dry, then have the server's parser read all commands."""
    cells = [cell for cell in DEFAULTS.values() if cell.server == server]
    (folder / "commands.json").write_text(json.dumps([dry_run(image, cell, folder / cell.model) for cell in cells]))
    options = ("--volume", f"{folder / 'commands.json'}:/commands.json:ro", "--entrypoint", "/opt/venv/bin/python")
    parsed = docker("run", "--rm", "--network", "none", *options, image, "-c", PARSERS[server] + PARSE, timeout=300)
    assert parsed.stdout.splitlines()[-1:] == [f"{len(cells)} accepted"], parsed.stderr[-3000:]


def dry_run(image: str, cell: Cell, folder: Path) -> list[str]:
    """Return the arguments of the server."""
    folder.mkdir()
    served = write_description(PROJECT, cell, folder)
    pair = {"NODE_RANK": "0", "HEAD_ADDRESS": "127.0.0.1"} if PROJECT.matrix.models[cell.model].sparks > 1 else {}
    mounts = {program_folder(REPOSITORY): PROGRAM} | {path: f"{SHARE}/{path.name}" for path in folder.iterdir()}
    options = [word for source, target in mounts.items() for word in ("--volume", f"{source}:/{target}:ro")]
    for name, value in (image_environment(served.description) | served.extra | pair).items():
        options += ["--env", f"{name}={value}"]
    ran = docker("run", "--rm", "--network", "none", *options, image, "--dry-run", "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    results = {check["name"]: check["result"] for check in found["checks"]}
    assert (results["flags"], results["combination"] != "fail") == ("ok", True), (cell, found["checks"])
    words: list[str] = found["command"][2:]
    return words


def test_every_model_of_vllm(tiny_image: str, tmp_path: Path) -> None:
    check(tiny_image, "vllm", tmp_path)


@pytest.mark.parametrize("loaded", [f"qwen3.5-27b-nvfp4@{SGLANG}/{GPU}"], indirect=True)
def test_every_model_of_sglang(loaded: str, tmp_path: Path) -> None:
    check(loaded, "sglang", tmp_path)
