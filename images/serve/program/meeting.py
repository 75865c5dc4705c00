"""Nodes meet before their servers start: all come to the head, which compares them, and starts none before the last.

A server cannot begin without the others, and would not say for whom it waits. Once all are there, each tries to reach
every other, as the servers will.
"""

import os
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address
from typing import Any

from . import comparing, keys, network, private_files
from .channel import ATTEMPT, NO_MESSAGE, STARTING, Group, Link, printable
from .errors import StartError
from .findings import Start
from .link import NOTE, note
from .pair import HEAD, Node
from .redaction import say

SAY_EVERY, ANSWER, PATIENCE = 60.0, 15.0, 3.0
"""Seconds between sentences of one that waits, for an answer, and for a stranger to prove that it is a node."""
PORTS = range(1, 65536)
MOST, EACH, QUEUE = 64, 8, 1024
"""Connections that may be unproved at the same time: of all machines, of each, and those not accepted yet."""
SENTENCES, WITHIN, LONGEST = 20, 600.0, 1000
"""A stranger does not fill the log: sentences of one that waits in so many seconds, and characters of a reason."""
REFUSALS = ("pair", "nodes-differ")


def meet(node: Node, start: Start, limit: float | None = None) -> Group:
    """Wait for the other nodes, however long unless there is a limit, and agree with them."""
    secret = keys.pair_secret(start.settings.text(keys.PAIR_FILE))
    own, waiting = comparing.describe(node, start), _Waiting(node, limit)
    group = _gather(node, own, secret, waiting) if node.rank == HEAD else _join(node, own, secret, waiting)
    private_files.forget(NOTE)
    return group


class _Waiting:
    """Says for whom a node waits, and why: in the log, not too often, and to the health check."""

    def __init__(self, node: Node, limit: float | None) -> None:
        self._node, self._limit, self._began, self._before = node, limit, time.monotonic(), ""
        self._said = deque([-WITHIN], SENTENCES)

    def say(self, whom: str, reason: str) -> None:
        """Say it; end the wait after its limit."""
        text = f"node {self._node.rank} waits for {whom}: {reason[:LONGEST]}"
        now, said = time.monotonic(), self._said
        if self._limit is not None and now - self._began > self._limit:
            raise StartError("pair", f"{text}.", remedy="Start all nodes at the same time; then follow the reason.")
        note(f"{STARTING}: {text}", well=False)
        fresh = text != self._before or now - said[-1] >= SAY_EVERY
        if fresh and (len(said) < SENTENCES or now - said[0] >= WITHIN):
            said.append(now)
            self._before = text
            say(text)


def _gather(node: Node, own: Mapping[str, Any], secret: str, waiting: _Waiting) -> Group:
    """Wait, as the head, until all others are there and reach each other."""
    arrivals, come = _Arrivals(node, secret), dict[int, Link]()
    with arrivals.listener:
        while True:
            link, reason = None, ""
            try:
                link = arrivals.next()
                _welcome(link, node, own)
                _take(come, link)
                reason = f"{link.name} has come"
                if len(come) == node.total - 1:
                    _try_ways(node, come)
                    links = [come[rank] for rank in sorted(come)]
                    say(f"joined with {', '.join(link.other for link in links)} over {node.interface.name}")
                    return Group(links)
            except _GoneError as error:
                reason = str(error)
            except (OSError, ValueError) as error:
                reason = (not link and arrivals.refused) or _reason(node, error, link)
            except StartError as error:
                # Only who knows the secret may end this node.
                if secret:
                    _tell(come, refusal=[error.name, error.what, error.remedy])
                    raise
                reason = error.what.rstrip(".")
            if link and link not in come.values():
                link.close()
            if len(come) == node.total - 1:  # not all ways are open; who is still there comes again
                _dismiss(come)
            missing = [str(rank) for rank in range(1, node.total) if rank not in come]
            whom = f"node{'s' if missing[1:] else ''} {' and '.join(missing)} to connect to {_meeting_place(node)}"
            _tell(come, waits=whom)
            waiting.say(whom, reason)


