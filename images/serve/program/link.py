"""Holds nodes together while they serve: if one fails, all end.

No server survives another, but each may wait for it for ever. So the companions keep the connections on which they met:
if a node closes its own or is silent, the head tells the others which, every node ends its server, Docker starts all
again, and they meet again.
"""

import json
import os
import select
import time
from contextlib import suppress

from . import liveness, private_files, state
from .channel import STARTING, Group, Link, printable
from .redaction import say

BEAT, SILENCE = 2.0, 20.0
"""Seconds between signs of life, and without any until a node counts as dead."""
NOTED = 60.0
"""Seconds more until the note of a node that gives no sign of life is not believed."""
READY = "ready"
NOTE = "pair"
"""The file with the health of a node that waits, or that has no API."""


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
    if age > SILENCE + NOTED:
        return f"unknown: the program beside the server has been silent for {age:.0f} s", False
    return str(text), well is True


def keep(group: Group, server: int, port: int) -> None:
    """Exchange signs of life until a node fails, then end this one's server; port 0 if it has no API."""
    beat = 0.0
    for link in group.links:
        link.heard = time.monotonic()
    while os.getppid() == server:
        if time.monotonic() >= beat:
            beat = time.monotonic() + BEAT
            _send(group, {"state": _state(group), "compiles": liveness.compiling(), "moves": group.moves})
        sockets = [link.connection for link in group.links]
        ready = select.select(sockets, [], [], max(0.01, beat - time.monotonic()))[0]
        failures = [_listen(link, port, arrived=link.connection in ready) for link in group.links]
        if any(failures):
            return _end(group, server, "; ".join(dict.fromkeys(filter(None, failures))))
    return None


def _listen(link: Link, port: int, *, arrived: bool) -> str:
    """Take in what a node tells; return which node failed, and how."""
    try:
        for message in link.arrived() if arrived else ():
            link.heard = time.monotonic()
            link.compiles, link.moves = message.get("compiles") is True, message.get("moves") is True
            if "failed" in message:
                return printable(message["failed"])
            if not port:
                head = str(message.get("state"))
                note(f"the head is {head}" if head in {STARTING, READY} else head, well=head == READY)
    except (OSError, ValueError):
        return f"{link.name} has ended or cannot be reached"
    silent = time.monotonic() - link.heard > SILENCE
    return f"{link.name} has been silent for {SILENCE:.0f} s" if silent else ""


def _send(group: Group, message: dict[str, object]) -> None:
    for link in group.links:
        with suppress(OSError, ValueError):  # that a node is gone shows when it is read from
            link.send(message)


def _state(group: Group) -> str:
    found = state.find()
    return group.state if found.name in {state.READY, state.STARTING} else found.reason


def _end(group: Group, server: int, text: str) -> None:
    """End the server, since another node failed; the head tells the others which."""
    group.state = text
    _send(group, {"failed": text})
    note(text, well=False)
    say(f"{text}: ending the server with code {liveness.PARTED}, so that all nodes start again")
    liveness.end(server, liveness.PARTED)
