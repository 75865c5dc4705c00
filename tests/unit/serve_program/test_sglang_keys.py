"""A key reaches SGLang, and nobody else."""

import json
from pathlib import Path

import pytest
import yaml

from images.serve.program.first_process import UNASKED
from images.serve.program.keys import KEY
from tests.fixtures.engines import wait_until
from tests.fixtures.failures import refused
from tests.fixtures.serve_process import SERVES, Start, finished, free_port, recorded, wait_for

SECRET = "s3cret-key'\"\\"  # noqa: S105
UNCHECKED = {"CHECKS": "off"}
READS_AND_LOGS = """
import logging
config = sys.argv[sys.argv.index("--config") + 1]
record["config"] = open(config, encoding="utf-8").read()
record["mode"] = os.stat(config).st_mode & 0o777
open({path!r}, "w").write(json.dumps(record))
logging.basicConfig(level=logging.INFO)
logging.getLogger("sglang.srt").info(f"server_args={{ {{'api_key': os.environ['VLLM_API_KEY']}} }}")
"""


@pytest.mark.parametrize("command", [[], ["sglang", "serve", "m"], ["org/model", "--page-size", "1"]], ids=" ".join)
def test_the_key_travels_in_a_file_and_is_hidden_in_the_log(
    sglang_start: Start, tmp_path: Path, command: list[str]
) -> None:
    then = READS_AND_LOGS.format(path=str(tmp_path / "record"))
    ran = finished(sglang_start(*command, then=then, VLLM_API_KEY=SECRET, **UNCHECKED))
    found = recorded(tmp_path)
    assert ran.returncode == UNASKED, ran.stderr
    assert yaml.safe_load(found["config"]) == {"api-key": SECRET}
    assert found["mode"] == 0o600
    assert SECRET not in json.dumps(found["arguments"], ensure_ascii=False)
    assert "s3cret" not in ran.stdout + ran.stderr
    assert "server_args" in ran.stderr
    assert "(hidden)" in ran.stderr


def test_without_a_key_there_is_no_file(sglang_start: Start, tmp_path: Path) -> None:
    assert finished(sglang_start(**UNCHECKED)).returncode == UNASKED
    assert "--config" not in recorded(tmp_path)["arguments"]


def test_the_file_is_removed_once_the_server_is_ready(sglang_start: Start, tmp_path: Path) -> None:
    process = sglang_start(then=SERVES % 401, VLLM_API_KEY="s3cret-key", PORT=str(free_port()), **UNCHECKED)
    try:
        wait_for(tmp_path / "record")
        arguments = recorded(tmp_path)["arguments"]
        file = Path(arguments[arguments.index("--config") + 1])
        wait_until(lambda: not file.exists(), 20)
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("command", [["bash", "-c", "true"], ["sleep", "0"], ["sglang", "version"]], ids=" ".join)
def test_a_program_whose_server_would_not_know_the_key_is_refused(
    sglang_start: Start, tmp_path: Path, command: list[str]
) -> None:
    ran = finished(sglang_start(*command, **{KEY: "s3cret-key"}))
    assert refused(ran, "unprotected")
    assert "SGLang does not read VLLM_API_KEY" in ran.stderr
    assert "s3cret" not in ran.stderr
    assert not (tmp_path / "record").exists()
    assert finished(sglang_start(*command)).returncode == 0


def test_the_program_of_another_server_is_refused(sglang_start: Start) -> None:
    ran = finished(sglang_start("vllm", "serve", "m"))
    assert refused(ran, "bad-option")
    assert "its server is SGLang" in ran.stderr
