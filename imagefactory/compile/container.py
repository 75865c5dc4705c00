"""Runs a compile in a container that is removed with the process, and logs its output."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import docker
import requests
from docker.errors import DockerException

from imagefactory.build.engines.docker.daemon import client_for
from imagefactory.environment.progress import Say
from imagefactory.environment.signals import ending_in_order

LABEL = "imagefactory.compile"
_TOLD = 14
"""How many lines of a failed compile are shown; the rest is in the log."""
_TELLING = ("error", "Error", "FAILED", "fatal", "Killed", "FACTORY-UNKNOWN", "No space left")


@dataclass(frozen=True)
class Mount:
    """A folder of this machine, and its fixed path in the container."""

    folder: Path
    place: str
    read_only: bool = False


@dataclass(frozen=True)
class Ended:
    """A container's exit status, and the lines of output that explain it."""

    status: int
    telling: tuple[str, ...]


def run(
    image: str,
    command: Sequence[str],
    *,
    key: str,
    mounts: Sequence[Mount],
    environment: Mapping[str, str],
    log: Path,
    hear: Say,
    network: str = "none",
) -> Ended:
    """Run a command in a container, as the current user; output goes to the log and to `hear`."""
    with ending_in_order(), _client() as client:
        remove_left_over(client, key)
        container = client.containers.create(
            image,
            list(command),
            environment=dict(environment),
            labels={LABEL: key},
            network_mode=network,
            user=f"{os.getuid()}:{os.getgid()}",
            volumes={
                str(mount.folder): {"bind": mount.place, "mode": "ro" if mount.read_only else "rw"}
                for mount in mounts
            },
            working_dir="/factory",
        )
        said: Iterable[bytes] = ()
        try:
            container.start()
            said = container.logs(stream=True, follow=True)
            telling = _listen(lines(said), log, hear)
            status = int(container.wait()["StatusCode"])
        finally:
            with suppress(DockerException, requests.RequestException):
                container.remove(force=True)
                deque(said, maxlen=0)  # drain the stream, which closes its connection
    return Ended(status, telling)


def remove_left_over(client: docker.DockerClient, key: str) -> None:
    """Remove the container of a run that was killed, which would keep writing to the same folders."""
    for container in client.containers.list(all=True, filters={"label": f"{LABEL}={key}"}):
        container.remove(force=True)


def root_folder() -> Path | None:
    """Return the daemon's folder of images, or None if it is not on this machine."""
    with _client() as client:
        folder = Path(str(client.info().get("DockerRootDir", "")))
    return folder if folder.is_absolute() and folder.exists() else None


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Split a stream of chunks into lines as they arrive."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in whole)
    if rest:
        yield rest.decode("utf-8", "replace")


def _listen(said: Iterable[str], log: Path, hear: Say) -> tuple[str, ...]:
    last: deque[str] = deque(maxlen=_TOLD)
    telling: deque[str] = deque(maxlen=_TOLD)
    with log.open("a", encoding="utf-8") as file:
        for line in said:
            file.write(f"{line}\n")
            file.flush()
            last.append(line)
            if any(word in line for word in _TELLING):
                telling.append(line)
            hear(line)
    return tuple(telling) or tuple(last)


def _client() -> AbstractContextManager[docker.DockerClient]:
    return client_for(
        "docker run",
        "The Docker daemon cannot run the compile.",
        "Start Docker, check DOCKER_HOST, and run it again: what is compiled already is kept.",
        timeout=None,  # a single object can take many minutes without any output
    )
