"""KV_DISK with the classes of a real vLLM, in a container; its GPU's part is played."""

import json
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import docker
from tests.fixtures.serving import REPOSITORY

pytestmark = [pytest.mark.engine, pytest.mark.network]


def test_no_prompt_starves_and_all_that_fits_comes_from_the_disk(tiny_image: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    hook, scenarios = REPOSITORY / "images/serve/hook", REPOSITORY / "tests/fixtures/kv_scenarios.py"
    done = docker(
        *("run", "--rm", "--network", "none", "--entrypoint", "/opt/venv/bin/python"),
        *("--env", "PYTHONPATH=/hook", "--volume", f"{hook}:/hook:ro", "--volume", f"{scenarios}:/scenarios.py:ro"),
        *("--volume", f"{tmp_path}:/model:ro", tiny_image, "/scenarios.py", "/model"),
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULTS "))
    results = json.loads(line.removeprefix("RESULTS "))
    assert results == {
        "on the disk": [60, 150],
        "fits": [60],
        "larger than the stage": [88],
        "at once": [60, 60, 60, 88, 60],
        "pinned": 0,
        "another place": [0],
        "conversation": 400,
        "damaged": 100,
        "mended": [400],
        "its beginning": [40, True, True, False],
        "the last used": [30, 10, True],
        "below a file": [0, 0],
        "hung": [[0], [0], True],
        "back": [[50], 0],
    }
