"""Joins two nodes: their programs meet before the servers start, agree, and then end both servers together.

Neither server survives the other, but each may wait for it for ever. So the companions keep one connection over the
cable: if the other side closes it or is silent, this side ends its server, Docker starts both again, and they meet
again.
"""

import json
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from hashlib import sha256
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from . import keys, liveness, network, private_files, state
from .channel import ATTEMPT, NO_MESSAGE, STARTING, Link
from .errors import StartError
from .findings import Start
from .pair import HEAD, Node
from .redaction import masked, say

BEAT, SILENCE = 2.0, 20.0
"""Seconds between signs of life, and without any until the other side counts as dead."""
SAY_EVERY, ANSWER, PATIENCE = 60.0, 15.0, 3.0
"""Seconds between sentences of one that waits, for an answer, and for a stranger to prove that it is the other node."""
PORTS = range(1, 65536)
MOST, EACH, QUEUE = 64, 8, 1024
"""Connections that may be unproved at the same time: of all machines, of each, and those not accepted yet."""
SENTENCES, WITHIN, LONGEST = 20, 600.0, 1000
"""A stranger does not fill the log: sentences of one that waits in so many seconds, and characters of a reason."""
READY, PARTED = "ready", "parted"
NOTE = "pair"
"""The file with the health of a node that waits, or that has no API."""
APART = 60
"""Seconds that the clocks may differ."""
OWN = (
    *("NODE_RANK", "CABLE", "HOST", "PORT", "VLLM_API_KEY", "VLLM_API_KEY_FILE", "PROTECT_METRICS"),
    "PAIR_SECRET_FILE",
    *("SERVED_MODEL_NAME", "WARMUP", "COMPILERS", "HANG_LIMIT", "MEMORY_FLOOR", "GPU_MEMORY_UTILIZATION"),
    *("MODS_PATH", "CHECKS", "SKIP_CHECKS", "EXTRA_ARGS"),
)
"""Settings that each node has for itself; the words of EXTRA_ARGS are compared without secrets."""


def meet(node: Node, start: Start, limit: float | None = None) -> Link:
    """Wait for the other node, however long unless there is a limit, and agree with it."""
    secret = keys.pair_secret(start.settings.text(keys.PAIR_FILE))
    own, began, before = _described(node, start), time.monotonic(), ""
    said = deque([-WITHIN], SENTENCES)
    arrivals = _Arrivals(node, secret) if node.rank == HEAD else None
    with arrivals.listener if arrivals else nullcontext():
        while True:
            link, reason = None, ""
            try:
                link = arrivals.next() if arrivals else Link(_connected(node), node.rank, secret)
                _agree(link, node, own)
            except (OSError, ValueError) as error:
                reason = (not link and arrivals and arrivals.refused) or _reason(node, error, link)
            except StartError as error:
                # Only who knows the secret may end this node.
                if node.rank == HEAD and not secret:
                    reason = error.what.rstrip(".")
                else:
                    raise
            else:
                private_files.forget(NOTE)
                say(f"joined with {link.other} over {node.interface.name}")
                return link
            link.close() if link else None
            text = f"node {node.rank} waits for {_whom(node)}: {reason[:LONGEST]}"
            now = time.monotonic()
            if limit is not None and now - began > limit:
                remedy = "Start both nodes at the same time; then follow the reason."
                raise StartError("pair", f"{text}.", remedy=remedy)
            note(f"{STARTING}: {text}", well=False)
            fresh = reason != before or now - said[-1] >= SAY_EVERY
            if fresh and (len(said) < SENTENCES or now - said[0] >= WITHIN):
                said.append(now)
                before = reason
                say(text)
            time.sleep(0 if node.rank == HEAD else 1)