def _take(come: dict[int, Link], link: Link) -> None:
    """Have a node that agrees wait for the rest; one that was started again takes its own place."""
    before = come.get(link.rank)
    if before and before.other != link.other:
        what = f"{before.other} and {link.other} both have NODE_RANK={link.rank}."
        link.send({"refusal": ["nodes-differ", what, "Give each node a NODE_RANK of its own."]})
        raise ValueError(f"has NODE_RANK={link.rank}, as {before.other} does")
    if before:
        before.close()
    come[link.rank] = link


def _tell(come: dict[int, Link], **message: object) -> None:
    """Tell all nodes that wait; forget those that are gone."""
    for rank, link in list(come.items()):
        try:
            with suppress(TimeoutError):  # as long as it says nothing, it waits
                next(link.arrived(), None)
            link.send(message)
        except (OSError, ValueError):
            come.pop(rank).close()


def _try_ways(node: Node, come: Mapping[int, Link]) -> None:
    """Have every node try to reach every other at a port; let all start if they can."""
    with socket.create_server((node.address, 0)) as probe:
        places = {HEAD: (node.address, probe.getsockname()[1])}
        places |= {rank: (link.other, link.port) for rank, link in come.items()}
        for link in come.values():
            with _named(link):
                link.send({"places": [[rank, *place] for rank, place in places.items()]})
        failures = [_unreachable(node, places)]
        for link in come.values():
            with _named(link):
                failures.append(printable(link.receive(ANSWER).get("failure", ""), LONGEST))
    if failure := next(filter(None, failures), ""):
        remedy = "Allow all traffic on the cable in all firewalls, as `sudo ufw allow in on CABLE` does."
        raise StartError("pair", f"{failure}.", "HEAD_ADDRESS", node.head, remedy=remedy)
    for link in come.values():
        with _named(link):
            link.send({"starts": True})


class _GoneError(Exception):
    """A node that had come is gone."""


@contextmanager
def _named(link: Link) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise _GoneError(f"{link.name} is gone again: {error}") from None


def _dismiss(come: dict[int, Link]) -> None:
    for link in come.values():
        link.close()
    come.clear()


def _join(node: Node, own: Mapping[str, Any], secret: str, waiting: _Waiting) -> Group:
    """Wait, as any node but the head, for the head, and with it for the rest."""
    while True:
        link = None
        try:
            link = Link(_connected(node), node.rank, secret)
            with socket.create_server((node.address, 0), backlog=QUEUE) as probe:
                _greet(link, node, own, probe.getsockname()[1])
                others = _wait_for_all(link, node, waiting)
        except (OSError, ValueError) as error:
            reason = _reason(node, error, link)
        else:
            say(f"joined with {', '.join(others)} over {node.interface.name}")
            return Group([link])
        link.close() if link else None
        waiting.say(f"the head at {_meeting_place(node)}", reason)
        time.sleep(1)


class _Arrivals:
    """Who connects to the head: all are heard at once, so that a stranger costs the other nodes no time."""

    def __init__(self, node: Node, secret: str) -> None:
        self._node, self._secret = node, secret
        self._strangers: dict[Link, float] = {}
        """Until when each may prove that it is another node; the oldest comes first."""
        self.refused = ""
        """What was wrong with the last of them."""
        try:
            self.listener = socket.create_server(node.link, backlog=QUEUE)
            self.listener.settimeout(0)  # who was there may be gone
            _bind(self.listener, node)
        except OSError as error:
            what = f"{node.address} cannot be listened on: {os.strerror(error.errno or 0)}."
            remedy = "End what uses the port, or set HEAD_PORT to another on all nodes."
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
                    proved = next(link.arrived(), None) is not None
                except (OSError, ValueError) as error:
                    self._refuse(link, error)
                    continue
                if proved:
                    del self._strangers[link]
                    return link
        raise TimeoutError

    def _accept(self) -> None:
        """Accept who waits, but few of each machine: whoever comes often takes no place from another node."""
        with suppress(OSError):
            for _ in range(MOST):
                connection, (address, _port) = self.listener.accept()
                same = sum(link.other == address for link in self._strangers)
                near = self._node.routed or IPv4Address(address) in self._node.interface.address.network
                if not near or same >= EACH:
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


