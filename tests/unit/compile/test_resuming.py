"""A compile that is killed again and again: it resumes, believes no half-written object, and has the same result."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from imagefactory.compile.toolchain import CompileProject
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.compiling import OBJECTS, compile_with_ninja
from tests.fixtures.fake_compiler import source

PATIENCE = 180.0
FIELDS = ("start", "end", "time", "output", "command")
"""Of a line in ninja's log; one that a kill cut short has fewer."""


@pytest.fixture
def sources(tmp_path: Path) -> str:
    return source(tmp_path, "flashinfer", "flashinfer/jit/core.py")


def begin(project: CompileProject, sources: str, objects: int) -> subprocess.Popen[bytes]:
    """Start a compile that hangs after so many objects, in a process group of its own."""
    command = [sys.executable, "-m", "tests.fixtures.compiling", str(project.root), str(project.store.root)]
    variables = {**os.environ, "AT_MOST": str(objects)}
    running = subprocess.Popen([*command, sources], cwd=REPOSITORY, env=variables, start_new_session=True)
    until = time.monotonic() + PATIENCE
    while len(done(project)) < objects:
        assert running.poll() is None, "it ended"
        assert time.monotonic() < until
        time.sleep(0.02)
    return running


def kill(running: subprocess.Popen[bytes]) -> None:
    """Kill everything, as a power switch would."""
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()


def done(project: CompileProject) -> list[str]:
    """List the objects that ninja knows to be done."""
    logs = (project.store.root / "compile").glob("*/build/cmake/.ninja_log")
    lines = [line.split("\t") for log in logs for line in log.read_text("utf-8", "replace").splitlines()]
    return sorted({fields[3] for fields in lines if len(fields) == len(FIELDS)})


def ends(project: CompileProject) -> Counter[str]:
    """Count how often each object was compiled to the end."""
    [file] = (project.store.root / "compile").glob("*/build/cmake/compiled")
    lines = file.read_text().splitlines()
    return Counter(line.partition(" ")[2] for line in lines if line.startswith("end"))


def test_compile_killed_three_times_has_the_result_of_one_that_was_not(
    compile_checkout: CompileProject, sources: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    sys.stdout.write(f"seed: {seed}\n")
    for least in (1, 4, 7):
        objects = least + chance.randrange(2)
        running = begin(compile_checkout, sources, objects)
        time.sleep(chance.uniform(0, 0.2))
        kill(running)
        assert objects <= len(done(compile_checkout)) < len(OBJECTS)
    times = ends(compile_checkout)
    made, watch = compile_with_ninja(compile_checkout, sources)
    assert watch.steps[0][1] <= len(OBJECTS) + 1 - 7, "what was done is not done again"
    assert times.total() - len(times) <= 3 * 3, (
        "at each kill, at most what three compilers had just ended is lost"
    )

    undisturbed = CompileProject(compile_checkout.root, Store(tmp_path / "other"))
    undisturbed.store.root.mkdir()
    (undisturbed.store.root / "tools").symlink_to(compile_checkout.store.root / "tools")
    other, _ = compile_with_ninja(undisturbed, sources)
    assert made.wheel is not None
    assert other.wheel is not None
    assert (made.wheel.key, made.wheel.sha256) == (other.wheel.key, other.wheel.sha256)
