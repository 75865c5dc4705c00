"""What is compiled beside a start, in a container: killed and resumed, and without room, cores or memory.

The image for GPUs, its compilers, FlashInfer and this checkout's serve program are real; the server is a stand-in that
answers at once, and the driver, which only the linker wants, an empty library. The start goes on whatever happens.
`sampling` takes minutes, so what goes wrong does so with a smaller module.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import Container, Containers
from imagefactory.plan.serve.image_paths import CACHES, ENTRYPOINT, PROGRAM, SETTINGS, program_folder
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_for_log, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
BUSY_SPARK = REPOSITORY / "tests" / "fixtures" / "readings" / "gb10-busy.json"
SAMPLING = {"sampling": "flashinfer.jit.sampling:gen_sampling_module"}
SMALL = {"quantization": "flashinfer.jit.quantization:gen_quantization_module"}
COMPILE_LIMIT = 1800
STAND_IN = """#!/usr/bin/python3
import http.server, os, signal
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
WITH_DRIVER = f"mkdir /stub && echo | gcc -shared -x c -o /stub/libcuda.so - && exec {' '.join(ENTRYPOINT)}"
VARIABLES = {
    "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
    "LIBRARY_PATH": "/stub",
    "SKIP_CHECKS": "gpu,driver,kernels,model,drafter,disk,memory,shm",
    "VLLM_API_KEY": "key",
    "WARMUP": "0",
}
COMPILERS = ("nvcc", "cicc", "ptxas", "cudafe++", "cc1plus")


Start = Callable[..., Container]


@pytest.fixture
def start(gpu_image: str, containers: Containers, tmp_path: Path) -> Iterator[Start]:
    """Start a container whose model calls the small module, or another."""
    stand_in, settings = tmp_path / "stand-in", tmp_path / "settings.json"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    described = containers.once(gpu_image, f"/{SETTINGS}", options=("--entrypoint", "/bin/cat")).stdout
    running: list[Container] = []

    def run(*options: str, modules: dict[str, str] = SMALL, **variables: str) -> Container:
        document = json.loads(described)
        document["image"]["flashinfer"]["modules"] = modules
        settings.write_text(json.dumps(document))
        mounts = {stand_in: "opt/venv/bin/vllm", settings: SETTINGS, program_folder(REPOSITORY): PROGRAM}
        words = [w for source, target in mounts.items() for w in ("--volume", f"{source}:/{target}:ro")]
        words += [w for name, value in (VARIABLES | variables).items() for w in ("--env", f"{name}={value}")]
        entry = ("--network", "none", "--entrypoint", "/bin/sh")
        container = containers.start(gpu_image, "-c", WITH_DRIVER, options=(*entry, *words, *options))
        running.append(container)
        return container

    yield run
    for container in running:
        container.remove()


def processes(container: Container) -> list[tuple[int, int, str]]:
    """List the process id, the parent and the command of what runs in a container, without what has ended."""
    lines = container.execute("ps", "-eo", "pid,ppid,stat,args", "--no-headers").stdout.splitlines()
    found = [line.split(None, 3) for line in lines]
    return [(int(pid), int(parent), args) for pid, parent, state, args in found if not state.startswith("Z")]


def compilers(container: Container) -> list[str]:
    return [args for _, _, args in processes(container) if Path(args.split()[0]).name in COMPILERS]


def goes_on(container: Container) -> None:
    """Check that the server is there and stops as it should."""
    wait_for_log(container, "[serve] ready: ", 60)
    assert container.execute(*ENTRYPOINT, "health").stdout == "healthy\n", container.log[-3000:]
    assert "Traceback" not in container.log
    container.stop(10)
    assert container.exit_code == 0


def objects(container: Container) -> dict[str, str]:
    """Return the objects that ninja noted as finished, with the moment that each was written."""
    done = container.execute("sh", "-c", f"cat $(find {CACHES} -name .ninja_log) /dev/null").stdout
    found = container.execute("find", CACHES, "-name", "*.o", "-printf", "%f %T@\\n").stdout
    return {name: at for name, at in map(str.split, found.splitlines()) if name in done}


def test_sampling_is_compiled_once(start: Start, containers: Containers) -> None:
    volume = containers.caches("sampling")
    first = start(*volume, modules=SAMPLING)
    wait_for_log(first, "[serve] the server listens; it is ready once sampling is compiled", 60)
    health = first.execute(*ENTRYPOINT, "health")
    assert (health.returncode, health.stdout) == (1, "the server is starting: sampling is being compiled\n")
    assert "[serve] ready" not in first.log
    wait_for_log(first, "kernels of FlashInfer: sampling compiled", COMPILE_LIMIT)
    goes_on(first)
    second = start(*volume, modules=SAMPLING)
    wait_for_log(second, "kernels of FlashInfer: sampling from the volume")
    assert "compiling" not in second.log
    goes_on(second)


def test_a_compile_that_was_killed_is_resumed_by_the_next_start(start: Start, containers: Containers) -> None:
    volume = containers.caches("killed")
    first = start(*volume, COMPILERS="1")
    wait_until(lambda: objects(first), COMPILE_LIMIT, first)
    kept = objects(first)
    wait_until(lambda: compilers(first), 60, first)
    [companion] = [pid for pid, _, args in processes(first) if pid != 1 and args.endswith(PROGRAM)]
    first.execute("kill", "-KILL", str(companion))
    wait_until(lambda: not compilers(first), 10, first)
    assert "the program beside the server has ended" in first.execute(*ENTRYPOINT, "health").stdout
    first.stop(10)
    second = start(*volume)
    wait_for_log(second, "[serve] compiled quantization in", COMPILE_LIMIT)
    assert f"compiling quantization goes on: an earlier start left {len(kept)} of " in second.log
    assert kept.items() <= objects(second).items()
    goes_on(second)


def test_a_full_disk_ends_the_compile_and_not_the_start(start: Start) -> None:
    container = start("--tmpfs", f"{CACHES}:size=64k")
    wait_for_log(container, "quantization could not be compiled beside the start", 600)
    goes_on(container)


@pytest.mark.parametrize("variables", [{"FACTORY_READINGS": "/readings.json"}, {"COMPILERS": "0"}])
def test_nothing_is_compiled_without_memory_or_if_not_wanted(start: Start, variables: dict[str, str]) -> None:
    container = start("--volume", f"{BUSY_SPARK}:/readings.json:ro", **variables)
    wait_for_log(container, "nothing is compiled beside the start: COMPILERS is 0, or memory is short")
    assert not compilers(container)
    goes_on(container)


def test_compilers_end_first_where_memory_runs_out(start: Start) -> None:
    container = start("--memory", "600m", "--memory-swap", "600m", COMPILERS="4")
    wait_for_log(container, "compiling quantization beside the start, 4 at a time")
    wait_until(lambda: not any("compile_ahead" in args for _, _, args in processes(container)), 600, container)
    goes_on(container)
