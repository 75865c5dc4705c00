"""Runs the containers of a smoke run with the docker command, and removes them at its end."""

from __future__ import annotations

import http.client
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import requests

from imagefactory.plan.serve.image_paths import CACHES, KEY_FILE
from imagefactory.store.digests import sha256_of

LABEL: Final = "imagefactory.check.smoke"
_ERROR: Final = re.compile(r"\b\w*(?:Error|Exception): .+")
_PATIENCE: Final = 120  # seconds for commands that start no container


def run_program(words: Sequence[str], timeout: float, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program; the exit code is 124 after a timeout, as with timeout(1), and 127 without the program."""
    try:
        return subprocess.run(  # noqa: S603 - the user's own docker or ssh
            words, input=given, capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"timed out after {timeout:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]} cannot be run: {error.strerror}")


def docker(*words: str, timeout: float = _PATIENCE) -> subprocess.CompletedProcess[str]:
    return run_program(["docker", *words], timeout)


@dataclass(frozen=True)
class Containers:
    """The containers of a smoke run."""

    run: str  # the value of their label

    def once(
        self, image: str, *arguments: str, options: Sequence[str] = (), timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container, as `docker run --rm` does."""
        named = self._named()
        words = ("run", "--rm", *named, "--network", "none", *options, image, *arguments)
        done = docker(*words, timeout=timeout)
        if done.returncode == 124:  # noqa: PLR2004 - see run_program()
            Container(named[-1]).remove()
        return done

    def start(self, image: str, *arguments: str, options: Sequence[str] = ()) -> Container:
        named = self._named()
        container = Container(named[-1])
        done = docker("run", "--detach", *named, *options, image, *arguments, timeout=600)
        if done.returncode:
            container.remove()
            raise ContainerError(f"the container does not start: {done.stderr.strip()}")
        return container

    @contextmanager
    def serve(self, image: str, folder: Path, *arguments: str, options: Sequence[str] = ()) -> Iterator[RunningServer]:
        """Run a server as documented: on the host's network, with its key in a file in `folder`."""
        key = secrets.token_hex(16)
        # Closed again, the port is free for the server; should another program take it first, the start fails.
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        key_file = folder / "key"
        key_file.write_text(key)
        documented = (
            *("--network", "host", "--ipc", "host", *self.caches(image)),
            *("--volume", f"{key_file}:{KEY_FILE}:ro", "--env", f"VLLM_API_KEY_FILE={KEY_FILE}"),
            *("--env", f"PORT={port}", "--env", "HOST=127.0.0.1"),
        )
        container = self.start(image, *arguments, options=(*documented, *options))
        try:
            yield RunningServer(container, f"http://127.0.0.1:{port}", key)
        finally:
            container.remove()

    def caches(self, image: str) -> tuple[str, str]:
        """Return options that let containers of an image share a cache volume, as documented."""
        volume = f"imagefactory-smoke-{self.run}-{sha256_of(image.encode())[:12]}"
        docker("volume", "create", "--label", f"{LABEL}={self.run}", volume)
        return ("--volume", f"{volume}:{CACHES}")

    def remove_all(self) -> None:
        """Remove the volumes of the run, and its containers if it was interrupted."""
        mine = ("--quiet", "--filter", f"label={LABEL}={self.run}")
        if containers := docker("ps", "--all", *mine).stdout.split():
            docker("rm", "--force", "--volumes", *containers)
        if volumes := docker("volume", "ls", *mine).stdout.split():
            docker("volume", "rm", "--force", *volumes)

    def _named(self) -> tuple[str, ...]:
        """Return options with a new name, which comes last."""
        return ("--label", f"{LABEL}={self.run}", "--name", f"imagefactory-smoke-{uuid4().hex[:12]}")


class ContainerError(Exception):
    """A container failed; the message is for the smoke record."""


@dataclass(frozen=True)
class Container:
    """A container in the background."""

    name: str

    def execute(self, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return docker("exec", self.name, *words, timeout=timeout)

    @property
    def is_running(self) -> bool:
        return self._inspect("{{.State.Running}}") == "true"

    @property
    def exit_code(self) -> int | None:
        code = self._inspect("{{.State.ExitCode}}")
        return int(code) if code.isdecimal() and not self.is_running else None

    @property
    def log(self) -> str:
        done = docker("logs", self.name)
        return done.stdout + done.stderr

    def stop(self, seconds: int) -> float:
        """Stop it, with a kill after a number of seconds; return how long that took."""
        started = time.monotonic()
        docker("stop", "--time", str(seconds), self.name, timeout=seconds + _PATIENCE)
        return time.monotonic() - started

    def remove(self) -> None:
        docker("rm", "--force", "--volumes", self.name)

    def _inspect(self, template: str) -> str:
        return docker("inspect", "--format", template, self.name).stdout.strip()


@dataclass
class RunningServer:
    """A container that serves a model, with its address and key."""

    container: Container
    address: str
    key: str

    def wait_until_healthy(self, limit: float) -> float:
        """Wait until the server is healthy; return the seconds that took."""
        started = time.monotonic()
        while time.monotonic() - started < limit:
            try:
                if requests.get(f"{self.address}/health", timeout=5).ok:
                    return time.monotonic() - started
            except requests.RequestException:
                pass
            if not self.container.is_running:
                code = self.container.exit_code
                raise ContainerError(f"the server ended with code {code}: {self.last_words()}")
            time.sleep(0.5)
        # The reason goes last: the end of this log does not say it.
        raise ContainerError(f"{self.last_words()}\nthe server was not ready after {limit:.0f} s")

    def last_words(self) -> str:
        """Return the end of the log, and after it the error of the process that failed first, if there are several."""
        log = self.container.log.strip()
        lines = log.splitlines()[-15:]
        if "Traceback (most recent call last)" in log:
            # vLLM's front end and our program, whose words come last, only say that its engine has ended.
            errors = (match[0] for match in _ERROR.finditer(log) if "root cause above" not in match[0])
            lines += [*errors][-1:]
        return "\n".join(lines) or "it wrote nothing"

    def status(self, method: str, path: str, key: str | None = None, *, websocket: bool = False) -> int:
        """Send a request for a path exactly as given, or the handshake of a WebSocket; return the status."""
        headers = _bearer(key) if key is not None else {}
        if websocket:
            # RFC 6455, section 4.1: version 13, and a key of 16 bytes in base64.
            headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
            headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
        # requests would shorten a path such as /v1/../health before it sends it.
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"), timeout=60)
        try:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def get(self, path: str) -> requests.Response:
        return requests.get(f"{self.address}{path}", headers=_bearer(self.key), timeout=120)

    def post(self, path: str, body: dict[str, object], *, key: str | None = None) -> requests.Response:
        """Send a POST request with the key, or with another one."""
        headers, stream = _bearer(self.key if key is None else key), bool(body.get("stream"))
        return requests.post(f"{self.address}{path}", json=body, headers=headers, timeout=600, stream=stream)


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
