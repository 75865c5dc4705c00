"""The serve program in a real container with a real vLLM: the tiny model on a CPU.

The program of this checkout is mounted over the image's own, so a change is tested without building an image.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import requests

from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.targets import select
from imagefactory.plan.serve.description import describe_image, image_environment, settings_bytes
from imagefactory.plan.serve.image_paths import (
    CACHES,
    ENTRYPOINT,
    PROGRAM,
    SETTINGS,
    cache_environment,
    program_folder,
)
from tests.fixtures.serving import REPOSITORY, model_document

pytestmark = [pytest.mark.engine, pytest.mark.network]
START_LIMIT = 300
KEY = "a-key-for-this-test"


@dataclass
class Engine:
    """Runs containers of the tiny image with this checkout's program."""

    folder: Path
    volume: str
    image: str

    def run(self, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return docker("run", "--rm", *self.options(), *options, self.image, *ENTRYPOINT[1:], *arguments)

    def options(self) -> list[str]:
        return [
            *("--network", "host", "--ipc", "host"),
            *("--env-file", str(self.folder / "env")),
            *("--volume", f"{program_folder(REPOSITORY)}:/{PROGRAM}:ro"),
            *("--volume", f"{self.folder / 'settings.json'}:/{SETTINGS}:ro"),
            *("--volume", f"{self.volume}:{CACHES}"),
            *("--entrypoint", ENTRYPOINT[0]),
        ]


@pytest.fixture(scope="module")
def engine(
    tmp_path_factory: pytest.TempPathFactory, real_matrix: Matrix, tiny_image: str
) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("serve")
    cell = select(real_matrix, ["tiny"])[0]
    description = describe_image(real_matrix, cell, model_document(real_matrix, cell))
    (folder / "settings.json").write_bytes(settings_bytes(description))
    variables = cache_environment() | image_environment(description)
    (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    (folder / "key").write_text(KEY)
    volume = f"imagefactory-test-{uuid4().hex[:12]}"
    yield Engine(folder, volume, tiny_image)
    docker("volume", "rm", "--force", volume)


def test_a_dry_run_prints_the_command_and_the_checks(engine: Engine) -> None:
    ran = engine.run("--dry-run", "--json")
    found = json.loads(ran.stdout)
    assert found["command"][:3] == ["vllm", "serve", "/opt/models/tiny"]
    results = {check["name"]: check["result"] for check in found["checks"]}
    assert results["flags"] == "ok"
    assert results["model"] == "ok"


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({"MAX_MODEL_LEN": "many"}, 65, "MAX_MODEL_LEN=many"),
        ({"MAX_NUM_SEQS": "0"}, 66, "from 1 to"),
        ({"EXTRA_ARGS": "--max-modle-len 5"}, 68, "--max-modle-len"),
        ({"MODEL_PATH": "/models/none"}, 70, "does not exist"),
        ({"VLLM_API_KEY_FILE": "/run/secrets/none"}, 69, "VLLM_API_KEY_FILE"),
    ],
)
def test_bad_settings_are_named_before_vllm_starts(
    engine: Engine, variables: dict[str, str], code: int, words: str
) -> None:
    options = tuple(word for name, value in variables.items() for word in ("--env", f"{name}={value}"))
    ran = engine.run(options=options)
    assert ran.returncode == code
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_dockers_small_shared_memory_is_named_before_vllm_starts(engine: Engine) -> None:
    ran = engine.run(options=("--ipc", "private", "--shm-size", "64m"))
    assert ran.returncode == 74
    assert "--ipc host" in ran.stderr


def test_a_server_needs_its_key_stops_cleanly_and_starts_faster_the_second_time(engine: Engine) -> None:
    first = serve_once(engine)
    second = serve_once(engine)
    assert second < first


def serve_once(engine: Engine) -> float:
    """Serve in a fresh container, with what must hold on the way; return the seconds until it was healthy."""
    name, port = f"imagefactory-test-{uuid4().hex[:12]}", free_port()
    started = time.monotonic()
    ran = docker(
        *("run", "--detach", "--name", name, *engine.options()),
        *("--volume", f"{engine.folder / 'key'}:/run/secrets/key:ro"),
        *("--env", "VLLM_API_KEY_FILE=/run/secrets/key", "--env", f"PORT={port}"),
        *(engine.image, *ENTRYPOINT[1:]),
    )
    assert ran.returncode == 0, ran.stderr
    try:
        wait_until_healthy(name, port)
        seconds = time.monotonic() - started
        address = f"http://127.0.0.1:{port}"
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        ask = f"{address}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {KEY}"}
        assert requests.post(ask, json=body, timeout=60).status_code == 401
        assert requests.post(ask, json=body, headers=headers, timeout=60).status_code == 200
        assert docker("exec", name, *ENTRYPOINT, "health").stdout == "healthy\n"
        processes = docker("exec", name, "ps", "-eo", "pid,stat,args").stdout.splitlines()[1:]
        assert any(line.split(None, 2)[0] == "1" and "vllm serve" in line for line in processes)
        assert not [line for line in processes if line.split(None, 2)[1].startswith("Z")]
        wait_for_log(name, "warm-up request 1 of 1 answered")
        assert KEY not in docker("logs", name).stdout + docker("logs", name).stderr
        assert KEY not in docker("inspect", name).stdout
        stopping = time.monotonic()
        docker("stop", "--time", "10", name)
        assert time.monotonic() - stopping < 9
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip() == "0"
    finally:
        docker("rm", "--force", name)
    return seconds


def wait_until_healthy(name: str, port: int) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        try:
            if requests.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                return
        except requests.RequestException:
            pass
        if docker("inspect", "--format", "{{.State.Running}}", name).stdout.strip() != "true":
            break
        time.sleep(0.5)
    pytest.fail(f"the server did not become healthy:\n{docker('logs', '--tail', '40', name).stderr}")


def wait_for_log(name: str, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in docker("logs", name).stderr:
        assert time.monotonic() < deadline, f"the log never said {words!r}"
        time.sleep(0.5)


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
