"""A build killed at any moment leaves nothing that the next one could mistake for something finished."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pytest

from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import read_blob_record
from imagefactory.plan.make import make_plan
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.fixtures.fuse import Fuse
from tests.fixtures.small_factory import CELL, SmallFactory


def assert_whole(factory: SmallFactory, digest: str) -> None:
    """Check that the layout, the store and the records hold only finished files."""
    store, layout = Store(factory.cache), Layout(factory.project.build_folder(CELL))
    assert layout.manifest_digest() == digest
    blobs = (store.root.glob("blobs/sha256/[!.]*"), layout.folder.glob("blobs/sha256/[!.]*"))
    downloads = (path for path in store.root.glob("downloads/??/*") if not path.suffix)
    for path in chain(*blobs, downloads):
        assert sha256_of(path.read_bytes()) == path.name
    assert all(read_blob_record(layer.key, store) for layer in make_plan(factory.project, CELL).layers)
    # A worker whose build was killed may take a moment to go (it waits for the disk); then its folder goes, too.
    deadline = time.monotonic() + 10
    while list((store.root / "scratch").glob("[!.]*")) and time.monotonic() < deadline:
        time.sleep(0.1)
        store.sweep()
    assert list((store.root / "scratch").glob("[!.]*")) == []


@dataclass(frozen=True)
class Loss:
    """What a cache loses before a build: its layers, sometimes downloads or the image, too."""

    parts: tuple[str, ...]
    image: bool

    def inflict(self, factory: SmallFactory) -> None:
        for part in self.parts:
            shutil.rmtree(factory.cache / part, ignore_errors=True)
        if self.image:
            shutil.rmtree(factory.root / "build", ignore_errors=True)
        factory.project.known_layers.unlink(missing_ok=True)


LOSSES = [
    Loss(parts, image)
    for parts in (("blobs",), ("blobs", "layers"), ("blobs", "layers", "downloads"))
    for image in (True, False)
]


@dataclass
class Killer:
    """Kills builds, each when it changes its files for the n-th time."""

    factory: SmallFactory
    build: Callable[[Fuse], int]
    """Builds with a fuse, and returns the exit status."""
    choice: random.Random
    changes: dict[Loss, int] = field(default_factory=dict)

    def kill(self, number: int) -> None:
        """Lose something, and kill the build that makes up for it."""
        loss = LOSSES[number % len(LOSSES)]
        if loss not in self.changes:
            assert self._run(loss, 0) == 0
            self.changes[loss] = self.count.stat().st_size
        # Threads that meet at the same file change it once or twice: a build may end before its turn comes.
        while (status := self._run(loss, at := self.choice.randint(1, self.changes[loss]))) == 0:
            made = self.count.stat().st_size
            assert made < at, "the kill must hit a build at work"
            self.changes[loss] = made
        assert status == -signal.SIGKILL

    @property
    def count(self) -> Path:
        return self.factory.folder.parent / "changes"

    def _run(self, loss: Loss, at: int) -> int:
        loss.inflict(self.factory)
        self.count.unlink(missing_ok=True)
        # Sometimes all at once, as when the power fails; sometimes only the one that the user sees.
        everything = self.choice.random() < 0.5
        return self.build(Fuse(self.factory.folder, self.count, at, everything))


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_killed_build_is_completed_by_the_next(tmp_path: Path, kills: int) -> None:
    factory = SmallFactory(tmp_path / "factory", big=1)
    seed = random.randrange(10**6)
    command = factory.command("build", "--target", "tiny")

    def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environment, start_new_session=True, capture_output=True, text=True, check=False
        )

    def build(fuse: Fuse) -> int:
        return run(command, fuse.environment(factory.environment())).returncode

    digest = run(command, factory.environment()).stdout.strip()
    killer = Killer(factory, build, random.Random(seed))
    for number in range(kills):
        killer.kill(number)
        again = run(command, factory.environment())
        assert again.returncode == 0, f"seed {seed}: {again.stderr}"
        assert again.stdout.strip() == digest
        assert_whole(factory, digest)
    verified = run(factory.command("verify", "--target", "tiny"), factory.environment())
    assert verified.stdout.strip() == digest, verified.stderr
