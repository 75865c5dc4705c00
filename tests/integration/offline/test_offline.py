"""A checkout with its image goes to a machine without a network, where its commands work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from imagefactory.check.smoke.containers import docker
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.tiny_image import TARGET, invoke

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow, pytest.mark.disk(3)]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def git(root: Path, *words: str) -> str:
    by = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.run(["git", "-C", str(root), *by, *words], check=True, capture_output=True, text=True).stdout


def committed(root: Path) -> Path:
    """Clone this repository, with what is not committed yet in a commit of its own."""
    git(REPOSITORY, "clone", "--quiet", "--depth", "1", REPOSITORY.as_uri(), str(root))
    for name in git(REPOSITORY, "ls-files", "--modified", "--others", "--exclude-standard").splitlines():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, root / name)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "all")
    return root


def test_a_packed_checkout_loads_its_image_without_a_network(tmp_path: Path) -> None:
    here, parts, there = committed(tmp_path / "here"), tmp_path / "parts", tmp_path / "there"
    invoke(here, "build", "--target", TARGET)
    invoke(here, "offline", str(parts), "--target", TARGET, "--python", PYTHON)
    (tmp_path / "home").mkdir()
    repository, dead = f"test-{uuid4().hex[:12]}", "http://127.0.0.1:9"
    environment = {
        "HOME": str(tmp_path / "home"),
        "PATH": os.environ["PATH"],
        "FACTORY_REGISTRY": f"here.test/{repository}",
        **dict.fromkeys(("http_proxy", "https_proxy"), dead),
        **{name: value for name, value in os.environ.items() if name.startswith("DOCKER_")},
    }

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    last = max(parts.glob("part-*"))
    last.rename(tmp_path / "late")
    with pytest.raises(AssertionError, match=f"{last.name}: missing"):
        run(sys.executable, str(parts / "unpack.py"), str(there))
    (tmp_path / "late").rename(last)
    run(sys.executable, str(parts / "unpack.py"), str(there))
    shutil.rmtree(parts)
    try:
        assert run(str(there / "inv"), "load", "--target", TARGET).startswith("sha256:")
        record = run(str(there / "inv"), "smoke", "--target", TARGET, "--level", "static")
        assert Path(record.strip().splitlines()[-1]).is_file()
        # As far as a registry that is not there: everything that it needs was packed.
        with pytest.raises(AssertionError, match=r"error\[registry-unreachable\]"):
            run(str(there / "inv"), "verify", "--image", "localhost:9/x:tiny")
        assert git(there, "status", "--porcelain") == ""
    finally:
        # By name: other tests may have the same image under another.
        for name in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", repository).stdout.split():
            docker("rmi", "--force", name)
