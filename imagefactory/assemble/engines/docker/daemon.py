"""Talks to the Docker daemon: its version, and loading, pulling and reading images."""

from __future__ import annotations

import io
import json
import os
import posixpath
import socket
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import docker
import requests
from docker.errors import DockerException, ImageNotFound
from isal import igzip

from imagefactory.errors import BuildError, EngineError, InputError
from imagefactory.oci.compare import Opened
from imagefactory.oci.entry import INFLATE_ERROR
from imagefactory.oci.layout import Layout, archive
from imagefactory.oci.listing import ListedPath, read_stream
from imagefactory.store.progress import Progress, counted

if TYPE_CHECKING:
    from typing_extensions import Buffer

EMULATORS = Path("/proc/sys/fs/binfmt_misc")
_QEMU = {"arm64": "qemu-aarch64", "amd64": "qemu-x86_64"}
_TIMEOUT = 600  # seconds without an answer
_PEEK = 512  # bytes that show what a member of a saved image is
_SILENT = "The Docker daemon does not answer."
_WITHOUT_DOCKER = (
    "Start Docker, check DOCKER_HOST and the free disk, or do without: the embedded engine and "
    "`./inv load --file` need none."
)


@dataclass(frozen=True)
class Daemon:
    """What a daemon reports about itself."""

    version: str
    machine: str  # in Docker's spelling: amd64, arm64


def ask() -> Daemon:
    with client_for("docker version", _SILENT) as client:
        version = client.version()
    return Daemon(str(version["Version"]), str(version["Arch"]))


def refuse_foreign(daemon: Daemon, platform: str) -> None:
    machine = platform.rpartition("/")[2]
    if daemon.machine == machine or (EMULATORS / _QEMU.get(machine, machine)).exists():
        return
    raise EngineError(
        "foreign-platform",
        f"Docker cannot run programs for {platform} here.",
        where=f"a daemon on linux/{daemon.machine}",
        why=f"Steps of the build run programs for {platform}, and nothing emulates them here.",
        fix="Use the embedded engine, which runs no program of the image; or set up QEMU "
        "(docker run --privileged tonistiigi/binfmt).",
    )


Loading = Callable[[Literal["sending", "unpacking"], int, int], None]
"""Receives the bytes that were sent or unpacked so far, and all of them."""


def load(layout: Layout, name: str, tell: Loading = lambda *_: None) -> str:
    """Stream an image into the daemon without a temporary file; return its id."""
    total = layout.size()
    fix = "Start Docker, check DOCKER_HOST, its free disk, and that its platform is the image's."
    with client_for("docker load", "The Docker daemon did not accept the image.", fix) as client:
        client.ping()
        stream = counted(archive(layout, name), lambda done: tell("sending", done, total))
        # Daemons report what they unpack, if they are not asked to be quiet.
        _refuse_errors(
            _unpacked(client.api.load_image(stream, quiet=False), lambda done: tell("unpacking", done, total))
        )
        image: str = client.images.get(name).id
    return image


def _unpacked(answers: Iterable[Mapping[str, Any]], tell: Progress) -> Iterator[Mapping[str, Any]]:
    layers: dict[str, int] = {}
    for answer in answers:
        current = (answer.get("progressDetail") or {}).get("current")
        if isinstance(current, int):
            layers[str(answer.get("id"))] = current
            tell(sum(layers.values()))
        yield answer


def _refuse_errors(answers: Iterable[Mapping[str, Any]]) -> None:
    for answer in answers:
        if "error" in answer:
            raise DockerException(str(answer["error"]))


def image_id(name: str) -> str | None:
    attributes = inspect(name)
    return None if attributes is None else str(attributes["Id"])


def remove_name(name: str) -> None:
    """Remove a name; an image left without names and containers is removed with it."""
    with client_for("docker rmi", _SILENT) as client:
        client.images.remove(name, noprune=False)


def require(name: str) -> Mapping[str, Any]:
    """Return the attributes of an image, or raise an error if the daemon lacks it."""
    attributes = inspect(name)
    if attributes is None:
        raise BuildError(
            "no-image",
            f"Docker has no image {name}.",
            where="the Docker daemon",
            why="No target, OCI layout or image of the daemon has this name.",
            fix="Build it first: `./inv build --engine docker --target ...`; `docker images` lists what is there.",
        )
    return attributes