class _Arrivals:
    """Who connects to the head: all are heard at once, so that a stranger costs the other node no time."""

    def __init__(self, node: Node, secret: str) -> None:
        self._node, self._secret = node, secret
        self._strangers: dict[Link, float] = {}
        """Until when each may prove that it is the other node; the oldest comes first."""
        self.refused = ""
        """What was wrong with the last of them."""
        try:
            self.listener = socket.create_server(node.link, backlog=QUEUE)
            self.listener.settimeout(0)  # who was there may be gone
            _bind(self.listener, node)
        except OSError as error:
            what = f"{node.address} cannot be listened on: {os.strerror(error.errno or 0)}."
            remedy = "End what uses the port, or set HEAD_PORT to another on both nodes."
            setting = ("HEAD_PORT", str(node.port), "a free port, followed by another")
            raise StartError("pair", what, *setting, remedy=remedy) from None

    def next(self) -> Link:
        """Return the first connection that proves to know the secret; raise TimeoutError after a while."""
        self.refused, until = "", time.monotonic() + ATTEMPT
        while (now := time.monotonic()) < until:
            for link in [link for link, end in self._strangers.items() if end < now]:
                self._refuse(link, TimeoutError())
            sockets = {link.connection: link for link in self._strangers}
            for ready in select.select([*sockets, self.listener], [], [], 0.2)[0]:
                if ready is self.listener:
                    self._accept()
                    continue
                link = sockets[ready]
                try:
                    proved = link.arrived() is not None
                except (OSError, ValueError) as error:
                    self._refuse(link, error)
                    continue
                if proved:
                    del self._strangers[link]
                    return link
        raise TimeoutError

    def _accept(self) -> None:
        """Accept who waits, but few of each machine: whoever comes often takes no place from the other node."""
        with suppress(OSError):
            for _ in range(MOST):
                connection, (address, _port) = self.listener.accept()
                same = sum(link.other == address for link in self._strangers)
                if IPv4Address(address) not in self._node.interface.address.network or same >= EACH:
                    connection.close()
                    continue
                if len(self._strangers) >= MOST:
                    self._refuse(next(iter(self._strangers)), TimeoutError())
                self._strangers[Link(connection, HEAD, self._secret)] = time.monotonic() + PATIENCE

    def _refuse(self, link: Link, error: Exception) -> None:
        self.refused = _reason(self._node, error, link)
        del self._strangers[link]
        link.close()


def _bind(connection: socket.socket, node: Node) -> None:
    """Let only packets of the cable through: Linux takes those for any of its addresses on any interface."""
    with suppress(PermissionError):  # the peer's address is compared, too
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, node.interface.name.encode())


def _connected(node: Node) -> socket.socket:
    connection = socket.socket()
    try:
        _bind(connection, node)
        connection.settimeout(ATTEMPT)
        connection.bind((node.address, 0))
        connection.connect(node.link)
    except OSError:
        connection.close()
        raise
    return connection


def _agree(link: Link, node: Node, own: Mapping[str, Any]) -> None:
    """Compare both nodes, and see that each gets through to any port of the other, as servers need."""
    with socket.create_server((node.address, 0)) as probe:
        # Each describes itself only to one that has proved to know the secret: the worker has, with an empty message.
        if node.rank != HEAD:
            link.send({})
            other = link.receive(ANSWER)
        link.send({**own, "clock": time.time(), "port": probe.getsockname()[1]})
        if node.rank == HEAD:
            other = link.receive(ANSWER)
        clock, port = other.get("clock"), other.get("port")
        if not (isinstance(clock, float) and math.isfinite(clock) and isinstance(port, int) and port in PORTS):
            raise ValueError(NO_MESSAGE)
        differences = _differences(own, other, clock)
        if differences:
            what = f"The two nodes differ (here / on {link.other}): {'; '.join(differences)}."
            same = "the same image, by its digest, with the same model and settings"
            remedy = f"Start {same} on both; set the clocks, and one MTU at both ends of the cable."
            raise StartError("nodes-differ", what, remedy=remedy)
        failure = _unreachable(node, link.other, port)
        link.send({"failure": failure})
        failure = failure or _printable(link.receive(ANSWER).get("failure", ""), LONGEST)
    if failure:
        remedy = "Allow all traffic on the cable in the firewalls of both, as `sudo ufw allow in on CABLE` does."
        raise StartError("pair", f"{failure}.", "HEAD_ADDRESS", node.head, remedy=remedy)


def _described(node: Node, start: Start) -> dict[str, Any]:
    """Describe this node; weights are compared by their sizes, as hashes would take minutes."""
    folder = Path(start.folder or "")
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")] if start.folder else []
    found = sorted(Path(start.package).parent.glob("*.dist-info")) if start.package else []
    return {
        "image": str(start.image.facts.get("target", "")),
        "machine": os.uname().machine,
        "MTU of the cable": node.interface.mtu,  # with two, large packets are lost and the servers hang
        start.image.title: start.image.version,
        "packages": _digest(path.name for path in found),
        "serve program": _digest(path.read_text("utf-8") for path in sorted(Path(__file__).parent.rglob("*.py"))),
        "model": start.command.model,
        "revision": start.command.revision or (folder.name if folder.parent.name == "snapshots" else ""),
        "size of the weights": f"{sum(sizes):,} bytes in {len(sizes)} files" if start.folder else "",
        "flags": masked(start.settings.extra),
        **{name: value for name, value in start.settings.values.items() if name not in OWN},
    }


