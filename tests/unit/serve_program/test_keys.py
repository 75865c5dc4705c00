"""The API key: however it is given, the server requires it, or does not start."""

import os
from pathlib import Path

import pytest

from tests.fixtures.failures import refused
from tests.fixtures.serve_process import QuickStart
from tests.fixtures.serving import REPOSITORY

KEY = "hunter2-hunter2"
MODEL = "some/model"
HOOK = REPOSITORY / "images" / "serve" / "hook"


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--seed", "7"], [MODEL], ["vllm", "serve", MODEL], ["bash", "-c", "vllm serve m"], ["--help=all"]],
    ids=" ".join,
)
def test_the_key_reaches_vllm_and_its_guard_however_it_is_started(
    quick_start: QuickStart, key_file: str, arguments: list[str]
) -> None:
    for given in ({"VLLM_API_KEY": KEY}, {"VLLM_API_KEY_FILE": key_file}):
        ran = quick_start(*arguments, PYTHONPATH="/own", **given)
        assert ran.became, ran.stderr
        assert ran.environment["VLLM_API_KEY"] == KEY
        assert "VLLM_API_KEY_FILE" not in ran.environment
        guarded = [] if arguments == ["--help=all"] else [str(HOOK)]
        assert ran.environment["PYTHONPATH"].split(os.pathsep) == [*guarded, "/own"]
        assert KEY not in " ".join(ran.became) + ran.stdout + ran.stderr


@pytest.mark.parametrize("flag", [["--api-key", KEY], [f"--api-key={KEY}"], ["--api_key", KEY], ["--api-k", KEY]])
def test_a_key_among_the_arguments_reaches_vllm_where_it_is_not_logged(
    quick_start: QuickStart, flag: list[str]
) -> None:
    for before in ([], [MODEL], ["vllm", "serve", MODEL]):
        ran = quick_start(*before, *flag, "--seed", "7")
        assert ran.environment["VLLM_API_KEY"] == KEY
        assert ran.became[-2:] == ["--seed", "7"]
        assert KEY not in " ".join(ran.became) + ran.stdout + ran.stderr


def test_a_token_among_the_arguments_reaches_vllm_where_it_is_not_logged(quick_start: QuickStart) -> None:
    ran = quick_start(EXTRA_ARGS=f"--hf-token {KEY} --seed 7")
    assert ran.environment["HF_TOKEN"] == KEY
    assert KEY not in " ".join(ran.became) + ran.stdout + ran.stderr
    assert "--hf-token" in quick_start("--seed", "7", "--hf-token").became


@pytest.mark.parametrize("keys", [[KEY, f"{KEY}-2"], [f"{KEY} two"], ["schlüssel"]], ids=str)
def test_a_key_that_no_header_or_variable_could_hold_is_refused(quick_start: QuickStart, keys: list[str]) -> None:
    ran = quick_start(MODEL, "--api-key", *keys, "--seed", "7")
    assert refused(ran, "bad-value"), ran.stderr
    assert KEY not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--grpc"], {}),
        (["vllm", "serve", MODEL, "--grpc-port", "50051"], {}),
        ([MODEL, "--grp"], {}),
        ([], {"VLLM_USE_RUST_FRONTEND": "1"}),
        (["--smg-grpc-mode"], {"SGLANG_GRPC_PORT": "5"}),
    ],
    ids=str,
)
def test_a_service_that_does_not_ask_for_the_key_is_refused_beside_one(
    quick_start: QuickStart, arguments: list[str], variables: dict[str, str]
) -> None:
    ran = quick_start(*arguments, VLLM_API_KEY=KEY, CHECKS="off", **variables)
    assert refused(ran, "unprotected"), ran.stderr
    assert quick_start(*arguments, CHECKS="off", **variables).became


def test_a_key_in_a_configuration_file_is_refused(quick_start: QuickStart, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    for text, key in (("port: 1\n", False), (f"api-key: {KEY}\n", True), (f"x: 1\n'api_key': [{KEY}]\n", True)):
        file.write_text(text)
        for flag in (["--config", str(file)], [f"--config={file}"]):
            ran = quick_start("vllm", "serve", MODEL, *flag)
            assert refused(ran, "unprotected") if key else ran.became
            assert KEY not in ran.stderr


EMPTY_FLAG = ["--api-key", ""]


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        ([], {"VLLM_API_KEY": ""}),
        ([], {"VLLM_API_KEY_FILE": ""}),
        (["vllm", "serve", MODEL], {"VLLM_API_KEY_FILE": ""}),
        (["bash", "-c", f"vllm serve {MODEL}"], {"VLLM_API_KEY": ""}),
        (EMPTY_FLAG, {}),
        (["--api-key"], {"VLLM_API_KEY": KEY}),
        (["vllm", "serve", MODEL, *EMPTY_FLAG], {"VLLM_API_KEY": KEY}),
        ([], {"VLLM_API_KEY": KEY, "EXTRA_ARGS": "--api-key ''"}),
        ([MODEL], {"EXTRA_ARGS": f"--seed 1 --api-key {KEY}"}),
        ([], {"VLLM_API_KEYS": KEY}),
        ([], {"VLLM_API_KEY_PATH": "/run/secrets/key"}),
    ],
    ids=str,
)
def test_a_server_that_would_not_require_its_key_is_refused(
    quick_start: QuickStart, arguments: list[str], variables: dict[str, str]
) -> None:
    ran = quick_start(*arguments, CHECKS="off", **variables)
    assert refused(ran, "unprotected"), ran.stderr
    assert "anyone who reaches the port" in ran.stderr
    assert "remedy" in ran.stderr
    assert KEY not in ran.stdout + ran.stderr


def test_a_container_that_waits_for_docker_exec_needs_the_key_itself(quick_start: QuickStart, key_file: str) -> None:
    for command in (["sleep", "0"], ["tail", "/dev/null"]):
        ran = quick_start(*command, VLLM_API_KEY_FILE=key_file)
        assert refused(ran, "unprotected")
        assert "docker exec" in ran.stderr
        assert quick_start(*command, VLLM_API_KEY=KEY).became == command
        assert quick_start(*command).became == command


def test_a_missing_key_file_is_refused_however_vllm_is_started(quick_start: QuickStart) -> None:
    for arguments in (["vllm", "serve", MODEL], ["bash", "-c", "vllm serve"], [MODEL], []):
        ran = quick_start(*arguments, VLLM_API_KEY_FILE="/nowhere/key")
        assert refused(ran, "bad-key-file"), arguments


def test_two_keys_are_refused(quick_start: QuickStart, key_file: str) -> None:
    for arguments, variables in (
        (["--api-key", "another"], {}),
        ([MODEL, "--api-key=another"], {}),
        ([], {"VLLM_API_KEY_FILE": key_file}),
    ):
        ran = quick_start(*arguments, VLLM_API_KEY="another-key", **variables)
        assert refused(ran, "contradiction"), ran.stderr
        assert "another" not in ran.stderr
        assert KEY not in ran.stderr


def test_a_key_cannot_add_headers_to_requests(quick_start: QuickStart) -> None:
    ran = quick_start("vllm", "serve", MODEL, VLLM_API_KEY="one\r\nX-Header: two")
    assert refused(ran, "bad-value")
    assert "X-Header" not in ran.stderr
