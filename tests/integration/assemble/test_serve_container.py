"""The serve program in a real container with a real vLLM: the tiny model on a CPU.

The program of this checkout is mounted over the image's own, so a change is tested without building an image.
"""

import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests
import yaml

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import Bench, measure, recording
from imagefactory.check.bench.profiles import Profile
from imagefactory.check.bench.result import BenchResult
from imagefactory.check.bench.tool import command_in
from imagefactory.check.smoke.containers import Container, Containers, RunningServer, docker
from imagefactory.launch.docker_run import Launch
from imagefactory.launch.recipes import llama_swap
from imagefactory.plan.serve.description import describe_image, image_environment, settings_bytes
from imagefactory.plan.serve.image_paths import (
    CACHES,
    ENTRYPOINT,
    MODEL_CACHE,
    PROGRAM,
    SETTINGS,
    cache_environment,
    program_folder,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.servers.known import SERVERS
from imagefactory.project.targets import select
from imagefactory.store.index_config import environment_for_uv
from images.serve.program.liveness import MEMORY, STUCK
from images.serve.program.memory import GB
from tests.fixtures import probes
from tests.fixtures.benchmarks import result
from tests.fixtures.engines import wait_for_log, wait_until
from tests.fixtures.failures import refused
from tests.fixtures.model_hub import ModelHub
from tests.fixtures.serving import READINGS, REPOSITORY, model_document

pytestmark = [pytest.mark.engine, pytest.mark.network]
START_LIMIT = 900
LATE = """#!/usr/bin/python3
import os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
late = [70]
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health" and late:
            time.sleep(late.pop())
        self.send_response(200)
        self.end_headers()
ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
"""A server that ignores its key, and answers its first request too late for who asks."""
SDKS = ("anthropic==2.8.0", "openai==3.49.0")


@dataclass
class Engine:
    """Runs containers of the tiny image with this checkout's program."""

    folder: Path
    image: str
    containers: Containers

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("--env-file", str(self.folder / "env")),
            *("--volume", f"{program_folder(REPOSITORY)}:/{PROGRAM}:ro"),
            *("--volume", f"{self.folder / 'settings.json'}:/{SETTINGS}:ro"),
        )

    def run(self, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        host = ("--network", "host", "--ipc", "host", *self.containers.caches(self.image))
        words = ("run", "--rm", *host, *self.options, *options, self.image, *arguments)
        return docker(*words, timeout=START_LIMIT)


@pytest.fixture(scope="module")
def engine(
    tmp_path_factory: pytest.TempPathFactory, real_matrix: Matrix, tiny_image: str, containers: Containers
) -> Engine:
    folder = tmp_path_factory.mktemp("serve")
    cell = select(real_matrix, ["tiny"])[0]
    description = describe_image(real_matrix, cell, model_document(real_matrix, cell))
    (folder / "settings.json").write_bytes(settings_bytes(description))
    variables = cache_environment(SERVERS["vllm"]) | image_environment(description)
    (folder / "env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    return Engine(folder, tiny_image, containers)


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ("--env 'EXTRA_ARGS=--max-modle-len 5'", "flags", "--max-modle-len"),
        ("--ipc private --shm-size 64m", "shm", "--ipc host"),
    ],
)
def test_a_bad_start_is_named_before_vllm_starts(engine: Engine, options: str, name: str, words: str) -> None:
    ran = engine.run(options=tuple(shlex.split(options)))
    assert refused(ran, name)
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
@pytest.mark.each_run
def test_server_is_measured_fills_its_volume_and_leaves_no_zombies(engine: Engine) -> None:
    with engine.containers.serve(engine.image, engine.folder, options=engine.options) as server:
        server.wait_until_healthy(START_LIMIT)
        container = server.container
        processes = container.execute("ps", "-eo", "pid,stat,args").stdout.splitlines()[1:]
        assert any(line.split(None, 2)[0] == "1" and PROGRAM in line for line in processes)
        assert not [line for line in processes if line.split(None, 2)[1].startswith("Z")]
        wait_for_log(container, "warm-up 1 of 1: short")
        # What the next start need not find out again.
        assert container.execute("ls", f"{CACHES}/vllm/modelinfos").stdout.endswith(".json\n")
        measure_once(server, engine.folder)
        assert server.key not in docker("inspect", container.name).stdout


