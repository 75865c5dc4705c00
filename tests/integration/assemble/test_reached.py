"""What a server tries to reach: nothing, or the model hub for a model that is not here. No image fetches code.

A server of every version starts in a network that ends in its own container, where a recorder answers for every name
and sees every packet (tests/fixtures/in_container/reached.py). vLLM is its build for CPUs, from the same sources.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from imagefactory.check.smoke.containers import Container, Containers
from imagefactory.check.smoke.levels.test_serve import INSIDE, on_cpu
from imagefactory.lock.flag_records import recorded_version
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.servers.known import SERVERS
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_for_log, wait_until
from tests.fixtures.in_container.reached import RESOLVER
from tests.fixtures.platforms import MACHINE
from tests.fixtures.tiny_image import TARGET as TINY

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
START_LIMIT = 600
LINGER = 5
"""Seconds for what a thread sends as the server gets ready."""
HUB = "huggingface.co"
ABSENT = "imagefactory/absent"
OWN_NAME = "name 0.0.0.0.in-addr.arpa"
"""SGLang asks the resolver of the machine what the address that it listens on is called."""
REPORTS_USE = "from vllm.usage.usage_lib import is_usage_stats_enabled as on; print(on())"
"""Only the worker of a GPU does, if this is true."""
CALLED_ON_GPUS = """
from flashinfer.jit.cubin_loader import get_artifact
from vllm.usage.usage_lib import is_usage_stats_enabled
from vllm.utils.flashinfer import has_nvidia_artifactory
assert not is_usage_stats_enabled() and not has_nvidia_artifactory()
try:
    get_artifact("kernel.cubin", "0" * 64)
except RuntimeError:
    print("no report, no server of kernels, no download")
"""
OLDER = ("0.20.2", "0.28.0")
SGLANG = ("sglang-0.5.21", "sglang-0.5.23")
WITHOUT_CPU = ("0.33.0",)
"""Versions without a build for CPUs: no server of theirs starts here, so only what GPUs call is seen."""
GPU = {"amd64": "rtx5090", "arm64": "gb10"}[MACHINE]


class Image(NamedTuple):
    """An image in Docker, and how it serves a tiny model on a CPU."""

    name: str
    options: tuple[str, ...]
    arguments: tuple[str, ...] = ()


@contextmanager
def recorder(containers: Containers, image: str) -> Iterator[Container]:
    """Run the recorder, whose network servers then share."""
    script = REPOSITORY / "tests" / "fixtures" / "in_container" / "reached.py"
    options = (
        *("--network", "none", "--dns", RESOLVER, "--hostname", "server", "--add-host", "server:127.0.0.1"),
        *("--user", "0", "--cap-add", "NET_ADMIN", "--cap-add", "NET_RAW"),
        *("--volume", f"{script}:/reached.py:ro", "--entrypoint", "/usr/bin/python3"),
    )
    container = containers.start(image, "-I", "-S", "/reached.py", options=options)
    try:
        wait_for_log(container, "ready", 30)
        yield container
    finally:
        container.remove()


def reached_by(containers: Containers, image: Image, **variables: str) -> tuple[str, set[str]]:
    """Start a server; return its log and what it tried to reach until it was warm, or had ended."""
    with recorder(containers, image.name) as wire:
        words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        options = (*image.options, "--network", f"container:{wire.name}", "--shm-size", "1g", *words)
        server = containers.start(image.name, *image.arguments, options=options)
        try:
            over = lambda: "[serve] start in seconds" in server.log or not server.is_running  # noqa: E731
            wait_until(over, START_LIMIT)
            time.sleep(LINGER)
            return server.log, set(wire.log.splitlines()) - {"ready", OWN_NAME}
        finally:
            server.remove()


def check(containers: Containers, image: Image) -> None:
    """Start a server with a model of its own and with one of the hub."""
    if "sglang" not in image.name:
        told = containers.once(image.name, "-c", REPORTS_USE, options=("--entrypoint", "/opt/venv/bin/python"))
        assert told.stdout.endswith("False\n"), told.stderr
    log, reached = reached_by(containers, image, HF_HUB_OFFLINE="0")
    assert "warm-up 1 of 1: short" in log, log[-3000:]
    assert "got status" not in log
    assert not reached
    absent = {
        "MODEL": ABSENT,
        "MODEL_PATH": "",
        "HF_HUB_OFFLINE": "0",
        "SKIP_CHECKS": "gpu,disk,memory,model,drafter",
    }
    log, asked = reached_by(containers, image, **absent)
    assert asked == {f"name {HUB}", f"reached {HUB}:443"}, log[-3000:]


def check_called_on_gpus(containers: Containers, image: str) -> None:
    stub = INSIDE / "with_driver_stub.sh"
    with recorder(containers, image) as wire:
        options = ("--network", f"container:{wire.name}", "--volume", f"{stub}:/stub.sh:ro")
        words = ("/stub.sh", "-c", CALLED_ON_GPUS)
        asking = containers.start(image, *words, options=(*options, "--entrypoint", "/bin/sh"))
        wait_until(lambda: not asking.is_running, START_LIMIT)
        assert "no report, no server of kernels, no download" in asking.log, asking.log[-3000:]
        assert wire.log.split() == ["ready"]


def test_the_server_reaches_nothing_but_the_hub(containers: Containers, tiny_image: str) -> None:
    check(containers, Image(tiny_image, ("--env", "VLLM_API_KEY=key")))


@pytest.mark.parametrize("loaded", [f"tiny@{version}/cpu/{MACHINE}" for version in OLDER], indirect=True)
def test_earlier_versions_reach_nothing_but_the_hub(containers: Containers, loaded: str) -> None:
    check(containers, Image(loaded, ("--env", "VLLM_API_KEY=key")))


@pytest.mark.parametrize("loaded", [f"qwen3.5-27b-nvfp4@{version}/{GPU}" for version in SGLANG], indirect=True)
def test_sglang_reaches_nothing_but_the_hub(containers: Containers, loaded: str, tmp_path: Path) -> None:
    options, arguments = on_cpu(tmp_path / "model", SERVERS["sglang"].on_cpu)
    check(containers, Image(loaded, (*options, "--env", "VLLM_API_KEY=key"), arguments))


def test_what_only_a_gpu_calls_reaches_nothing(containers: Containers, gpu_image: str) -> None:
    check_called_on_gpus(containers, gpu_image)


@pytest.mark.parametrize("loaded", [f"qwen3-8b@{version}/{GPU}" for version in WITHOUT_CPU], indirect=True)
def test_what_gpus_call_in_versions_without_a_cpu_build_reaches_nothing(containers: Containers, loaded: str) -> None:
    check_called_on_gpus(containers, loaded)


def test_every_locked_version_is_covered() -> None:
    """Variants of a version, with other kernels, run the same server."""
    project = Project(REPOSITORY)
    locked = {recorded_version(project, cell.version) for cell in locked_cells(project)}
    assert locked == {*OLDER, *SGLANG, *WITHOUT_CPU, select_one(project.matrix, TINY).version}
