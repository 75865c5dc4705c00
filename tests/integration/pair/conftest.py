"""Two Sparks with the tiny image, for all tests of a run; each test leaves the cable as it was."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.check.smoke.containers import docker
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.tiny_image import TARGET
from tests.integration.pair.bed import CABLE, Bed, Spark, need_bed, two_sparks

NAME = "vllm-tiny"


@dataclass(frozen=True)
class Commands:
    """The commands of `./inv pair`, as a user types them on the first Spark."""

    bed: Bed
    checkout: Path

    @property
    def head(self) -> Spark:
        return self.bed.sparks[0]

    @property
    def worker(self) -> Spark:
        return self.bed.sparks[1]

    def words(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, str(self.checkout / "tasks.py"), "pair", *words)

    def run(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command, which has to end in time."""
        return self.head.run(*self.words(*words), env={"PYTHONPATH": str(REPOSITORY)}, timeout=timeout)

    def up(self, *more: str, host: str = "spark2", timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return self.run("up", TARGET, "--with", host, *more, timeout=timeout)

    def refused(self, name: str, *words: str, timeout: float = 60, **more: str) -> str:
        """Run `up`, which has to fail with an error of this name; return what it says."""
        done = self.up(*words, timeout=timeout, **more)
        assert f"error[{name}]" in done.stderr, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory, tiny_checkout: Path, tiny_image: str) -> Iterator[Commands]:
    need_bed()
    image = docker("image", "inspect", "--format", "{{.Id}}", tiny_image).stdout.strip()
    with two_sparks(tmp_path_factory.mktemp("pair") / "bed", image, image) as bed:
        yield Commands(bed, tiny_checkout)


@pytest.fixture
def pair(commands: Commands) -> Iterator[Commands]:
    """Both machines, without containers, and with the cable plugged in afterwards."""
    yield commands
    for spark in commands.bed.sparks:
        spark.run("docker", "rm", "--force", NAME)
        spark.run("iptables", "--flush")
        spark.run("ip", "link", "set", CABLE, "up", "mtu", "9000")
        spark.run("ip", "address", "flush", "dev", CABLE)
        spark.run("ip", "address", "add", f"{spark.address}/24", "dev", CABLE)
    if "sshd" not in commands.worker.daemons:
        commands.worker.start_sshd(commands.bed.keys)
