"""Sends requests to the server, for HEALTHCHECK and the warm-up."""

import http.client
import json
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from . import private_files

NOTE = "address.json"
OWN = "X-Imagefactory"
"""The header of this program's requests: the guard answers them with the server's own check alone."""
MAX_ANSWER = 16 * 1024 * 1024


class Address(NamedTuple):
    """Where the server listens."""

    host: str
    port: int
    tls: bool = False

    @property
    def url(self) -> str:
        """The address for clients on the same machine."""
        host = "localhost" if self.host in {"127.0.0.1", "::1"} else self.host
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"


class Answer(NamedTuple):
    """The server's answer."""

    status: int
    body: bytes


def leave_note(address: Address) -> None:
    """Write down where the server will listen; the health check, another process, does not see its arguments."""
    with suppress(OSError):  # in a read-only container the health check uses PORT
        private_files.write(NOTE, json.dumps(address))


def address(environment: Mapping[str, str] | None = None) -> Address:
    """Return where the server listens, as noted at its start, else according to the settings."""
    environment = os.environ if environment is None else environment
    try:
        host, port, tls = json.loads(private_files.read(NOTE))
        return Address(str(host), int(port), bool(tls))
    except (OSError, ValueError, TypeError, RecursionError):
        given = environment.get("PORT", "")
        return Address(reachable(environment.get("HOST", "")), int(given) if given.isdecimal() else 8000)


def reachable(host: str) -> str:
    """Return the address to connect to for an address to listen on."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def is_well(where: Address, timeout: float = 5) -> bool:
    """Whether the server's own check succeeds; state.py knows what else keeps it from being ready."""
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
    """Send an HTTP request; an answer that is not HTTP is an OSError."""
    headers: dict[str, str | bytes] = {"Connection": "close", OWN: "1"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if key:
        headers["Authorization"] = f"Bearer {key}".encode()
    connection = http.client.HTTPConnection(where.host, where.port, timeout=timeout)
    if where.tls:
        # The server is in the same container; its certificate is for the name that clients use.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(where.host, where.port, timeout=timeout, context=context)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(MAX_ANSWER))
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {type(error).__name__}") from None
    finally:
        connection.close()
