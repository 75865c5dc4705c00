"""Four machines at one switch: they serve together, and when one is killed or freezes, all end and say which it was."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import docker
from imagefactory.launch.preview import Preview
from images.serve.program import liveness
from tests.fixtures.engines import wait_until
from tests.fixtures.nodes import SECRET, Nodes, end, make_nodes
from tests.integration.pair.bed import Spark, connect, need_bed

pytestmark = pytest.mark.slow
COUNT, NETWORK, PORT = 4, "10.77.0", 29501
START_LIMIT, END_LIMIT = 1200, 90
"""Seconds for four servers on two cores, and for the last to end."""
FAULTS = {"killed": "KILL", "frozen": "STOP"}
"""What happens to all processes of a machine but its first."""
SENTENCES = {"killed": "has ended or cannot be reached", "frozen": "has been silent for 20 s"}
Property = Callable[[str, object], None]


@contextmanager
def four_sparks(folder: Path) -> Iterator[list[Spark]]:
    need_bed(("ip", "nsenter", "unshare"))
    sparks = [Spark(f"spark{rank}", folder / f"spark{rank}", f"{NETWORK}.{rank + 1}", "") for rank in range(COUNT)]
    switch = Spark("switch", folder / "switch", "", "")
    try:
        for spark in (switch, *sparks):
            spark.boot()
        connect(switch, *sparks)
        yield sparks
    finally:
        for spark in (switch, *sparks):
            spark.cut_power()


@pytest.fixture(scope="module")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Spark]]:
    with four_sparks(tmp_path_factory.mktemp("four")) as made:
        yield made


@pytest.fixture
def nodes(sparks: list[Spark], served_image: Callable[..., Preview], tmp_path: Path) -> Iterator[Nodes]:
    preview = served_image("tiny", model=str(tmp_path / "model"))
    made = make_nodes(preview, tmp_path, sparks[0].address, PORT, COUNT)
    for node, spark in zip(made, sparks, strict=True):
        node.inside = spark.inside
    yield made
    for spark in sparks:
        spark.run("sh", "-c", "kill -KILL -1")
    end(made)


@pytest.mark.each_run
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rank", range(COUNT))
def test_one_node_that_fails_ends_all(
    sparks: list[Spark], nodes: Nodes, rank: int, fault: str, record_property: Property
) -> None:
    """With a stand-in for the server, and the program's own clocks."""
    for node in reversed(nodes):
        node.start({"unhurried": True})
    for node in nodes:
        node.says("joined with", 60)
    nodes[0].says("ready: ", 60)
    wait_until(lambda: not any(node.health()[0] for node in nodes), 60)
    sparks[rank].run("sh", "-c", f"kill -{FAULTS[fault]} -1")
    began = time.monotonic()
    others = [node for node in nodes if node.rank != rank]
    assert [node.ends(END_LIMIT) for node in others] == [liveness.PARTED] * len(others)
    record_property("seconds until all others had ended", round(time.monotonic() - began, 1))
    for node in others:
        assert f"node {rank} ({sparks[rank].address}) {SENTENCES[fault]}: ending the server with code 71" in node.log
    if fault == "frozen":
        sparks[rank].run("sh", "-c", "kill -CONT -1")
        frozen = nodes[rank].process
        assert frozen
        frozen.send_signal(signal.SIGCONT)  # nsenter stops with what it runs
    assert nodes[rank].ends(END_LIMIT) == {"killed": -signal.SIGKILL, "frozen": liveness.PARTED}[fault]


class Served:
    """The tiny image, unpacked on each machine, with its server."""

    def __init__(self, sparks: list[Spark], folder: Path, image: str) -> None:
        self.sparks, self.folder = sparks, folder
        [found] = json.loads(docker("image", "inspect", image).stdout)
        data, config = found["GraphDriver"]["Data"], found["Config"]
        self._layers = ":".join(filter(None, (data["UpperDir"], data.get("LowerDir"))))
        self._variables = dict(pair.split("=", 1) for pair in config["Env"])
        self._words = config["Entrypoint"]
        self.processes: list[subprocess.Popen[bytes]] = []

    def unpack(self) -> None:
        made = "mkdir -p /run/up /run/work /run/root && mount -t overlay overlay /run/root -o "
        made += f"lowerdir={self._layers},upperdir=/run/up,workdir=/run/work"
        shared = " && ".join(f"mount --rbind /{name} /run/root/{name}" for name in ("proc", "dev", "sys"))
        for spark in self.sparks:
            spark.check("sh", "-c", f"{made} && {shared} && echo {SECRET} > /run/root/secret")

    def start(self) -> None:
        nodes = {"NODES": str(COUNT), "HEAD_ADDRESS": self.sparks[0].address, "PAIR_SECRET_FILE": "/secret"}
        self.processes = []
        for rank, spark in enumerate(self.sparks):
            own = {**self._variables, **nodes, "NODE_RANK": str(rank), "HOME": "/root", "SKIP_CHECKS": "shm"}
            with (self.folder / f"log{rank}").open("wb") as log:
                words = spark.inside("chroot", "/run/root", *self._words, env=own)
                self.processes.append(subprocess.Popen(words, stdout=log, stderr=log))

    def log(self, rank: int) -> str:
        return (self.folder / f"log{rank}").read_text(errors="replace")

    def wait_until_ready(self) -> float:
        began = time.monotonic()
        while "[serve] ready: " not in self.log(0):
            ended = [rank for rank, process in enumerate(self.processes) if process.poll() is not None]
            assert not ended, self.log(ended[0])[-3000:]
            assert time.monotonic() - began < START_LIMIT, self.log(0)[-3000:]
            time.sleep(1)
        return time.monotonic() - began

    def completion(self) -> str:
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0})
        form = ("--header", "Content-Type: application/json", "--data", body, "http://127.0.0.1:8000/v1/completions")
        answer = json.loads(self.sparks[0].check("curl", "-s", "-m", "120", *form))
        return str(answer["choices"][0]["text"])

    def end(self) -> None:
        for spark in self.sparks:
            spark.run("sh", "-c", "kill -KILL -1")
        for process in self.processes:
            process.wait(END_LIMIT)


@pytest.mark.engine
@pytest.mark.network
@pytest.mark.usefixtures("turn_of_many_servers")
def test_vllm_on_four_nodes_answers_and_ends_with_any_of_them(
    tiny_image: str, tmp_path: Path, record_property: Property
) -> None:
    """One process per machine, on CPUs: each has a quarter of every layer."""
    with four_sparks(tmp_path) as sparks:
        served = Served(sparks, tmp_path, tiny_image)
        served.unpack()
        try:
            served.start()
            record_property("seconds until ready", round(served.wait_until_ready()))
            assert served.completion() == served.completion()
            sparks[2].run("sh", "-c", "kill -KILL -1")
            began = time.monotonic()
            codes = [process.wait(END_LIMIT) for process in served.processes]
            record_property("seconds until all had ended", round(time.monotonic() - began, 1))
            assert codes == [71, 71, -signal.SIGKILL, 71], [served.log(rank)[-2000:] for rank in range(COUNT)]
            for rank in (0, 1, 3):
                assert f"node 2 ({NETWORK}.3) has ended or cannot be reached" in served.log(rank)
        finally:
            served.end()
