"""Container engines load the images and run their programs."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

from imagefactory.assemble.assemble import Built
from imagefactory.assemble.engines.docker.daemon import load
from imagefactory.oci.layout import archive, write_archive
from tests.fixtures.engines import need
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}"
    return result.stdout


@pytest.fixture
def tar(built: Built, tmp_path: Path) -> Path:
    file = tmp_path / "image.tar"
    write_archive(archive(built.layout, f"small:{CELL.slug}"), file)
    return file


def test_skopeo_reads_layout_and_archive(built: Built, tar: Path) -> None:
    need("skopeo")
    folder = json.loads(run("skopeo", "inspect", f"oci:{built.layout.folder}:{CELL.slug}"))
    assert folder["Digest"] == built.image.digest
    assert folder["Layers"] == [blob.digest for blob in built.image.layers]
    assert json.loads(run("skopeo", "inspect", f"oci-archive:{tar}"))["Digest"] == built.image.digest
    docker = json.loads(run("skopeo", "inspect", f"docker-archive:{tar}"))
    assert docker["Architecture"] == MACHINE


def test_umoci_unpacks_the_layout(built: Built, tmp_path: Path) -> None:
    need("umoci")
    bundle = tmp_path / "bundle"
    run("umoci", "unpack", "--rootless", "--image", f"{built.layout.folder}:{CELL.slug}", str(bundle))
    root = bundle / "rootfs"
    assert (root / "etc/motd").read_text() == "a small base\n"
    site = root / "opt/venv/lib/python3.11/site-packages"
    assert (site / "pure/data.bin").stat().st_size == 100_000
    assert os.access(root / "opt/venv/bin/pure", os.X_OK)
    assert (site / "pure/ünï.txt").exists()


def test_podman_loads_the_archive(built: Built, tar: Path) -> None:
    need("podman")
    # Podman wants short names for its folders.
    with tempfile.TemporaryDirectory(prefix="pod") as folder:
        storage = ("--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs")
        podman = ("podman", *storage)
        name = run(*podman, "load", "--input", str(tar)).split()[-1]
        [image] = json.loads(run(*podman, "image", "inspect", name))
        run(*podman, "rmi", "--all", "--force")
    assert image["Id"] == built.image.config_digest.removeprefix("sha256:")
    assert image["RootFS"]["Layers"] == [blob.diff_id for blob in built.image.layers]


@pytest.mark.engine
def test_docker_loads_the_stream(built: Built) -> None:
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
@pytest.mark.network
@pytest.mark.slow
def test_base_is_a_working_debian(tiny_image: str) -> None:
    script = (
        "set -e; cc --version | head -1; ldconfig -p | grep -c libc.so.6; dpkg -l gcc | tail -1; locale charmap;"
        "dpkg --audit; apt-get --version | head -1; python3 -c 'import ssl; "
        "print(len(ssl.create_default_context().get_ca_certs()) > 100)'; id nobody"
    )
    docker = ("docker", "run", "--rm", "--network", "host", "--entrypoint", "sh", tiny_image)
    lines = run(*docker, "-c", script).splitlines()
    assert lines[0].startswith(("cc ", "gcc "))
    assert "ii  gcc" in "\n".join(lines)
    assert "UTF-8" in lines
    assert "True" in lines
