"""Killed at any moment, a build leaves nothing that the next one could mistake for something finished."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from imagefactory.engines import embedded
from imagefactory.layers.records import read_blob_record
from imagefactory.oci.layout import Layout
from imagefactory.plan import make_plan
from imagefactory.store import Store
from imagefactory.verify import verify
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.small_factory import CELL, Silence, SmallFactory

IN_PROCESS, WHOLE_PROGRAM = 40, 12
"""Kills of a build that works in threads (quick), and of `invoke build` with its worker processes."""


def assert_whole(factory: SmallFactory, digest: str) -> None:
    """Check that the layout, the store and the records hold finished things only."""
    store, layout = Store(factory.cache), Layout(factory.project.build_folder(CELL))
    assert layout.manifest_digest() == digest
    for folder in (store.root / "blobs/sha256", layout.folder / "blobs/sha256"):
        for blob in folder.glob("[!.]*"):
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    for download in (store.root / "downloads").glob("??/*"):
        if not download.suffix:
            assert hashlib.sha256(download.read_bytes()).hexdigest() == download.name
    assert all(read_blob_record(layer.key, store) for layer in make_plan(factory.project, CELL).layers)
    # A worker whose build was killed may take a moment to go (it waits for the disk); then its folder goes, too.
    deadline = time.monotonic() + 10
    while list((store.root / "scratch").glob("[!.]*")) and time.monotonic() < deadline:
        time.sleep(0.1)
        store.sweep()
    assert list((store.root / "scratch").glob("[!.]*")) == []


def forget(factory: SmallFactory, choice: random.Random) -> None:
    """Start the next round from an emptier cache: without layers, sometimes without downloads or the image."""
    for part in choice.choice([("blobs",), ("blobs", "layers"), ("blobs", "layers", "downloads")]):
        shutil.rmtree(factory.cache / part, ignore_errors=True)
    if choice.random() < 0.5:
        shutil.rmtree(factory.root / "build", ignore_errors=True)
    factory.project.known_layers.unlink(missing_ok=True)


def kill_threads(factory: SmallFactory, rounds: int, seed: int) -> int:
    """Kill a build that runs in a child of this process; say how often it was still at work."""
    choice = random.Random(seed)
    [built] = factory.build()
    forget(factory, choice)
    started = time.monotonic()
    factory.build()
    took = time.monotonic() - started
    at_work = 0
    for _ in range(rounds):
        forget(factory, choice)
        child = os.fork()
        if child == 0:
            factory.build()
            os._exit(0)
        time.sleep(choice.uniform(0, took))
        os.kill(child, signal.SIGKILL)
        at_work += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        [again] = factory.build()
        assert again.image.digest == built.image.digest
        assert_whole(factory, built.image.digest)
        assert verify(factory.project, CELL, Silence(), print) == built.image.digest
    return at_work


def test_a_killed_build_is_completed_by_the_next(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    environment = {**os.environ, **SmallFactory(tmp_path).environment()}
    command = [
        sys.executable,
        "-m",
        "tests.integration.test_killed",
        str(tmp_path),
        str(IN_PROCESS),
        str(seed),
    ]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert result.returncode == 0, f"seed {seed}: {result.stderr}"
    assert json.loads(result.stdout.splitlines()[-1]) > IN_PROCESS / 2, "most kills must hit a build at work"


def test_a_killed_program_is_completed_by_the_next(tmp_path: Path) -> None:
    factory = SmallFactory(tmp_path, big=1)
    seed = random.randrange(10**6)
    choice = random.Random(seed)
    command = factory.command("build", "--target", "tiny")
    options = {
        "env": factory.environment(),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started = time.monotonic()
    digest = subprocess.run(command, check=True, **options).stdout.strip()  # type: ignore[call-overload]
    took = time.monotonic() - started
    at_work = 0
    for number in range(WHOLE_PROGRAM):
        forget(factory, choice)
        with subprocess.Popen(command, start_new_session=True, **options) as process:  # type: ignore[call-overload]
            time.sleep(choice.uniform(0.3 * took, took))
            # Sometimes all at once, as when the power fails; sometimes only the one that the user sees.
            if number % 2:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            at_work += process.wait() != 0
        again = subprocess.run(command, check=False, **options)  # type: ignore[call-overload]
        assert again.returncode == 0, f"seed {seed}: {again.stderr}"
        assert again.stdout.strip() == digest
        assert_whole(factory, digest)
    assert at_work > WHOLE_PROGRAM / 2, "most kills must hit a build at work"
    verified = subprocess.run(factory.command("verify", "--target", "tiny"), check=False, **options)  # type: ignore[call-overload]
    assert verified.stdout.strip() == digest, verified.stderr


if __name__ == "__main__":
    embedded.SMALL_WORK = sys.maxsize
    sys.stdout.write(f"{kill_threads(SmallFactory(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))}\n")
