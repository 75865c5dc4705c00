"""Nodes as programs on the loopback: they meet, agree, and end together."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefactory.launch.preview import Preview
from images.serve.program import liveness, state
from images.serve.program.channel import Link
from tests.fixtures.engines import wait_until
from tests.fixtures.nodes import SECRET, Node, Nodes, end, make_nodes
from tests.fixtures.serve_process import free_port, stand_in

ADDRESSES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


@pytest.fixture
def count() -> int:
    return 2


@pytest.fixture
def nodes(served_image: Callable[..., Preview], tmp_path: Path, count: int) -> Iterator[Nodes]:
    made = make_nodes(served_image("tiny", model=str(tmp_path / "model")), tmp_path, ADDRESSES[0], free_port(), count)
    for node, address in zip(made, ADDRESSES, strict=False):
        network = {"interfaces": [["lo", f"{address}/8", 9000]]}
        readings = tmp_path / f"readings{node.rank}"
        readings.write_text(json.dumps({"network": network}))
        node.environment["FACTORY_READINGS"] = str(readings)
    yield made
    end(made)


def test_nodes_meet_in_any_order_and_the_worker_is_as_healthy_as_the_head(nodes: Nodes) -> None:
    head, worker = nodes
    worker.start().says("node 1 waits for the head at 127.0.0.1:")
    assert "nothing listens there; the head has not started yet" in worker.log
    code, told = worker.health()
    assert code == 1
    assert told.startswith("starting: node 1 waits for the head")
    head.start().says("joined with 127.0.0.2 over lo").says("ready: ")
    worker.says("joined with 127.0.0.1")
    wait_until(lambda: worker.health() == (0, "the head is ready"), 60)

    def tells_that_the_head_is_stuck() -> bool:
        # Again each time: the head's own watch, which sees no hang, takes the note away.
        (head.folder / f"imagefactory-{os.getuid()}" / state.HANGING).write_text("the engine is stuck")
        return worker.health() == (1, "the engine is stuck")

    wait_until(tells_that_the_head_is_stuck, 60)


@pytest.mark.parametrize("rank", [0, 1])
def test_when_either_dies_the_other_ends_and_they_meet_again(nodes: Nodes, rank: int) -> None:
    victim, other = nodes[rank], nodes[1 - rank]
    for _ in range(5):
        other.start()
        victim.start().says("joined")
        os.kill(victim.server, signal.SIGKILL)
        assert victim.ends() == 128 + signal.SIGKILL
        assert other.ends() == liveness.PARTED
        other.says(f"node {rank} ({ADDRESSES[rank]}) has ended or cannot be reached: ending the server with code 71")


@pytest.mark.parametrize("count", [4])
def test_four_nodes_wait_for_the_last_and_all_end_with_any(nodes: Nodes) -> None:
    """tests/integration/pair has each node killed and frozen once."""
    head, worker, last, other = nodes
    for node in (other, head, worker):
        node.start()
    head.says("node 0 waits for node 2 to connect to 127.0.0.1:", 60)
    for node in (worker, other):
        node.says(f"node {node.rank} waits for node 2 to connect to 127.0.0.1:")
        code, told = node.health()
        assert (code, told.split(" to connect")[0]) == (1, f"starting: node {node.rank} waits for node 2")
    other.kill()
    head.says("node 0 waits for nodes 2 and 3 to connect to 127.0.0.1:")
    other.start()
    last.start()
    head.says("joined with 127.0.0.2, 127.0.0.3, 127.0.0.4 over lo", 60)
    worker.says("joined with 127.0.0.1, 127.0.0.3, 127.0.0.4 over lo")
    os.kill(last.server, signal.SIGKILL)
    assert last.ends() == 128 + signal.SIGKILL
    for node in (head, worker, other):
        assert node.ends() == liveness.PARTED
        assert "node 2 (127.0.0.3) has ended or cannot be reached: ending the server with code 71" in node.log


@pytest.mark.parametrize("count", [3])
def test_a_rank_that_another_node_has_is_refused_and_a_difference_ends_all(nodes: Nodes) -> None:
    head, worker, other = nodes
    head.start()
    worker.start().says("node 1 waits for node 2", 60)
    assert other.start(NODE_RANK="1").ends() == 64
    assert "error[nodes-differ]: 127.0.0.2 and 127.0.0.3 both have NODE_RANK=1." in other.log
    head.says("127.0.0.3 connected but has NODE_RANK=1, as 127.0.0.2 does")
    assert other.start(MAX_MODEL_LEN="77").ends() == 64
    assert [node.ends() for node in (head, worker)] == [64, 64]
    sentence = "error[nodes-differ]: The nodes differ (on 127.0.0.1 / on 127.0.0.3): MAX_MODEL_LEN 256 / 77."
    assert sentence in head.log
    assert sentence in worker.log


def test_nodes_in_different_networks_meet_if_the_interface_and_a_secret_are_given(nodes: Nodes) -> None:
    """As pods do, whose addresses are routed; the head may have a name."""
    for node in nodes:
        path = Path(node.environment["FACTORY_READINGS"])
        path.write_text(path.read_text().replace("/8", "/32"))
    head, worker = nodes
    assert worker.start().ends() == 67
    assert "no interface is in one network with 127.0.0.1" in worker.log
    for node in nodes:
        node.start(CABLE="lo", HEAD_ADDRESS="localhost")
    head.says("joined with 127.0.0.2 over lo", 60)
    worker.says("joined with 127.0.0.1 over lo").says("--master-addr 127.0.0.1")


def test_a_node_that_is_silent_counts_as_dead_and_one_that_is_stopped_ends_well(nodes: Nodes) -> None:
    head, worker = nodes
    worker.start()
    # Only here: on a busy machine a node that is well can be silent for so long.
    head.start({"silence": 2}).says("joined")
    frozen = worker.companion
    os.kill(frozen, signal.SIGSTOP)
    assert head.ends() == liveness.PARTED
    head.says("node 1 (127.0.0.2) has been silent for 2 s: ending the server with code 71")
    os.kill(frozen, signal.SIGCONT)
    assert worker.ends() == liveness.PARTED
    worker.start()
    head.start().says("joined")
    assert head.process
    assert head.server
    head.process.send_signal(signal.SIGTERM)
    assert head.ends() == 128 + signal.SIGTERM
    assert worker.ends() == liveness.PARTED


@pytest.mark.parametrize(
    ("changes", "variables", "words"),
    [
        ({}, {"MAX_MODEL_LEN": "77"}, "MAX_MODEL_LEN 256 / 77"),
        ({"clock": 3600}, {}, "the clock there is 3,600 s ahead"),
        ({}, {"FACTORY_SHARE": "other"}, "image tiny@0.32.0/cpu / tiny@0.30.0/cpu"),
        ({}, {"FACTORY_READINGS": "other"}, "MTU of the cable 9000 / 1500"),
        ({}, {"MODEL_PATH": "other"}, "size of the weights 0 bytes in 0 files / 5 bytes in 1 files"),
    ],
)
def test_nodes_that_differ_both_say_how(
    nodes: Nodes, tmp_path: Path, changes: dict[str, Any], variables: dict[str, str], words: str
) -> None:
    head, worker = nodes
    if "FACTORY_SHARE" in variables:
        copy(tmp_path / "share", tmp_path / "other", lambda text: text.replace("tiny@0.32.0", "tiny@0.30.0"))
        variables = {"FACTORY_SHARE": str(tmp_path / "other")}
    if "FACTORY_READINGS" in variables:
        path = Path(worker.environment["FACTORY_READINGS"])
        path.write_text(path.read_text().replace("9000", "1500"))
        variables = {}
    if "MODEL_PATH" in variables:
        copy(tmp_path / "model", tmp_path / "other", str)
        (tmp_path / "other" / "model.safetensors").write_text("short")
        variables = {"MODEL_PATH": str(tmp_path / "other")}
    head.start()
    worker.start(changes, **variables)
    assert (head.ends(), worker.ends()) == (64, 64)
    assert "error[nodes-differ]: The nodes differ (on 127.0.0.1 / on 127.0.0.2): " in head.log
    assert words in head.log
    assert "error[nodes-differ]: The nodes differ (on 127.0.0.2 / on 127.0.0.1): " in worker.log


def copy(source: Path, target: Path, change: Callable[[str], str]) -> None:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_text(change(path.read_text()))


def test_a_port_that_is_taken_is_refused_at_once(nodes: Nodes) -> None:
    head, _ = nodes
    for step in (0, 1):
        port = int(head.environment["HEAD_PORT"]) + step
        with socket.create_server(("127.0.0.1", port)):
            assert head.start().ends() == 67
        assert f"error[pair]: port {port} of 127.0.0.1 is in use" in head.log


def test_who_waits_says_so_again(nodes: Nodes) -> None:
    head, worker = nodes
    head.start({"say_every": 1}).says("node 0 waits for node 1 to connect to 127.0.0.1:")
    time.sleep(6)
    assert head.log.count("not started yet, or this machine cannot be reached") > 1
    worker.start().says("joined")
    head.says("joined")


def connected(address: tuple[str, int]) -> socket.socket:
    """Connect to a node that has begun to start."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(address, 5)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.05)


