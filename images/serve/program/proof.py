"""`pair-test`: proves before a server starts that the nodes can compute together, or says what is in the way."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from . import checks, command, image, meeting, pair
from .errors import StartError
from .findings import FAIL, WARN, Start
from .pair import Node

SCRIPT = str(Path(__file__).absolute().parents[1] / "all_reduce.py")
MEETING, MEASURING, IMPORTING = 20, 25, 90
"""Seconds for the other nodes, for the all-reduce, and for Python to load torch before it."""
LIKELY = {
    "meeting": "a firewall drops port {port} of {head}",
    "gloo": "a firewall drops the ports of {interface} that are chosen at random, or the MTU differs between nodes",
    "nccl": "RoCE by {devices} does not work: the nodes are in different networks, or the container lacks "
    "/dev/infiniband or memlock; NCCL_DEBUG=INFO says more, NCCL_IB_DISABLE=1 avoids RoCE",
}


def prove(start: Start) -> Iterator[str]:
    """Yield warnings, then how fast the nodes add up numbers; refuse if they cannot."""
    if command.nodes(start.settings) == 1:
        remedy = "Set NODES, NODE_RANK and HEAD_ADDRESS, and run it on all at the same time."
        nodes = ("NODES", start.settings.text("NODES"), "2 or more")
        raise StartError("bad-value", "`pair-test` is for several nodes.", *nodes, remedy=remedy)
    for finding in checks.run(start, ("pair", "port")):
        if finding.result == FAIL:
            raise finding.refusal()
        if finding.result == WARN:
            yield f"warning: {finding.detail}. {finding.remedy}"
    node = pair.find(start.settings, start.readings.network)
    joined = meeting.meet(node, start, MEETING)
    yield from _measured(start, node)
    joined.close()


def _measured(start: Start, node: Node) -> Iterator[str]:
    job = {"rank": node.rank, "nodes": node.total, "head": node.head, "port": node.port, "limit": MEASURING}
    python = f"{image.VENV}/bin/python"
    environment = os.environ | node.environment(start.server.address_variable)
    try:
        ran = subprocess.run(  # noqa: S603 - the image's own program
            [python, "-I", SCRIPT, json.dumps(job)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=IMPORTING + MEASURING,
        )
    except subprocess.TimeoutExpired:
        raise _failure(node, "gloo", f"torch could not be loaded within {IMPORTING} s") from None
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    for result in results:
        if "failure" in result:
            raise _failure(node, result["step"], result["failure"])
        over = ",".join(node.devices) if result["backend"] == "nccl" and node.devices else node.interface.name
        speed, latency = result["speed"] / 1e9, result["latency"] * 1e6
        yield f"{result['backend']} over {over}: {speed:.2f} GB/s, {latency:.0f} µs"
    if not results:
        raise _failure(node, "gloo", f"the program ended with code {ran.returncode}")


def _failure(node: Node, step: str, reason: str) -> StartError:
    likely = LIKELY[step].format(
        port=node.port, head=node.head, interface=node.interface.name, devices=" and ".join(node.devices) or "TCP"
    )
    what = f"the all-reduce over {node.interface.name} ({node.address}; the head is {node.head}) failed at {step}"
    return StartError("pair", f"{what}: {reason}.", remedy=f"Likely: {likely}.")