def _differences(own: Mapping[str, Any], other: Mapping[str, Any], clock: float) -> list[str]:
    """List what differs; what a node does not know yet, as before a download, is no difference."""
    found = []
    for name, value in own.items():
        theirs = other.get(name)
        if theirs != value and not (name in {"revision", "size of the weights"} and "" in (value, theirs)):
            found.append(f"{name} {_shown(value)} / {_shown(theirs)}")
    apart = clock - time.time()
    if abs(apart) > APART:
        found.append(f"the clock there is {abs(apart):,.0f} s {'ahead' if apart > 0 else 'behind'}")
    return found


def _digest(texts: Iterable[str]) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def _shown(value: object) -> str:
    return "none" if value in (None, "", []) else _printable(value)


def _printable(value: object, most: int = 200) -> str:
    # Without a secret, anybody on the cable may have sent it.
    return "".join(character if character.isprintable() else "?" for character in str(value)[:most])


def _unreachable(node: Node, other: str, port: int) -> str:
    """Say why no connection can be made to a port of the other node; empty if it can."""
    try:
        socket.create_connection((other, port), ATTEMPT, (node.address, 0)).close()
    except OSError as error:
        return (
            f"{other}:{port} cannot be reached from {node.address} over {node.interface.name}, though port "
            f"{node.link[1]} of {node.head} can: {error.strerror or error}; a firewall lets only some ports through"
        )
    return ""


def _whom(node: Node) -> str:
    where = f"{node.head}:{node.link[1]} ({node.interface.name})"
    return f"the other to connect to {where}" if node.rank == HEAD else f"the head at {where}"


def _reason(node: Node, error: Exception, link: Link | None) -> str:
    if not network.has_carrier(node.interface.name):
        return f"{node.interface.name} has no carrier; the cable is out, or the other machine is off"
    if link is not None:
        if isinstance(error, ValueError):
            what = str(error)
        elif link.proved:
            what = f"disconnected ({error})"
        elif node.rank == HEAD:
            what = "did not prove that it is the other node"
        else:
            what = f"does not accept this node; does {keys.PAIR_FILE} name the same secret on both?"
        return f"{link.other} {'connected' if node.rank == HEAD else 'answered'} but {what}"
    if node.rank == HEAD:
        return "it has not started yet, or cannot reach this machine"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; the head has not started yet"
    if isinstance(error, TimeoutError):
        return "no answer; the head is off, the cable leads elsewhere, or a firewall drops the packets"
    return str(getattr(error, "strerror", "") or error)


def note(text: str, *, well: bool) -> None:
    """Leave the health of this node for the health check, another process."""
    with suppress(OSError):
        private_files.write(NOTE, json.dumps([time.monotonic(), well, text]))


def noted() -> tuple[str, bool] | None:
    """Return the health of a node that waits or has no API; None if its API tells."""
    try:
        at, well, text = json.loads(private_files.read(NOTE))
        age = time.monotonic() - float(at)
    except (OSError, ValueError, TypeError):
        return None
    if age > SILENCE + SAY_EVERY:
        return f"unknown: the program beside the server has been silent for {age:.0f} s", False
    return str(text), well is True


def keep(link: Link, server: int, port: int) -> None:
    """Exchange signs of life until the other side fails, then end this side's server; port 0 if it has no API."""
    beat = heard = time.monotonic()
    while os.getppid() == server:
        try:
            if time.monotonic() >= beat:
                beat = time.monotonic() + BEAT
                link.send({"state": _state(link), "compiles": liveness.compiling(), "moves": link.moves})
            message = link.receive(max(0.01, beat - time.monotonic()))
            heard, link.compiles = time.monotonic(), message.get("compiles") is True
            link.other_moves = message.get("moves") is True
            if not port:
                head = str(message.get("state"))
                note(f"the head is {head}" if head in {STARTING, READY} else head, well=head == READY)
        except TimeoutError:
            if time.monotonic() - heard > SILENCE:
                return _part(link, server, f"has been silent for {SILENCE:.0f} s")
        except (OSError, ValueError):
            return _part(link, server, "has ended or cannot be reached")
    return None


def _state(link: Link) -> str:
    found = state.find()
    return link.state if found.name in {state.READY, state.STARTING} else found.reason


def _part(link: Link, server: int, what: str) -> None:
    link.state = PARTED
    text = f"the other node, {link.other}, {what}"
    note(text, well=False)
    say(f"{text}: ending the server with code {liveness.PARTED}, so that Docker restarts both")
    liveness.end(server, liveness.PARTED)
