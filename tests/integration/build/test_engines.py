"""Container engines take the images, and the real server answers from one."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import requests

from imagefactory.build.assemble import Built
from imagefactory.build.engines.docker import load
from imagefactory.errors.layers import EngineError
from imagefactory.oci.layout import archive, write_archive
from tests.fixtures.engines import need
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SmallFactory

START_LIMIT = 300


def run(*command: str, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
    return result.stdout


@pytest.fixture
def built(small_factory: SmallFactory) -> Built:
    [built] = small_factory.build()
    return built


@pytest.fixture
def tar(built: Built, tmp_path: Path) -> Path:
    file = tmp_path / "image.tar"
    write_archive(archive(built.layout, f"small:{CELL.slug}"), file)
    return file


def test_skopeo_reads_the_layout_and_the_archive(built: Built, tar: Path) -> None:
    need("skopeo")
    folder = json.loads(run("skopeo", "inspect", f"oci:{built.layout.folder}:{CELL.slug}"))
    assert folder["Digest"] == built.image.digest
    assert folder["Layers"] == [blob.digest for blob in built.image.layers]
    assert json.loads(run("skopeo", "inspect", f"oci-archive:{tar}"))["Digest"] == built.image.digest
    docker = json.loads(run("skopeo", "inspect", f"docker-archive:{tar}"))
    assert docker["Architecture"] == MACHINE


def test_umoci_unpacks_it(built: Built, tmp_path: Path) -> None:
    need("umoci")
    bundle = tmp_path / "bundle"
    run("umoci", "unpack", "--rootless", "--image", f"{built.layout.folder}:{CELL.slug}", str(bundle))
    root = bundle / "rootfs"
    assert (root / "etc/motd").read_text() == "a small base\n"
    site = root / "opt/venv/lib/python3.11/site-packages"
    assert (site / "pure/data.bin").stat().st_size == 100_000
    assert os.access(root / "opt/venv/bin/pure", os.X_OK)
    assert (site / "pure/ünï.txt").exists()


def test_podman_loads_it(built: Built, tar: Path) -> None:
    need("podman")
    # Podman wants short names for its folders.
    with tempfile.TemporaryDirectory(prefix="pod") as folder:
        podman = (
            "podman",
            "--root",
            f"{folder}/root",
            "--runroot",
            f"{folder}/run",
            "--storage-driver",
            "vfs",
        )
        name = run(*podman, "load", "--input", str(tar)).split()[-1]
        [image] = json.loads(run(*podman, "image", "inspect", name))
        run(*podman, "rmi", "--all", "--force")
    assert image["Id"] == built.image.config_digest.removeprefix("sha256:")
    assert image["RootFS"]["Layers"] == [blob.diff_id for blob in built.image.layers]


@pytest.mark.engine
def test_docker_takes_the_stream(built: Built) -> None:
    name = f"imagefactory-test:{uuid4().hex[:12]}"
    try:
        identity = load(built.layout, name)
        [image] = json.loads(run("docker", "image", "inspect", name))
        assert identity == image["Id"]
        assert image["RootFS"]["Layers"] == [blob.diff_id for blob in built.image.layers]
        assert image["Config"]["Labels"]["imagefactory.plan"] == built.plan.key
    finally:
        subprocess.run(["docker", "rmi", "--force", name], capture_output=True, check=False)


@pytest.mark.engine
def test_docker_loads_the_archive(built: Built, tar: Path) -> None:
    try:
        assert f"small:{CELL.slug}" in run("docker", "load", "--input", str(tar))
        assert built.image.layers
    finally:
        subprocess.run(["docker", "rmi", "--force", f"small:{CELL.slug}"], capture_output=True, check=False)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # docker-py leaves its socket open
def test_a_daemon_that_is_not_there_is_an_error_with_a_remedy(
    built: Built, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EngineError) as caught:
        load(built.layout, "name:tag")
    assert "Start Docker" in caught.value.fix
    del caught
    gc.collect()


def in_container(image: str, *command: str) -> str:
    return run("docker", "run", "--rm", "--network", "host", "--entrypoint", command[0], image, *command[1:])


@pytest.mark.engine
@pytest.mark.network
def test_the_base_is_a_debian_that_works(tiny_image: str) -> None:
    script = (
        "set -e; cc --version | head -1; ldconfig -p | grep -c libc.so.6; dpkg -l gcc | tail -1; locale charmap;"
        "dpkg --audit; apt-get --version | head -1; python3 -c 'import ssl; "
        "print(len(ssl.create_default_context().get_ca_certs()) > 100)'; id nobody"
    )
    lines = in_container(tiny_image, "sh", "-c", script).splitlines()
    assert lines[0].startswith(("cc ", "gcc "))
    assert "ii  gcc" in "\n".join(lines)
    assert "UTF-8" in lines
    assert "True" in lines


@pytest.mark.engine
@pytest.mark.network
def test_what_is_installed_is_whole_and_importable(tiny_image: str) -> None:
    check = (
        "import importlib.metadata as m, pathlib, torch, vllm\n"
        "missing = [f for d in m.distributions() for f in d.files or () if not f.locate().exists()]\n"
        "print(vllm.__version__, len(missing), *missing[:3])"
    )
    assert in_container(tiny_image, "python3", "-c", check).split()[:2] == ["0.32.0", "0"]
    assert "usage: vllm serve" in in_container(tiny_image, "vllm", "serve", "--help")


@dataclass(frozen=True)
class Server:
    """A container that is starting, and where it will answer."""

    name: str
    address: str

    def wait(self) -> None:
        """Wait until it is healthy; fail at once when it ends."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            with suppress(requests.RequestException):
                if requests.get(f"{self.address}/health", timeout=2).ok:
                    return
            if run("docker", "inspect", "--format", "{{.State.Running}}", self.name).strip() != "true":
                break
            time.sleep(1)
        logs = subprocess.run(
            ["docker", "logs", "--tail", "40", self.name], capture_output=True, text=True, check=False
        )
        pytest.fail(f"the server did not become healthy:\n{logs.stdout}{logs.stderr}")


@pytest.fixture
def server(tiny_image: str) -> Iterator[Server]:
    """Start the image as a user would, on a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = f"imagefactory-test-{uuid4().hex[:12]}"
    # vLLM's processes share memory, more than Docker's 64 MB.
    options = ("--network", "host", "--ipc", "host", "--env", f"PORT={port}")
    run("docker", "run", "--detach", "--name", name, *options, tiny_image)
    try:
        yield Server(name, f"http://127.0.0.1:{port}")
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, check=False)


@pytest.mark.engine
@pytest.mark.network
def test_the_real_server_answers_a_chat(server: Server) -> None:
    server.wait()
    question = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    answer = requests.post(f"{server.address}/v1/chat/completions", json=question, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
