"""Rendered Dockerfiles match their golden files, and pass hadolint."""

import os
import re
import subprocess
import sysconfig
from contextlib import suppress
from pathlib import Path

import pytest

from imagefactory.assemble.engines.docker.build_context import _wheel_step
from imagefactory.assemble.engines.docker.dockerfile import DOCKERFILE, quoted, render_plan
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import WheelLayer
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY

HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"
GOLDEN = REPOSITORY / "tests" / "golden" / "dockerfiles"
CELLS = {
    "gemma4-31b": Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"),
    "tiny-cpu": Cell("tiny", "0.32.0", "cpu", "linux/amd64"),
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    project = Project(REPOSITORY)
    return {name: render_plan(project, make_plan(project, cell, fat=True)) for name, cell in CELLS.items()}


def without_hashes(text: str) -> str:
    """Replace hashes, which change with every file of the checkout; another test checks the keys."""
    return re.sub(r"\b[0-9a-f]{64}\b", "0" * 64, re.sub(r"(/base:)[0-9a-f]{16}\b", r"\g<1>" + "0" * 16, text))


@pytest.mark.parametrize("name", CELLS)
def test_dockerfile_is_the_golden_one(rendered: dict[str, str], name: str) -> None:
    golden = GOLDEN / f"{name}.Dockerfile"
    text = without_hashes(rendered[name])
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, "utf-8")
    assert text == golden.read_text("utf-8"), "look at the change; UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize("name", CELLS)
def test_hadolint_finds_nothing(rendered: dict[str, str], name: str, tmp_path: Path) -> None:
    file = tmp_path / DOCKERFILE
    file.write_text(rendered[name], "utf-8")
    done = subprocess.run([HADOLINT, file], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_dockerfile_names_the_plan_key_and_every_layer_key(rendered: dict[str, str]) -> None:
    plan = make_plan(Project(REPOSITORY), CELLS["tiny-cpu"])
    text = rendered["tiny-cpu"]
    assert f"# plan    {plan.key}\n" in text
    assert re.findall(r"# layer key (\w+)", text) == [layer.key for layer in plan.layers]


@pytest.mark.parametrize("name", CELLS)
def test_context_has_a_requirement_with_a_hash_for_every_locked_wheel(name: str, tmp_path: Path) -> None:
    project, cell = Project(REPOSITORY), CELLS[name]
    for number, layer in enumerate(make_plan(project, cell).layers):
        if isinstance(layer, WheelLayer):
            for put in _wheel_step(number, layer)[1]:
                with suppress(FileNotFoundError):  # the wheels themselves are not here
                    put(tmp_path, Store(tmp_path / "store"), {})
    lines = [line for file in tmp_path.rglob("*.txt") for line in file.read_text().splitlines()]
    wheels = project.wheel_lock(cell).wheels
    assert sorted(lines) == sorted(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels)


def test_values_are_quoted_for_docker_and_have_one_line() -> None:
    texts = {"plain": '"plain"', 'a "b"': '"a \\"b\\""', "$HOME": '"\\$HOME"', "a\\b": '"a\\\\b"'}
    assert {text: quoted(text) for text in texts} == texts
    with pytest.raises(ValueError, match="several lines"):
        quoted("a\nb")
