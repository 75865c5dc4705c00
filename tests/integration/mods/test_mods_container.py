"""Mods in containers: patched classes behave as intended, and mods can be applied at start."""

import os
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import docker
from imagefactory.check.smoke.levels.test_serve import INSIDE
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.mods import edit, has, manifest, write_mod

pytestmark = pytest.mark.engine
CONTAINER = REPOSITORY / "tests" / "fixtures" / "in_container"
MODS_IMAGE = "FACTORY_TEST_MODS_IMAGE"
LIMIT = 600
"""Seconds for a container that imports vLLM."""


def test_patched_classes_work_in_a_container() -> None:
    """The image has mods, such as vLLM 0.20.2 with eagle3-marker, or a grafted vLLM."""
    image = os.environ.get(MODS_IMAGE, "")
    if not image:
        pytest.skip(f"{MODS_IMAGE} does not name an image with mods or a grafted vLLM")
    done = docker(
        *("run", "--rm", "--network", "none", "-v", f"{CONTAINER}:/tests:ro", "-v", f"{INSIDE}:/inside:ro"),
        *("--entrypoint", "/bin/sh", image, "/inside/with_driver_stub.sh", "/tests/patched_classes.py"),
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all claims hold"


INSPECT = """
import os
from vllm.model_executor.models import registry

def look(name):
    model = registry.ModelRegistry.models[name]
    return registry._run_in_subprocess(lambda: registry._ModelInfo.from_model_cls(model.load_model_cls()))

command = registry._SUBPROCESS_COMMAND
registry._SUBPROCESS_COMMAND = ["false"]
forked = look("Qwen3ForCausalLM")
registry._SUBPROCESS_COMMAND = command
del os.fork
print(look("Qwen3ForCausalLM") == forked, forked.is_text_generation_model)
"""


@pytest.mark.network
@pytest.mark.slow
def test_a_class_is_looked_at_in_a_fork_and_else_in_a_second_python(tiny_image: str) -> None:
    python = "/opt/venv/bin/python"
    options = ("--rm", "--network", "none", "--entrypoint", python)
    done = docker("run", *options, tiny_image, "-c", INSPECT, timeout=LIMIT)
    assert done.stdout.splitlines()[-1:] == ["True True"], done.stderr[-3000:]
    assert done.stdout.count("looked at in a second Python") + done.stderr.count("looked at in a second Python") == 1


@pytest.mark.network
@pytest.mark.slow
def test_mods_are_applied_at_container_start(tiny_image: str, tmp_path: Path) -> None:
    """The tiny image has vLLM 0.32.0."""
    mods = tmp_path / "mods"
    change_ = edit("vllm/version.py", "def _prev_minor_version_was(", before="MARK = 'changed at start'\n")
    good = manifest("mark", change_, checks=[has("vllm/version.py", "MARK =")], versions=">=0.32,<0.33")
    write_mod(mods, good)
    change_ = edit("vllm/version.py", "this text is nowhere", after="!")
    wrong = manifest("wrong", change_, checks=[has("vllm/version.py", "!")], versions=">=0.32,<0.33")
    write_mod(mods, wrong)
    done = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/bin/sh", "-e", "PYTHONPATH=/factory"),
        *("-v", f"{REPOSITORY / 'images'}:/factory/images:ro", "-v", f"{mods}:/mods:ro"),
        *("-v", f"{CONTAINER}:/tests:ro", tiny_image, "/tests/mods_at_start.sh"),
        timeout=LIMIT,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.splitlines() == [
        "first: 0",
        "restart: 0",
        "wrong: 4",
        "changed at start",
        "records: True",
    ]
    assert "mods: mark: applied (>=0.32,<0.33), 1 files" in done.stderr
    assert "mods: mark: already applied" in done.stderr
    assert "An anchor of the mod wrong (>=0.32,<0.33) occurs 0 times in vllm/version.py." in done.stderr
    assert "mods/wrong/mod.yaml:" in done.stderr