@pytest.mark.slow
def test_health_and_alive_tell_a_start_a_hang_and_an_end(engine: Engine) -> None:
    """All health checks of vLLM itself stay green; the probes of our manifests do not."""
    options = (*engine.options, "--env", "HANG_LIMIT=100", "--env", "WARMUP=20")
    with engine.containers.serve(engine.image, engine.folder, options=options) as server:
        container = server.container
        assert probes.passing(server) == set(), "nothing listens while it loads"
        wait_for_log(container, "warm-up 1 of 20: short", START_LIMIT)
        assert told(server) == (503, "the server is starting: it is being warmed up", 200)
        assert container.execute(*ENTRYPOINT, "health").stdout == "the server is starting: it is being warmed up\n"
        assert probes.passing(server) == probes.ALIVE
        server.wait_until_healthy(START_LIMIT)
        assert told(server) == (200, "", 200)
        assert probes.passing(server) == probes.ALL
        assert "warm-up 20 of 20: short" in container.log.partition("[serve] ready: ")[0]
        container.execute("kill", "-STOP", engine_core(container))
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(ask_in_vain, server)
            wait_for_log(container, "the engine is stuck: no progress since", 200)
            status, reason, alive = told(server) or (0, "", 0)
            assert (status, alive) == (503, 200)
            assert reason.startswith("the engine is stuck: no progress since")
            assert "the engine is stuck" in container.execute(*ENTRYPOINT, "health").stdout
            assert probes.passing(server) == probes.ALIVE
            assert "Ending the server with code 69, after HANG_LIMIT=100 s" in waiting.result()
        assert container.exit_code == STUCK
        assert probes.passing(server) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "more"), [("load", "--init"), ("warm-up", ""), ("idle", "--init")], ids=lambda word: word
)
def test_an_engine_that_hangs_is_unhealthy_and_then_ended(engine: Engine, phase: str, more: str) -> None:
    """Whether the program is process 1 or not. All checks of vLLM itself stay green."""
    variables = ("--env", "HANG_LIMIT=150", "--env", f"WARMUP={20 if phase == 'warm-up' else 1}")
    options = (*engine.options, *more.split(), *variables)
    with engine.containers.serve(engine.image, engine.folder, options=options) as server:
        container = server.container
        if phase == "idle":
            server.wait_until_healthy(START_LIMIT)
        elif phase == "warm-up":
            wait_until(lambda: is_healthy(f"{server.address}/metrics"), START_LIMIT, container)
        wait_until(lambda: engine_core(container), START_LIMIT, container)
        container.execute("kill", "-STOP", engine_core(container))
        frozen = time.monotonic()
        stuck = "the start is stuck: no process" if phase == "load" else "the engine is stuck: no progress since"
        wait_for_log(container, stuck, 300)
        unhealthy = time.monotonic() - frozen
        assert stuck in container.execute(*ENTRYPOINT, "health").stdout
        wait_until(lambda: not container.is_running, 300, container)
        sys.stdout.write(f"{phase}: unhealthy after {unhealthy:.0f} s, ended after {time.monotonic() - frozen:.0f} s\n")
        assert "Ending the server with code 69, after HANG_LIMIT=150 s" in container.log
        assert re.search(r"process \d+ \(VLLM::EngineCor\): stopped by a signal", container.log)
        assert re.search(r"its newest calls:\nStack \(most recent call first\):\n +File ", container.log)
        assert container.exit_code == STUCK


@pytest.mark.slow
def test_a_server_that_nobody_watches_is_unhealthy(engine: Engine) -> None:
    """If the companion is gone, nobody sees that the engine hangs, and the request that waits is never answered."""
    with engine.containers.serve(engine.image, engine.folder, options=engine.options) as server:
        container = server.container
        wait_until(lambda: docker_says(container) == "healthy", START_LIMIT, container)
        processes = [
            line.split(None, 2) for line in container.execute("ps", "-eo", "pid,ppid,args").stdout.splitlines()
        ]
        [companion] = [number for number, parent, args in processes if PROGRAM in args and parent not in {"0", "1"}]
        container.execute("kill", "-STOP", engine_core(container))
        container.execute("kill", "-KILL", companion)
        wait_until(lambda: docker_says(container) == "unhealthy", 60, container)
        assert "nobody would notice if the server hung" in container.execute(*ENTRYPOINT, "health").stdout


