"""No secret appears in commands, messages or logs of the serve program."""

import json
import time

import pytest

from images.serve.program import main, redaction
from tests.fixtures.serve_process import QuickStart

SECRET = "hunter2-hunter2"  # noqa: S105
HF_SHAPE = "hf_" + "Ab1" * 11
LOADER = json.dumps({"aws_secret_access_key": SECRET})


@pytest.mark.parametrize(
    "variables",
    [
        {"EXTRA_ARGS": f"--hf_token={SECRET} --seed 1"},
        {"EXTRA_ARGS": f"--api-key {SECRET} {SECRET}-2"},
        {"EXTRA_ARGS": f"--api-key '{SECRET}"},
        {"EXTRA_ARGS": f"--model-loader-extra-config '{LOADER}'"},
        {"EXTRA_ARGS": f"--otlp-traces-endpoint https://me:{SECRET}@host/"},
        {"EXTRA_ARGS": f"--something OTHER_TOKEN={SECRET}"},
        {"VLLM_API_KEY": SECRET, "MAX_MODEL_LEN": SECRET},
        {"VLLM_API_KEY": f"{SECRET}\n", "CHAT_TEMPLATE": f"/{SECRET}"},
        {"VLLM_API_KEY_FILE": SECRET},
        {"VLLM_API_KEY": SECRET, "VLLM_API_KEY_FILE": SECRET},
        {"AWS_SECRET_ACCESS_KEY": SECRET, "MODS": SECRET},
    ],
    ids=str,
)
def test_no_secret_is_printed(quick_start: QuickStart, variables: dict[str, str]) -> None:
    for way in (("--dry-run", "--json"), (), ("check",)):
        ran = quick_start(*way, **variables)
        assert ran.stdout + ran.stderr, way
        assert SECRET not in ran.stdout + ran.stderr, way
        assert "Traceback" not in ran.stderr, way


def test_no_secret_among_the_arguments_is_printed(quick_start: QuickStart) -> None:
    of_checks, of_settings = ["check", "--api-key", SECRET], ["settings", f"--hf-token={SECRET}"]
    for arguments in (of_checks, of_settings, ["some/model", "--dry-run", "--hf-to", SECRET]):
        ran = quick_start(*arguments)
        assert SECRET not in ran.stdout + ran.stderr


@pytest.mark.parametrize("arguments", [[], ["--hf-token", SECRET]])
def test_a_traceback_has_no_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    def broken(_: object) -> int:
        raise KeyError(SECRET)

    monkeypatch.setattr(main, "_run", broken)
    monkeypatch.setattr("sys.argv", ["serve", *arguments])
    if not arguments:
        monkeypatch.setenv("HF_TOKEN", SECRET)
    assert main.main(arguments) == 68
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert "Traceback" in said
    assert SECRET not in said


def test_what_is_no_secret_is_shown() -> None:
    words = ["m", "--max-num-batched-tokens", "9", "--tokenizer", "t", "--ssl-keyfile", "/k"]
    assert redaction.masked(words) == words
    text = 'remedy: -v /host:/run/secrets/key:ro {"kv_per_token": 65536, "name": "api-key"}'
    assert redaction.hide(text) == text
    assert redaction.hide(f"cannot load {HF_SHAPE}.") == "cannot load (hidden)."


@pytest.mark.parametrize("text", ["x" * 200_000, "key" * 70_000, "a-" * 100_000, "://" * 70_000, "sk-" * 70_000])
def test_long_texts_are_searched_in_linear_time(text: str) -> None:
    started = time.process_time()
    redaction.hide(text)
    assert time.process_time() - started < 5


def test_many_words_are_searched_once(quick_start: QuickStart) -> None:
    started = time.monotonic()
    assert quick_start("--dry-run", EXTRA_ARGS="--seed 1 " * 5_000).returncode == 0
    assert time.monotonic() - started < 40
