"""Messages between nodes: lines of JSON, each signed with the secret that all of them know.

Each side first sends a number that it never used before; from both and the secret comes the key. So a recorded message
is worth nothing later, one cannot be sent back to its author, and whoever does not know the secret learns nothing and
is not heard: no byte of a message is looked at before its signature.
"""

import hmac
import json
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ATTEMPT = 5.0
"""Seconds for a connection, and for sending."""
LONGEST = 100_000
UNANSWERED = 20_000
"""Milliseconds until a connection whose other end acknowledges nothing counts as broken."""
STARTING = "starting"
_NONCE = re.compile(rb"[0-9a-f]{32}")
_FOREIGN = "does not know this node's secret (PAIR_SECRET_FILE)"
NO_MESSAGE = "sent what is no message of a node"


class Link:
    """A connection to another node: every node has one to the head, and the head one to each."""

    def __init__(self, connection: socket.socket, rank: int, secret: str) -> None:
        self.connection, self._secret = connection, secret
        self._side = min(rank, 1)
        """Who signs: 0 for the head, 1 for any other; two connections never share a key."""
        self.rank = self.port = 0
        """The other node's, once it has described itself; a port of it that has to be reached by all."""
        self._rest, self._key = b"", b""
        self._nonce = secrets.token_hex(16).encode()
        self._sent = self._received = 0
        self.other = str(connection.getpeername()[0])
        self.heard = time.monotonic()
        """When the other node gave its last sign of life."""
        self.compiles = self.moves = False
        """Whether it waits for a compiler, and this node for it; whether its server gets on with its start."""
        connection.settimeout(ATTEMPT)
        # A machine without power answers nothing; without a limit the kernel would try for a quarter of an hour.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED)
        connection.sendall(self._nonce + b"\n")

    @property
    def name(self) -> str:
        return f"node {self.rank} ({self.other})"

    @property
    def proved(self) -> bool:
        """Whether the other side knows the secret."""
        return self._received > 0

    def send(self, message: Mapping[str, Any]) -> None:
        self._wait_for_key()
        body = json.dumps(message).encode()
        self.connection.settimeout(ATTEMPT)
        self.connection.sendall(self._signature(self._side, self._sent, body) + b" " + body + b"\n")
        self._sent += 1

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next message; raise TimeoutError, ValueError if it is none, ConnectionError at the end."""
        until = time.monotonic() + timeout
        while (message := self._next()) is None:
            self._read(until)
        return message

    def arrived(self) -> Iterator[dict[str, Any]]:
        """Read what is there, without waiting; yield the messages that are whole."""
        self._read(time.monotonic())
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        self.connection.close()

    def _wait_for_key(self) -> None:
        until = time.monotonic() + ATTEMPT
        while not self._key:
            self._take_nonce()
            if not self._key:
                self._read(until)

    def _read(self, until: float) -> None:
        self.connection.settimeout(max(0.01, until - time.monotonic()))
        part = self.connection.recv(65536)
        if not part:
            raise ConnectionResetError("closed")
        self._rest += part
        if len(self._rest) > LONGEST:
            raise ValueError(_FOREIGN)

    def _take_nonce(self) -> None:
        theirs, newline, rest = self._rest.partition(b"\n")
        if not newline:
            return
        if not _NONCE.fullmatch(theirs):
            raise ValueError(_FOREIGN)
        self._rest = rest
        both = theirs + self._nonce if self._side else self._nonce + theirs
        self._key = hmac.digest(self._secret.encode(), both, "sha256")

    def _next(self) -> dict[str, Any] | None:
        if not self._key:
            self._take_nonce()
        line, newline, rest = self._rest.partition(b"\n")
        if not (self._key and newline):
            return None
        signature, _, body = line.partition(b" ")
        if not hmac.compare_digest(signature, self._signature(1 - self._side, self._received, body)):
            raise ValueError(_FOREIGN)
        self._received += 1
        self._rest = rest
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ValueError(NO_MESSAGE)  # noqa: TRY004 - what was sent, not how it is called
        return message

    def _signature(self, side: int, number: int, body: bytes) -> bytes:
        # Author and number are signed, too: no message can be sent back, repeated or left out.
        return hmac.digest(self._key, b"%d %d %s" % (side, number, body), "sha256").hex().encode()


class Group:
    """The nodes that serve one model, as one of them is connected to the others."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = links
        self.state = STARTING
        self.moves = False
        """Whether the server here gets on with its start."""

    @property
    def names(self) -> str:
        return ", ".join(link.name for link in self.links)

    @property
    def compiles(self) -> bool:
        return any(link.compiles for link in self.links)

    @property
    def others_move(self) -> bool:
        return any(link.moves for link in self.links)

    def close(self) -> None:
        for link in self.links:
            link.close()


def printable(value: object, most: int = 200) -> str:
    # Without a secret, anybody on the cable may have sent it.
    return "".join(character if character.isprintable() else "?" for character in str(value)[:most])