@pytest.mark.slow
def test_a_server_whose_first_answer_is_late_still_has_to_ask_for_its_key(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "vllm").write_text(LATE)
    (tmp_path / "vllm").chmod(0o755)
    options = (*engine.options, "--volume", f"{tmp_path / 'vllm'}:/opt/venv/bin/vllm:ro")
    with engine.containers.serve(engine.image, tmp_path, options=options) as server:
        container, seen = server.container, set[str]()

        def ended() -> bool:
            seen.add(docker_says(container))
            return container.exit_code is not None

        wait_until(ended, 180, container)
        assert container.exit_code == 128 + signal.SIGTERM
        assert "the server answers without its key: it is stopped" in container.log
        assert "ready: " not in container.log
        assert seen <= {"starting", "unhealthy"}


@pytest.mark.slow
def test_a_downloaded_model_is_served_without_a_network(engine: Engine, model_hub: ModelHub, tmp_path: Path) -> None:
    model_hub.repositories["some/tiny"] = {Path(name).name: content for name, content in tiny_model().items()}
    variables = {"MODEL": "some/tiny", "HF_ENDPOINT": model_hub.url, "HF_HUB_OFFLINE": "", "HOST": "127.0.0.1"}
    own = tuple(word for name, value in variables.items() for word in ("--env", f"{name}={value}"))
    volume = ("--volume", f"{tmp_path}:{MODEL_CACHE}")
    small = engine.run("download", options=(*own, "--tmpfs", f"{MODEL_CACHE}:size=4k"))
    assert refused(small, "disk")
    downloaded = engine.run("download", options=(*own, *volume))
    assert downloaded.returncode == 0, downloaded.stderr
    alone = (*engine.options, *own, *volume, "--network", "none", "--hostname", "localhost", "--ipc", "host")
    container = engine.containers.start(engine.image, options=alone)
    try:
        wait_for_log(container, "the hub is not asked")
        health = (*ENTRYPOINT, "health")
        wait_until(lambda: container.execute(*health).stdout == "healthy\n", START_LIMIT, container)
    finally:
        container.remove()


@pytest.mark.slow
def test_memory_that_runs_out_refuses_requests_and_then_ends_the_server(engine: Engine, tmp_path: Path) -> None:
    """The machine is said to be a Spark, and what it has left is a file."""
    meminfo = tmp_path / "meminfo"

    def leave(gigabytes: float) -> None:
        kilobytes = f"MemAvailable: {gigabytes * GB / 1024:.0f} kB"
        meminfo.write_text(re.sub("MemAvailable:.*", kilobytes, Path("/proc/meminfo").read_text()))

    leave(9)
    mounts = {meminfo: "/proc/meminfo", READINGS / "gb10.json": "/gb10.json"}
    volumes = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}:ro")]
    options = (*engine.options, *volumes, "--env", "FACTORY_READINGS=/gb10.json")
    with engine.containers.serve(engine.image, engine.folder, options=options) as server:
        server.wait_until_healthy(START_LIMIT)
        container = server.container
        wait_for_log(container, "start in seconds")
        body: dict[str, object] = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        leave(2.5)
        wait_for_log(container, "new requests are refused until 4 GB are left", 20)
        refusal = server.post("/v1/completions", body)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "30")
        reason = refusal.json()["error"]["message"]
        assert reason.startswith("The server takes no new requests: 2.5 GB of memory are left")
        assert container.execute(*ENTRYPOINT, "health").stdout == f"{reason}\n"
        assert told(server) == (503, reason, 200)
        assert probes.passing(server) == probes.ALIVE
        assert requests.get(f"{server.address}/metrics", timeout=5).status_code == 200
        leave(4.5)
        wait_for_log(container, "4.5 GB of memory are left: accepting requests again", 20)
        assert server.post("/v1/completions", body).status_code == 200
        leave(1.5)
        wait_until(lambda: not container.is_running, 60, container)
        assert container.exit_code == MEMORY
        assert "ending the server with code 70, before the host freezes" in container.log


@pytest.mark.slow
def test_the_sdks_of_openai_and_anthropic_chat_stream_and_call_tools(engine: Engine, tmp_path: Path) -> None:
    uv, python = str(Path(sys.executable).with_name("uv")), str(tmp_path / "bin" / "python")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(tmp_path)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *SDKS], env=environment_for_uv(), check=True)
    options = (*engine.options, "--env", "ENABLE_AUTO_TOOL_CHOICE=1", "--env", "TOOL_CALL_PARSER=hermes")
    with engine.containers.serve(engine.image, engine.folder, options=options) as server:
        server.wait_until_healthy(START_LIMIT)
        program = REPOSITORY / "tests" / "fixtures" / "in_container" / "sdks.py"
        subprocess.run([python, program, server.address, server.key], check=True)


