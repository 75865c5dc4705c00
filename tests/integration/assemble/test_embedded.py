"""The whole program with failing servers, full disks, interrupts and other Pythons."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagefactory.store.index_config import environment_for_uv
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import refused
from tests.fixtures.golden import GOLDEN
from tests.fixtures.small_factory import SmallFactory
from tests.integration.assemble.test_killed import assert_whole


def test_standard_output_is_only_the_result(tmp_path: Path) -> None:
    factory = SmallFactory(tmp_path)
    built = factory.run("build", "--target", "all")
    assert built.returncode == 0, built.stderr
    lines = built.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("sha256:") and len(line) == 71 for line in lines)
    assert "done" in built.stderr
    exported = factory.invoke("load", "--file", str(tmp_path / "image.tar"), "--target", "tiny")
    assert exported.stdout.strip() == str(tmp_path / "image.tar")
    explained = factory.invoke("explain", "/etc/motd", "--target", "tiny")
    assert "base 1.0" in explained.stdout
    different = factory.invoke("diff", "tiny", "other")
    assert different.returncode == 1
    assert "opt/models/tiny/config.json" in different.stdout
    assert factory.invoke("diff", "tiny", "tiny").returncode == 0
    assert factory.invoke("verify", "--target", "tiny").stdout.strip() in lines


@pytest.mark.parametrize("size", [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 30))])
def test_full_disk_is_an_error_with_a_remedy_and_leaves_no_image(tmp_path: Path, size: int) -> None:
    factory = SmallFactory(tmp_path, big=1)
    small = tmp_path / "small-disk"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=700", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no small file system can be mounted here; that takes root")
    try:
        failed = factory.run("build", "--target", "tiny", env={"FACTORY_CACHE": str(small)})
        assert refused(failed, "disk-full"), failed.stderr
        assert "There is no space left" in failed.stderr
        assert "Traceback" not in failed.stderr
        assert failed.stdout == ""
        assert not (factory.root / "build").exists()
        assert list(small.glob("scratch/[!.]*")) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_build_stops_at_once_when_interrupted_on_a_terminal(tmp_path: Path) -> None:
    factory = SmallFactory(tmp_path, big=1)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        factory.command("build", "--target", "tiny"),
        env={**factory.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    shown, interrupted = b"", 0.0
    while select.select([master], [], [], 60)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        shown += data
        if not interrupted and b"packing" in shown:
            os.killpg(process.pid, signal.SIGINT)
            interrupted = time.monotonic()
    os.close(master)
    assert process.wait(30) == 130
    assert time.monotonic() - interrupted < 20
    assert b"Traceback" not in shown, shown.decode("utf-8", "replace")
    assert b"interrupted; finished work is kept" in shown
    assert list(factory.cache.glob("scratch/[!.]*")) == []
    again = factory.invoke("build", "--target", "tiny")
    assert_whole(factory, again.stdout.strip())


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_golden_digests_hold_under_every_python(tmp_path: Path, version: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    venv = tmp_path / "venv"
    # Those of pyenv are not on PATH unless they were chosen.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = [sys.executable] if version == "{}.{}".format(*sys.version_info) else []
    candidates = [*own, version, *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    make = [str(uv), "venv", "--quiet", "--no-python-downloads", "--clear", str(venv), "--python"]
    if all(subprocess.run([*make, name], capture_output=True, check=False).returncode for name in candidates):
        assert not own
        pytest.skip(f"no Python {version} on this machine; `uv python install {version}` fetches it from GitHub")
    python = str(venv / "bin" / "python")
    requirements = ("--requirements", str(REPOSITORY / "pyproject.toml"), "pytest")
    install = [str(uv), "pip", "install", "--quiet", "--python", python, *requirements]
    subprocess.run(install, env=environment_for_uv(), check=True)
    for workers in ("0", "2"):
        found = subprocess.run(
            [python, "-m", "tests.fixtures.golden", str(tmp_path / workers), workers],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout) == GOLDEN
    shutil.rmtree(venv)
