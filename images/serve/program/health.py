"""Sends requests to the server, for HEALTHCHECK and the warm-up."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from . import own_files

NOTE = "address.json"
MAX_ANSWER = 16 * 1024 * 1024


class Address(NamedTuple):
    """Where the server listens."""

    host: str
    port: int
    tls: bool = False


class Answer(NamedTuple):
    """The server's answer."""

    status: int
    body: bytes


def leave_note(address: Address) -> None:
    """Write down where the server will listen; the health check, another process, does not see its arguments."""
    with suppress(OSError):  # in a read-only container the health check uses PORT
        own_files.write(NOTE, json.dumps(address))


def address(environment: Mapping[str, str] | None = None) -> Address:
    """Return where the server listens, as noted at its start, else according to the settings."""
    environment = os.environ if environment is None else environment
    try:
        host, port, tls = json.loads(own_files.read(NOTE))
        return Address(str(host), int(port), bool(tls))
    except (OSError, ValueError, TypeError, RecursionError):
        given = environment.get("PORT", "")
        return Address(reachable(environment.get("HOST", "")), int(given) if given.isdecimal() else 8000)


def reachable(host: str) -> str:
    """Return the address to connect to for an address to listen on."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def is_well(where: Address, timeout: float = 5) -> bool:
    """Whether /health returns 200."""
    try:
        return request(where, "GET", "/health", timeout=timeout).status == 200  # noqa: PLR2004
    except (OSError, ValueError):
        return False


def request(
    where: Address,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | None = None,
    key: str = "",
    timeout: float = 5,
) -> Answer:
    """Send an HTTP request, without http.client: importing it would triple the time of a health check."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {where.host}:{where.port}",
        "Connection: close",
        f"Content-Length: {len(data)}",
    ]
    if data:
        lines.append("Content-Type: application/json")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    with socket.create_connection((where.host, where.port), timeout=timeout) as plain:
        connection = _encrypt(plain) if where.tls else plain
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        received = b""
        while len(received) < MAX_ANSWER:
            part = connection.recv(65536)
            if not part:
                break
            received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/[0-9.]+ ([0-9]{3})\b", head)
    return Answer(int(status.group(1)) if status else 0, rest)


def _encrypt(plain: socket.socket) -> socket.socket:
    import ssl  # noqa: PLC0415 - only for servers with a certificate

    context = ssl.create_default_context()
    # The server is in the same container; its certificate is for the name that clients use.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain)