def _welcome(link: Link, node: Node, own: Mapping[str, Any]) -> None:
    """Compare, as the head, with a node that has proved to know the secret: to others, none describes itself."""
    link.send({**own, "clock": time.time()})
    other = link.receive(ANSWER)
    comparing.compare(link, own, other)
    rank, port = other.get("rank"), other.get("port")
    if not (isinstance(rank, int) and rank in range(1, node.total) and isinstance(port, int) and port in PORTS):
        raise ValueError(NO_MESSAGE)
    link.rank, link.port = rank, port


def _greet(link: Link, node: Node, own: Mapping[str, Any], port: int) -> None:
    """Prove to know the secret, with an empty message, and compare with the head."""
    link.send({})
    other = link.receive(ANSWER)
    link.send({**own, "clock": time.time(), "rank": node.rank, "port": port})
    comparing.compare(link, own, other)


def _wait_for_all(link: Link, node: Node, waiting: _Waiting) -> list[str]:
    others: list[str] = []
    while True:
        message = link.receive(2 * ANSWER)
        if isinstance(refusal := message.get("refusal"), list):
            name, what, remedy = (printable(part, LONGEST) for part in refusal)
            raise StartError(name if name in REFUSALS else REFUSALS[0], what, remedy=remedy)
        if "waits" in message:
            waiting.say(printable(message["waits"]), "not started yet, or the head cannot be reached from there")
        if "places" in message:
            places = _places(message["places"])
            others = [address for rank, (address, _) in sorted(places.items()) if rank != node.rank]
            link.send({"failure": _unreachable(node, places)})
        if "starts" in message:
            return others


def _places(told: Any) -> dict[int, tuple[str, int]]:  # noqa: ANN401 - what was sent
    """Return where each node is to be reached."""
    try:
        found = {int(rank): (str(IPv4Address(address)), int(port)) for rank, address, port in told}
    except (TypeError, OverflowError):
        raise ValueError(NO_MESSAGE) from None
    if not all(port in PORTS for _, port in found.values()):
        raise ValueError(NO_MESSAGE)
    return found


def _unreachable(node: Node, places: Mapping[int, tuple[str, int]]) -> str:
    """Say why no connection can be made to a port of another node; empty if there can to each."""
    for rank, (other, port) in sorted(places.items()):
        try:
            if rank != node.rank:
                socket.create_connection((other, port), ATTEMPT, (node.address, 0)).close()
        except OSError as error:
            return (
                f"{other}:{port} cannot be reached from {node.address} over {node.interface.name}, though port "
                f"{node.link[1]} of {node.head} can: {error.strerror or error}; a firewall lets only some ports through"
            )
    return ""


def _meeting_place(node: Node) -> str:
    return f"{node.head}:{node.link[1]} ({node.interface.name})"


def _reason(node: Node, error: Exception, link: Link | None) -> str:
    if not network.has_carrier(node.interface.name):
        return f"{node.interface.name} has no carrier; the cable is out, or what it leads to is off"
    if link is not None:
        if isinstance(error, ValueError):
            what = str(error)
        elif link.proved:
            what = f"disconnected ({error})"
        elif node.rank == HEAD:
            what = "did not prove that it is another node"
        else:
            what = f"does not accept this node; does {keys.PAIR_FILE} name the same secret on all?"
        return f"{link.other} {'connected' if node.rank == HEAD else 'answered'} but {what}"
    if node.rank == HEAD:
        return "not started yet, or this machine cannot be reached"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; the head has not started yet"
    if isinstance(error, TimeoutError):
        return "no answer; the head is off, the cable leads elsewhere, or a firewall drops the packets"
    return str(getattr(error, "strerror", "") or error)
