"""The API key: however it is given, the server requires it, or does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.failures import refused
from tests.fixtures.serve_process import Start, finished, recorded

KEY = "hunter2-hunter2"
MODEL = "some/model"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--seed", "7"],
        [MODEL],
        ["vllm", "serve", MODEL],
        ["bash", "-c", f"vllm serve {MODEL}"],
        ["sh", "-c", f"vllm serve {MODEL}"],
        ["--help"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("given", ["VLLM_API_KEY", "VLLM_API_KEY_FILE"])
def test_the_key_reaches_vllm_however_it_is_started(
    start: Start, tmp_path: Path, key_file: str, arguments: list[str], given: str
) -> None:
    ran = finished(start(*arguments, **{given: key_file if given.endswith("FILE") else KEY}))
    assert ran.returncode == 0, ran.stderr
    record = recorded(tmp_path)
    assert record["environment"]["VLLM_API_KEY"] == KEY
    assert "VLLM_API_KEY_FILE" not in record["environment"]
    assert KEY not in " ".join(record["arguments"]) + ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "flag", [["--api-key", KEY], [f"--api-key={KEY}"], ["--api_key", KEY], ["--api-k", KEY]]
)
@pytest.mark.parametrize("before", [[], [MODEL], ["vllm", "serve", MODEL]], ids=" ".join)
def test_a_key_among_the_arguments_reaches_vllm_where_it_is_not_logged(
    start: Start, tmp_path: Path, before: list[str], flag: list[str]
) -> None:
    ran = finished(start(*before, *flag, "--seed", "7"))
    record = recorded(tmp_path)
    assert record["environment"]["VLLM_API_KEY"] == KEY
    assert record["arguments"][-2:] == ["--seed", "7"]
    assert KEY not in " ".join(record["arguments"]) + ran.stdout + ran.stderr


def test_a_token_among_the_arguments_reaches_vllm_where_it_is_not_logged(
    start: Start, tmp_path: Path
) -> None:
    ran = finished(start(EXTRA_ARGS=f"--hf-token {KEY} --seed 7"))
    record = recorded(tmp_path)
    assert record["environment"]["HF_TOKEN"] == KEY
    assert KEY not in " ".join(record["arguments"]) + ran.stdout + ran.stderr
    finished(start("--seed", "7", "--hf-token"))
    assert "--hf-token" in recorded(tmp_path)["arguments"]


def test_several_keys_stay_arguments(start: Start, tmp_path: Path) -> None:
    ran = finished(start(MODEL, "--api-key", KEY, f"{KEY}-2", "--seed", "7"))
    assert recorded(tmp_path)["arguments"] == ["serve", MODEL, "--seed", "7", "--api-key", KEY, f"{KEY}-2"]
    assert KEY not in ran.stdout + ran.stderr


EMPTY_FLAG = ["--api-key", ""]


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ([], {"VLLM_API_KEY": ""}),
        ([], {"VLLM_API_KEY": " "}),
        ([], {"VLLM_API_KEY_FILE": ""}),
        ([MODEL], {"VLLM_API_KEY": ""}),
        (["vllm", "serve", MODEL], {"VLLM_API_KEY_FILE": ""}),
        (["bash", "-c", f"vllm serve {MODEL}"], {"VLLM_API_KEY": ""}),
        (EMPTY_FLAG, {}),
        (["--api-key="], {"VLLM_API_KEY": KEY}),
        (["--api-key"], {"VLLM_API_KEY": KEY}),
        ([MODEL, *EMPTY_FLAG], {"VLLM_API_KEY": KEY}),
        (["vllm", "serve", MODEL, *EMPTY_FLAG], {"VLLM_API_KEY": KEY}),
        ([], {"VLLM_API_KEY": KEY, "EXTRA_ARGS": "--api-key ''"}),
        ([MODEL], {"EXTRA_ARGS": f"--seed 1 --api-key {KEY}"}),
        (["vllm", "serve", MODEL], {"EXTRA_ARGS": f"'--api-key={KEY}'"}),
        ([], {"VLLM_API_KEYS": KEY}),
        ([MODEL], {"VLLM_APIKEY": KEY}),
        ([], {"VLLM_API_KEY_PATH": "/run/secrets/key"}),
    ],
    ids=str,
)
def test_a_server_that_would_not_require_its_key_is_refused(
    start: Start, tmp_path: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    ran = finished(start(*arguments, CHECKS="off", **variables))
    assert refused(ran, "unprotected"), ran.stderr
    assert not (tmp_path / "record").exists()
    assert "anyone who reaches the port" in ran.stderr
    assert "remedy" in ran.stderr
    assert KEY not in ran.stdout + ran.stderr


@pytest.mark.parametrize("command", [["sleep", "0"], ["tail", "/dev/null"]], ids=" ".join)
def test_a_container_that_waits_for_docker_exec_needs_the_key_itself(
    start: Start, key_file: str, command: list[str]
) -> None:
    ran = finished(start(*command, VLLM_API_KEY_FILE=key_file))
    assert refused(ran, "unprotected")
    assert "docker exec" in ran.stderr
    assert finished(start(*command, VLLM_API_KEY=KEY)).returncode == 0
    assert finished(start(*command)).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["vllm", "serve", MODEL], ["bash", "-c", "vllm serve"], [MODEL], []], ids=str
)
def test_a_missing_key_file_is_refused_however_vllm_is_started(
    start: Start, tmp_path: Path, arguments: list[str]
) -> None:
    ran = finished(start(*arguments, VLLM_API_KEY_FILE="/nowhere/key"))
    assert refused(ran, "bad-key-file")
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize("arguments", [["--api-key", "another"], [MODEL, "--api-key=another"]], ids=" ".join)
def test_two_keys_are_refused(start: Start, tmp_path: Path, arguments: list[str]) -> None:
    ran = finished(start(*arguments, VLLM_API_KEY=KEY))
    assert refused(ran, "contradiction")
    assert not (tmp_path / "record").exists()
    assert "another" not in ran.stderr


def test_a_key_cannot_add_headers_to_requests(start: Start) -> None:
    ran = finished(start("vllm", "serve", MODEL, VLLM_API_KEY="one\r\nX-Header: two"))
    assert refused(ran, "bad-value")
    assert "X-Header" not in ran.stderr


def test_a_server_without_any_key_starts(start: Start, tmp_path: Path) -> None:
    assert finished(start()).returncode == 0
    assert "VLLM_API_KEY" not in recorded(tmp_path)["environment"]