def open_image(name: str, tell: Progress = lambda _: None) -> Opened:
    """Read an image of the daemon from its stream, without writing it to disk."""
    with client_for("docker save", "The Docker daemon cannot export the image.") as client:
        return open_saved(counted(client.api.get_image(name), tell), name)


def open_saved(chunks: Iterator[bytes], name: str) -> Opened:
    """Read a `docker save` stream: the format of old daemons (layer.tar), or an OCI layout."""
    documents: dict[str, Any] = {}
    layers: dict[str, list[ListedPath]] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=reader(chunks), mode="r|") as saved:
            for member in saved:
                if member.issym():  # one layer that occurs twice
                    beside = posixpath.join(posixpath.dirname(member.name), member.linkname)
                    links[member.name] = posixpath.normpath(beside)
                content = saved.extractfile(member) if member.isfile() else None
                if content is not None:
                    _take(member.name, content, documents, layers)
        [image] = documents["manifest.json"]
        stack = [layers[links.get(layer, layer)] for layer in image["Layers"]]
        return Opened(documents[image["Config"]], stack)
    except (tarfile.TarError, INFLATE_ERROR, EOFError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            "damaged-file",
            f"The saved image {name} cannot be read.",
            where="docker save",
            why=f"{type(error).__name__}: {error}",
            fix="Try again; if it keeps failing, save it with `docker save` and inspect the file.",
        ) from None


def _take(name: str, content: IO[bytes], documents: dict[str, Any], layers: dict[str, list[ListedPath]]) -> None:
    """Keep a JSON document, list a layer, skip the rest."""
    buffered = io.BufferedReader(content, _PEEK)  # type: ignore[type-var]
    head = buffered.peek(_PEEK)
    if head.startswith((b"{", b"[")):
        documents[name] = json.load(buffered)
    elif head.startswith(b"\x1f\x8b"):  # gzip (RFC 1952)
        layers[name] = list(read_stream(igzip.open(buffered, "rb")))  # type: ignore[no-untyped-call]
    elif name.endswith("layer.tar") or name.startswith("blobs/"):
        layers[name] = list(read_stream(buffered))


def pull(reference: str, *, auth: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Pull an image; return its attributes, including the digests it was pulled by (`RepoDigests`)."""
    fix = "Start Docker, and check the name and the network; for a private registry, run `docker login` first."
    with client_for("docker pull", f"{reference} cannot be pulled.", fix) as client:
        _refuse_errors(client.api.pull(reference, stream=True, decode=True, auth_config=auth))
        attributes: Mapping[str, Any] = client.images.get(reference).attrs
    return attributes


def inspect(name: str) -> Mapping[str, Any] | None:
    with client_for("docker inspect", _SILENT) as client:
        try:
            attributes: Mapping[str, Any] = client.images.get(name).attrs
        except ImageNotFound:
            return None
    return attributes


def reader(chunks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_ChunkStream(chunks))


class _ChunkStream(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        self._left = self._left or memoryview(next(self._chunks, b""))
        size = min(len(self._left), memoryview(buffer).nbytes)
        memoryview(buffer)[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


@contextmanager
def client_for(
    what: str, failed: str, fix: str = _WITHOUT_DOCKER, timeout: int | None = _TIMEOUT
) -> Iterator[docker.DockerClient]:
    """Connect to the daemon, and turn failures into an error that names a command (`what`)."""
    try:
        _knock()
        with closing(docker.from_env(timeout=timeout)) as client:
            yield client
    except (DockerException, requests.RequestException) as error:
        raise EngineError("engine-failed", failed, where=what, why=str(error), fix=fix) from None


def _knock() -> None:
    """Raise an error if nobody listens at the daemon's socket: Docker's client would leave its own open."""
    scheme, _, path = os.environ.get("DOCKER_HOST", docker.constants.DEFAULT_UNIX_SOCKET).partition("://")
    if not scheme.endswith("unix"):
        return
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise DockerException(f"{path}: {error.strerror or error}") from None
