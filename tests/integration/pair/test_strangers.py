"""Strangers to a pair: machines that reach the head but do not know its secret. They end, delay and learn nothing."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from pathlib import Path

import pytest

from imagefactory.launch.preview import Preview
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_until
from tests.fixtures.nodes import SECRET, Node, Nodes, end, make_nodes
from tests.integration.pair.bed import CABLE, Bed, Spark, connect, need_bed, wire

pytestmark = [pytest.mark.slow, pytest.mark.each_run]
STRANGER = REPOSITORY / "tests" / "fixtures" / "stranger.py"
HEAD, WORKER = "192.168.100.1", "192.168.100.2"
PORT = 29501
JOINS = 5.0
"""Seconds for the true worker, whatever strangers do."""
MEMORY = 16_000
"""Kilobytes that strangers may cost the head."""
ATTACKS = {**dict.fromkeys(("replay", "brackets", "silence", "echo", "port", "clock"), 30), "flood": 1000}
"""How many connections a stranger has at a time; a flood is one of silence."""


@dataclass(frozen=True)
class Place:
    """Three machines, and what the stranger is called by the head."""

    head: Spark
    worker: Spark
    stranger: Spark
    address: IPv4Address

    def start(self, folder: Path, kind: str, connections: int, where: str = HEAD) -> subprocess.Popen[str]:
        """Start a stranger, or who records on the head's cable."""
        machine = self.head if kind == "record" else self.stranger
        words = (kind.replace("flood", "silence"), str(connections), where, str(PORT + 1), str(folder))
        return subprocess.Popen(machine.inside(sys.executable, str(STRANGER), *words), text=True)


def lan(head: Spark, worker: Spark, stranger: Spark) -> IPv4Address:
    """Lay the cable between the two, and have the stranger reach the head's address on it through a LAN."""
    Bed(head.folder, (head, worker)).plug_in()
    wire(head, "lan0", stranger, "lan0")
    head.check("ip", "address", "add", "10.9.0.1/24", "dev", "lan0")
    stranger.check("ip", "address", "add", "10.9.0.66/24", "dev", "lan0")
    stranger.check("ip", "route", "add", "192.168.100.0/24", "via", "10.9.0.1")
    return IPv4Address("10.9.0.66")


def switch(head: Spark, worker: Spark, stranger: Spark) -> IPv4Address:
    """Have the stranger on the cable, as if a switch joined the three: its machine is the switch."""
    connect(stranger, head, worker)
    stranger.check("ip", "address", "add", "192.168.100.66/24", "dev", "bridge")
    return IPv4Address("192.168.100.66")


@pytest.fixture(scope="module", params=[lan, switch], ids=["from the LAN", "on the cable"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    need_bed(("ip", "nsenter", "unshare"))
    folder = tmp_path_factory.mktemp("place")
    addresses = {"head": HEAD, "worker": WORKER, "stranger": ""}
    head, worker, stranger = sparks = [Spark(name, folder / name, own, "") for name, own in addresses.items()]
    try:
        for spark in sparks:
            spark.boot()
        yield Place(head, worker, stranger, request.param(head, worker, stranger))
    finally:
        for spark in sparks:
            spark.cut_power()


@pytest.fixture
def nodes(place: Place, served_image: Callable[..., Preview], tmp_path: Path) -> Iterator[Nodes]:
    head, worker = make_nodes(served_image("tiny", model=str(tmp_path / "model")), tmp_path, HEAD, PORT)
    head.inside, worker.inside = place.head.inside, place.worker.inside
    yield head, worker
    end((head, worker))


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    with process:
        try:
            yield process
        finally:
            process.kill()


def joining(head: Node, worker: Node) -> float:
    """Start the true worker; return how many seconds after it was ready to meet the head both have joined."""
    worker.start().says("[serve] ")
    ready = time.monotonic()
    head.says(f"joined with {WORKER} over {CABLE}", 60)
    worker.says(f"joined with {HEAD} over {CABLE}")
    return time.monotonic() - ready


def memory(machine: Spark) -> int:
    """Return the kilobytes of the largest process of a machine, which is the head's node."""
    lines = machine.check("sh", "-c", "cat /proc/[0-9]*/status").splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stranger_delays_ends_and_learns_nothing(
    place: Place, nodes: Nodes, attack: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    head, worker = nodes
    if attack == "replay":
        with running(place.start(tmp_path, "record", 0, CABLE)):
            wait_until((tmp_path / "recording").exists, 20)
            head.start().says("[serve] ")
            joining(head, worker)
        end(nodes)
        assert (tmp_path / "recording").stat().st_size > len(SECRET)
    head.start().says("[serve] ")
    before = memory(place.head)
    with running(place.start(tmp_path, attack, ATTACKS[attack])):
        wait_until(lambda: (tmp_path / "heard").exists() or (tmp_path / "refused").exists(), 20)
        time.sleep(1)
        grown = memory(place.head) - before
        took = joining(head, worker)
        time.sleep(0.5)
        assert head.process
        assert worker.process
        assert (head.process.poll(), worker.process.poll()) == (None, None)
    record_property("seconds until the worker joined", round(took, 2))
    record_property("kilobytes more", grown)
    assert took < JOINS, head.log
    assert grown < MEMORY
    for words in (f"joined with {place.address}", "Traceback", "internal", "error["):
        assert words not in head.log
    assert len(head.log.splitlines()) < 10, head.log
    heard = (tmp_path / "heard").read_bytes() if (tmp_path / "heard").exists() else b""
    # On the cable, it hears numbers that are used once; from elsewhere, nothing.
    assert (heard == b"") is (place.address not in ip_network("192.168.100.0/24")), heard[:200]
    assert {len(line) for line in heard.splitlines()} <= {32}, heard[:200]