def wire(node: Node) -> tuple[str, int]:
    return ADDRESSES[0], int(node.environment["HEAD_PORT"]) + 1


def recorded(_: Node) -> bytes:
    """Return what a true worker says at first, with a nonce of its own."""
    with (
        socket.create_server((ADDRESSES[0], 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        worker, head = Link(client, 1, SECRET), Link(server, 0, SECRET)
        head.send({})
        worker.send({"clock": time.time(), "port": 1})
        time.sleep(0.1)
        return server.recv(65536)


STRANGERS: dict[str, Callable[[Node], bytes]] = {
    "a browser": lambda _: b"GET / HTTP/1.1\r\n\r\n",
    "brackets": lambda _: b"0" * 32 + b"\n" + b"[" * 49_000 + b"\n",
    "brackets at once": lambda _: b"[" * 49_000 + b"\n",
    "no signature": lambda _: b"0" * 32 + b'\n{"clock": 1.0, "port": 1}\n',
    "another signature": lambda _: b"0" * 32 + b"\n" + b"0" * 64 + b' {"clock": 1.0, "port": 1}\n',
    "endless": lambda _: b"x" * 1_000_000,
    "a recording": recorded,
    "silence": lambda _: b"",
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_costs_the_other_nodes_no_time_and_ends_nothing(nodes: Nodes, kind: str) -> None:
    head, worker = nodes
    head.start().says("node 0 waits for")
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stranger = stack.enter_context(socket.create_connection(wire(head), 5))
            with contextlib.suppress(OSError):
                stranger.sendall(STRANGERS[kind](head))
        worker.start()
        head.says("joined with 127.0.0.2", 20)
        worker.says("joined")
        assert worker.process
        assert head.process
        assert (worker.process.poll(), head.process.poll()) == (None, None)
    assert "Traceback" not in head.log
    assert "internal" not in head.log


def test_an_echo_is_no_node_and_learns_nothing(nodes: Nodes) -> None:
    head, _ = nodes
    head.start().says("node 0 waits for")
    with socket.create_connection(wire(head), 5) as stranger:
        nonce = stranger.recv(100)
        assert len(nonce) == 33
        stranger.sendall(nonce)
        stranger.settimeout(8)
        assert stranger.recv(100) == b""  # it says no more before it knows who asks
    head.says("connected but did not prove that it is another node")


def test_another_network_is_not_heard(nodes: Nodes) -> None:
    head, _ = nodes
    path = Path(head.environment["FACTORY_READINGS"])
    path.write_text(path.read_text().replace("/8", "/32"))
    head.start().says("node 0 waits for")
    with socket.create_connection(wire(head), 5, ("127.0.0.9", 0)) as stranger:
        assert stranger.recv(100) == b""


def test_without_a_secret_nobody_on_the_cable_ends_the_head(nodes: Nodes) -> None:
    head, worker = nodes
    worker.environment["PAIR_SECRET_FILE"] = head.environment["PAIR_SECRET_FILE"] = ""
    head.start()
    worker.start(MAX_MODEL_LEN="77")
    assert worker.ends() == 64
    head.says("node 0 waits for node 1 to connect").says("MAX_MODEL_LEN 256 / 77")
    assert "any machine on the cable can pose as another node" in head.log
    worker.start().says("joined")


@pytest.mark.parametrize("theirs", [("of the head", "of the worker"), ("", "of the worker"), ("of the head", "")])
def test_secrets_that_differ_are_said_by_both(nodes: Nodes, tmp_path: Path, theirs: tuple[str, str]) -> None:
    for node, words in zip(nodes, theirs, strict=True):
        path = tmp_path / f"secret{node.rank}"
        path.write_text(words.replace(" ", "-") * 3)
        node.start(PAIR_SECRET_FILE=str(path) if words else "")
    head, worker = nodes
    head.says("127.0.0.2 connected but does not know this node's secret (PAIR_SECRET_FILE)")
    worker.says("127.0.0.1 answered but does not accept this node; does PAIR_SECRET_FILE name the same secret on all?")
    assert [node.process and node.process.poll() for node in nodes] == [None, None]


def test_the_worker_describes_itself_only_to_who_knows_the_secret(nodes: Nodes) -> None:
    _, worker = nodes
    with socket.create_server(wire(worker)) as listener:
        worker.start()
        listener.settimeout(20)
        with listener.accept()[0] as visitor:
            visitor.settimeout(20)
            visitor.sendall(b"0" * 32 + b"\n" + b"0" * 64 + b" {}\n")
            heard = b"".join(iter(lambda: visitor.recv(65536), b""))
    nonce, proof, nothing = heard.split(b"\n")
    assert (len(nonce), len(proof), nothing) == (32, 64 + len(" {}"), b"")
    worker.says("127.0.0.1 answered but does not know this node's secret")


def test_a_stranger_does_not_fill_the_log(nodes: Nodes) -> None:
    """Without a secret, it can say at any time what makes a new sentence."""
    head, _ = nodes
    head.start(PAIR_SECRET_FILE="").says("[serve] ")
    for number in range(60):
        with contextlib.closing(Link(connected(wire(head)), 1, "")) as stranger:
            stranger.send({})
            assert stranger.receive(5)["image"] == "tiny@0.32.0/cpu"
            stranger.send({"clock": time.time(), "port": 1, "image": f"{number}\n" * 1000})
    time.sleep(1)
    assert 1 < head.log.count("waits for") <= 20
    assert len(head.log) < 30_000


def test_a_secret_that_cannot_be_read_is_refused(nodes: Nodes) -> None:
    assert nodes[0].start(PAIR_SECRET_FILE="/nowhere").ends() == 67  # noqa: S106
    assert "The file with the secret of the nodes cannot be read" in nodes[0].log


@pytest.mark.parametrize(
    ("printed", "code", "words"),
    [
        ('{"backend": "gloo", "speed": 2.5e9, "latency": 0.00012}', 0, "gloo over lo: 2.50 GB/s, 120 µs"),
        (
            '{"step": "gloo", "failure": "nothing for 25 s"}',
            67,
            "the all-reduce over lo (127.0.0.1; the head is 127.0.0.1) failed at gloo: nothing for 25 s",
        ),
        ("", 67, "failed at gloo: the program ended with code 0"),
    ],
)
def test_a_pair_test_says_how_fast_or_why_not(
    nodes: Nodes, tmp_path: Path, printed: str, code: int, words: str
) -> None:
    """With a stand-in for torch; tests/integration/pair has the real one."""
    stand_in(tmp_path / "python", f"#!/bin/sh\necho '{printed}'\n")
    for node in nodes:
        node.start({}, "pair-test")
    assert [node.ends() for node in nodes] == [code, code]
    assert words in nodes[0].log


def test_a_pair_test_of_one_machine_is_refused(nodes: Nodes) -> None:
    assert nodes[0].start({}, "pair-test", NODES="1", HEAD_ADDRESS="").ends() == 64
    assert "`pair-test` is for several nodes" in nodes[0].log
