"""A compile that is killed again and again: it resumes, believes no half-written object, and has the same result."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from imagefactory.commands.show.compiles import compiles_text
from imagefactory.compile.toolchain import CompileProject
from imagefactory.compile.under_way import UnderWay, under_way
from imagefactory.compile.weights import ninja_log
from imagefactory.errors.kernels import CompileFailedError
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.compiling import OBJECTS, compile_with_ninja
from tests.fixtures.fake_compiler import source

PATIENCE = 180.0


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
    return [name for log in logs for name in ninja_log(log)]


def ends(project: CompileProject) -> Counter[str]:
    """Count how often each object was compiled to the end."""
    [file] = (project.store.root / "compile").glob("*/build/cmake/compiled")
    lines = file.read_text().splitlines()
    return Counter(line.partition(" ")[2] for line in lines if line.startswith("end"))


def only(project: CompileProject) -> UnderWay:
    [one] = under_way(project.store)
    return one


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
        one = only(compile_checkout)
        assert one.state == "interrupted"
        assert one.work is not None
        assert objects <= one.work.done < one.work.total == len(OBJECTS)
    times = ends(compile_checkout)
    made, watch = compile_with_ninja(compile_checkout, sources)
    assert watch.steps[0].total <= len(OBJECTS) + 1 - 7, "what was done is not done again"
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
    assert under_way(compile_checkout.store) == []


def test_running_compile_is_listed_with_what_is_left(compile_checkout: CompileProject, sources: str) -> None:
    running = begin(compile_checkout, sources, 1)
    one = only(compile_checkout)
    kill(running)
    assert one.state == "running"
    assert one.command == f"./inv compile --what flashinfer --vllm 0.32.0 --arch gb10 --source {sources}"
    interrupted = list(compiles_text([only(compile_checkout)]))
    assert interrupted[0] == "flashinfer-jit-cache 0.7.0.post1 for gb10: interrupted"
    assert interrupted[-1] == f"  continue: {one.command}"
    assert "core-minutes ±" in interrupted[1]


def test_times_of_a_killed_compile_are_learnt_by_the_next(
    compile_checkout: CompileProject, sources: str
) -> None:
    kill(begin(compile_checkout, sources, 2))
    [log] = (compile_checkout.store.root / "compile").glob("*/build/cmake/.ninja_log")
    head, first, *rest = log.read_text().splitlines(keepends=True)
    _, _, *others = first.split("\t")
    log.write_text("".join([head, "\t".join(["0", "70000", *others]), *rest]))
    compile_with_ninja(compile_checkout, sources)
    known = json.loads((compile_checkout.store.root / "weights.json").read_text())
    assert [list(own.values()) for own in known.values()] == [[70.0]], (
        "the others were too short for a compiler"
    )


def test_groups_are_compiled_one_by_one_and_then_linked(
    compile_checkout: CompileProject, sources: str
) -> None:
    for number in (1, 2, 3):
        made, _ = compile_with_ninja(compile_checkout, sources, group=f"{number}/3")
        assert (made.wheel, made.libraries, made.steps) == (None, (), 4)
        assert only(compile_checkout).state == "done"
    linked, watch = compile_with_ninja(compile_checkout, sources)
    assert [step.total for step in watch.steps] == [1]
    assert linked.wheel is not None


def test_failed_compile_is_listed_with_its_cause(compile_checkout: CompileProject, sources: str) -> None:
    compile_with_ninja(compile_checkout, sources, group="1/3")
    [compiler] = (compile_checkout.store.root / "compile").glob("*/build/cmake/compiler")
    compiler.write_text("#!/bin/sh\necho 'x.cu(1): error: no such thing'\nexit 1\n")
    with pytest.raises(CompileFailedError):
        compile_with_ninja(compile_checkout, sources, group="2/3")
    one = only(compile_checkout)
    assert one.state == "failed"
    assert list(compiles_text([one]))[-1] == f"  fix the cause, then continue: {one.command}"
    assert one.command.endswith(" --group 2/3")
