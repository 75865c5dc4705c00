"""What `pair up` prints at its end: all that somebody needs to ask the model."""

import json
import subprocess
from pathlib import Path

import pytest

from imagefactory.launch.prepare import Start, settings_alone
from imagefactory.pair.serving import address, introduction
from imagefactory.pair.up import UNSEEN, prepared
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises


def start(target: str = "tiny", **given: str) -> Start:
    project = Project(REPOSITORY)
    cell = select_one(project.matrix, target)
    return prepared(project, cell, given=given, environment={}, models="~/.cache/huggingface")


def test_the_pair_model_is_prepared_before_the_cable_is_known() -> None:
    launch = start("qwen3.8-flash-next-pair", MAX_MODEL_LEN="8192").launch
    assert dict(launch.given) == {"MAX_MODEL_LEN": "8192"}
    assert start(HEAD_ADDRESS="10.0.0.1").launch.given == {"HEAD_ADDRESS": "10.0.0.1"}, "the user's own stays"
    assert "HEAD_ADDRESS" in UNSEEN


def test_it_names_address_model_and_the_next_commands() -> None:
    lines = dict(line.split(maxsplit=1) for line in introduction(start(), "spark1", ";e").splitlines())
    assert lines["serving"] == "http://spark1:8000/v1"
    assert lines["model"] == "tiny"
    assert lines["key"].startswith("none")
    assert lines["proof"] == "'Two Sparks are' goes on with ';e'"
    assert {"./inv pair status", "./inv pair down"} <= set(lines["next"].split(", "))


def test_its_curl_line_can_be_pasted(tmp_path: Path) -> None:
    key = tmp_path / "a key's file"
    key.write_text("k-1")
    text = introduction(start(VLLM_API_KEY_FILE=str(key)), "spark1", "")
    assert "k-1" not in text
    [line] = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("ask")]
    # The shell splits it as it would for curl.
    done = subprocess.run(
        ["sh", "-c", line.replace("curl", "printf '%s\\n'", 1)], capture_output=True, text=True, check=True
    )
    url, _, content, _, authorization, _, body = done.stdout.splitlines()
    assert url == "http://localhost:8000/v1/chat/completions"
    assert (content, authorization) == ("Content-Type: application/json", "Authorization: Bearer k-1")
    assert json.loads(body)["model"] == "tiny"


@pytest.mark.parametrize(("host", "asked"), [("0.0.0.0", "localhost"), ("10.0.0.7", "10.0.0.7")])  # noqa: S104
def test_a_server_that_listens_at_one_address_is_asked_there(host: str, asked: str) -> None:
    assert address(start(HOST=host, PORT="8001"), "localhost") == f"http://{asked}:8001"


def test_a_model_for_two_machines_is_not_started_on_one() -> None:
    project = Project(REPOSITORY)
    cell = select_one(project.matrix, "qwen3.8-flash-next-pair")
    with raises("bad-setting", match="served by two Sparks") as caught:
        settings_alone(project.matrix, cell, {})
    assert "./inv pair up qwen3.8-flash-next-pair --with spark2" in caught.value.fix
    settings_alone(project.matrix, cell, {"HEAD_ADDRESS": "10.0.0.1"})
    settings_alone(project.matrix, select_one(project.matrix, "tiny"), {})