@pytest.mark.slow
def test_the_configuration_of_llama_swap_swaps_models_by_request(
    engine: Engine, real_matrix: Matrix, tmp_path: Path
) -> None:
    """A stand-in does what llama-swap does with each field."""
    cell = select(real_matrix, ["tiny"])[0]
    description = describe_image(real_matrix, cell, model_document(real_matrix, cell))
    mounts = {str(program_folder(REPOSITORY)): f"/{PROGRAM}", str(engine.folder / "settings.json"): f"/{SETTINGS}"}
    launches = [
        Launch(replace(cell, model=name), engine.image, description, {"SERVED_MODEL_NAME": f"{name}-served"}, None,
               str(tmp_path), mounts)
        for name in ("swapped-1", "swapped-2")
    ]  # fmt: skip
    config = yaml.safe_load(llama_swap(launches))
    try:
        for name, model in config["models"].items():
            started = time.monotonic()
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = str(free.getsockname()[1])
            command = shlex.split(model["cmd"].replace("\\\n", " ").replace("${PORT}", port))
            with (tmp_path / "log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            address = model["proxy"].replace("${PORT}", port)
            while not is_healthy(address + model["checkEndpoint"]):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() - started < config["healthCheckTimeout"]
                time.sleep(0.5)
            body = {"model": model["useModelName"], "prompt": "a", "max_tokens": 1}
            assert requests.post(f"{address}/v1/completions", json=body, timeout=60).json()["model"] == f"{name}-served"
            subprocess.run(shlex.split(model["cmdStop"]), check=True)
            assert process.wait(60) == 0
    finally:
        docker("rm", "--force", *(launch.container for launch in launches))
        docker("volume", "rm", "--force", *{launch.cache_volume for launch in launches})


def is_healthy(url: str) -> bool:
    with suppress(requests.RequestException):
        return requests.get(url, timeout=5).ok
    return False


def engine_core(container: Container) -> str:
    """Return the number of the engine's process; empty if it has not started."""
    processes = container.execute("ps", "-eo", "pid,args").stdout.splitlines()
    return next((line.split()[0] for line in processes if "VLLM::EngineCore" in line), "")


def told(server: RunningServer) -> tuple[int, str, int] | None:
    """Return what /health says to somebody without a key, with its reason, and what /alive says."""
    with suppress(requests.RequestException):
        health, alive = (requests.get(f"{server.address}/{path}", timeout=5) for path in ("health", "alive"))
        return health.status_code, "" if health.ok else health.json()["error"]["message"], alive.status_code
    return None


def docker_says(container: Container) -> str:
    """Return the health that `docker ps` shows."""
    return docker("inspect", "--format", "{{.State.Health.Status}}", container.name).stdout.strip()


def ask_in_vain(server: RunningServer) -> str:
    """Send a request that nobody answers; return the log once the server has ended."""
    body: dict[str, object] = {"model": "tiny", "prompt": "a", "max_tokens": 1}
    with suppress(requests.RequestException):
        server.post("/v1/completions", body)
    wait_until(lambda: not server.container.is_running, 200, server.container)
    return server.container.log


class ShortBench(Bench):
    """A benchmark of one short answer of each kind."""

    @property
    def profile(self) -> Profile:
        return super().profile.model_copy(update={"requests": 1, "output": 16})


def measure_once(server: RunningServer, folder: Path) -> None:
    """Run a short benchmark, with the tool of the image."""
    bench = ShortBench(Project(REPOSITORY), "quick", {}, repeats=1, limit=START_LIMIT)
    endpoint = Endpoint(server.address, server.key, server.container)
    path = folder / "result.json"
    with recording(path, result(measurements=(), complete=False, why="new")) as record:
        measure(bench, record, endpoint, command_in(server.container.name), lambda _: None)
    found = BenchResult.read(path)
    assert found.complete
    assert [one.kind for one in found.measurements] == ["code", "prose", "dialogue", "maths", "tools"]
    assert all(one.tokens_per_second > 0 and not one.failed for one in found.measurements)
    assert [check.outcome for check in found.sanity] == ["passed", "passed", "not-applicable"]
    assert found.peak_memory > 0
