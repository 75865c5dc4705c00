"""Two containers as two machines: a cable between them, and a Wi-Fi each, with the default route and to nowhere."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from imagefactory.check.smoke.containers import Container, docker
from imagefactory.plan.serve.image_paths import ENTRYPOINT
from images.serve.program.pulse import PARTED
from tests.fixtures.engines import wait_until
from tests.fixtures.failures import refused

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
START_LIMIT = 900
ASK = """
import json, urllib.request
body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0}).encode()
asked = urllib.request.Request("http://localhost:8000/v1/completions", body, {"Content-Type": "application/json"})
print(urllib.request.urlopen(asked, timeout=120).read().decode())
"""


@dataclass
class Pair:
    """Two machines, each with a container at a time."""

    image: str
    name: str = field(default_factory=lambda: f"pair-{uuid4().hex[:8]}")
    subnet: str = field(default_factory=lambda: f"10.{200 + uuid4().int % 50}.{uuid4().int % 250}")

    def connect(self) -> None:
        mtu = ("--opt", "com.docker.network.driver.mtu=9000")
        ran = docker("network", "create", "--internal", "--subnet", f"{self.subnet}.0/24", *mtu, self.name)
        assert ran.returncode == 0, ran.stderr
        for rank in (0, 1):
            assert docker("network", "create", f"{self.name}-wifi{rank}").returncode == 0

    def remove(self) -> None:
        docker("rm", "--force", f"{self.name}-0", f"{self.name}-1")
        docker("network", "rm", self.name, f"{self.name}-wifi0", f"{self.name}-wifi1")

    def start(self, rank: int, *arguments: str, **variables: str) -> Container:
        name = f"{self.name}-{rank}"
        docker("rm", "--force", name)
        own = {"NODES": "2", "NODE_RANK": str(rank), "HEAD_ADDRESS": f"{self.subnet}.10", **variables}
        given = [word for each in own.items() for word in ("--env", "=".join(each))]
        address = ("--network", self.name, "--ip", f"{self.subnet}.1{rank}")
        made = docker("create", "--name", name, "--shm-size", "1g", *address, *given, self.image, *arguments)
        assert made.returncode == 0, made.stderr
        docker("network", "connect", f"{self.name}-wifi{rank}", name)
        assert docker("start", name).returncode == 0
        return Container(name)

    def finish(self, rank: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        container = self.start(rank, *arguments, **variables)
        ended = docker("wait", container.name, timeout=200)
        logs = docker("logs", container.name)
        return subprocess.CompletedProcess(arguments, int(ended.stdout or 124), logs.stdout, logs.stderr)


@pytest.fixture
def pair(tiny_image: str) -> Iterator[Pair]:
    made = Pair(tiny_image)
    made.connect()
    yield made
    made.remove()


def test_two_nodes_add_up_numbers(pair: Pair) -> None:
    with ThreadPoolExecutor(2) as pool:
        for ran in pool.map(lambda rank: pair.finish(rank, "pair-test"), (0, 1)):
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout.startswith("gloo over eth")
            assert "GB/s" in ran.stdout


def test_a_node_alone_says_within_30_s_what_it_waited_for(pair: Pair) -> None:
    for rank, words in ((0, "waits for the other to connect"), (1, "waits for the head at")):
        began = time.monotonic()
        ran = pair.finish(rank, "pair-test")
        assert time.monotonic() - began < 40, "with the start of a container on a busy machine"
        assert refused(ran, "pair")
        assert words in ran.stderr


def test_a_model_is_served_by_both_and_they_end_and_start_together(pair: Pair) -> None:
    worker, head = pair.start(1), pair.start(0)
    wait_until(lambda: "[serve] ready:" in head.log or not head.is_running, START_LIMIT, head, worker)
    assert head.is_running, head.log + worker.log
    answer = head.execute("python3", "-c", ASK)
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 8, answer.stderr
    assert worker.execute(*ENTRYPOINT, "health").stdout == "the head is ready\n"
    docker("kill", worker.name)
    wait_until(lambda: not head.is_running, 60, head)
    assert head.exit_code == PARTED
    assert "has ended or is cut off" in head.log
