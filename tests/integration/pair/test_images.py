"""An image reaches the second Spark whole, or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.pair.images import find, send
from imagefactory.pair.machines import HERE, reach
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_until
from tests.integration.pair.conftest import Commands

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
SIZE = 300_000_000
NAME = "sent:test"
DOCKERFILE = "FROM scratch\nCOPY content /\nENV A=1\n"
PATHS = {"PYTHONPATH": str(REPOSITORY)}


def main(image: str) -> None:
    """Send an image from the first Spark, on which this runs."""
    found = find(HERE, image)
    assert found
    with reach("spark2") as there:
        arrived = send(
            found,
            there,
            NAME,
            lambda line: print(line, flush=True),  # noqa: T201 - for the test
        )
    assert arrived.id == found.id


@pytest.fixture
def image(pair: Commands, tmp_path: Path) -> str:
    """An image that only the first Spark has."""
    with (tmp_path / "content").open("wb") as file, Path("/dev/urandom").open("rb") as random:
        file.write(random.read(SIZE))
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return pair.head.check("docker", "build", "--quiet", "--network", "none", str(tmp_path)).strip()


def test_an_interrupted_transfer_leaves_nothing_and_the_next_is_whole(pair: Commands, image: str) -> None:
    images = ("docker", "image", "ls", "--quiet", "--no-trunc", "--all")
    before = pair.worker.check(*images)
    words = pair.head.inside(sys.executable, str(Path(__file__)), image, env=PATHS)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # Not before the image is on its way, and not after it has arrived, however busy the machine is.
        wait_until(lambda: pair.worker.run("pgrep", "-f", "docker load").stdout, 60)
        pair.worker.stop_daemon("sshd")
        for connection in pair.worker.run("pgrep", "-f", "sshd: root").stdout.split():
            pair.worker.run("kill", connection)
        _, complaint = process.communicate(timeout=60)
    assert "NetworkError" in complaint
    pair.worker.start_sshd(pair.bed.keys)
    assert pair.worker.check(*images) == before
    done = pair.head.run(sys.executable, str(Path(__file__)), image, env=PATHS, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("image: 300")
    assert pair.worker.check(*images, "--filter", f"reference={NAME}").strip() == image


if __name__ == "__main__":
    main(sys.argv[1])
