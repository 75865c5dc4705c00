"""The committed sets of the factory's own environment, installed from the real index for every host."""

import subprocess
from itertools import product
from pathlib import Path

import pytest
from uv import find_uv_bin

from imagefactory.environment.setup import PYTHONS, LockedSet
from imagefactory.store.index_config import environment_for_uv, options_for_uv
from tests.fixtures.checkouts import REPOSITORY

pytestmark = pytest.mark.network
GLIBC = 31  # of Debian 11 and Ubuntu 20.04, the oldest that are supported


@pytest.mark.parametrize(
    ("machine", "python"),
    [
        pytest.param(machine, python, marks=() if number == 0 else pytest.mark.slow)
        for number, (machine, python) in enumerate(product(["aarch64", "x86_64"], PYTHONS))
    ],
)
def test_committed_set_installs_from_wheels_alone(python: str, machine: str, tmp_path: Path) -> None:
    locked = LockedSet.of(REPOSITORY, "test")  # which includes the others
    done = subprocess.run(
        [
            find_uv_bin(), "pip", "install", "--dry-run", "--target", str(tmp_path / "target"),
            "--python-version", python, "--python-platform", f"{machine}-manylinux_2_{GLIBC}",
            "--require-hashes", "--only-binary", ":all:", "--no-deps", "-r", str(locked.path),
            "--index-strategy", "unsafe-best-match", *options_for_uv(),
        ],
        capture_output=True, text=True, env=environment_for_uv(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Would install" in done.stderr
