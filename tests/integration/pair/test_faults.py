"""What stands in the way of a pair is named within a minute, before a server starts: two machines with a real cable."""

import sys
from pathlib import Path

import pytest

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.model_hub import COMMIT
from tests.fixtures.tiny_image import TARGET
from tests.integration.pair.bed import CABLE
from tests.integration.pair.conftest import Commands

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
WEIGHTS = bytes(range(256)) * 4096
PATHS = {"PYTHONPATH": str(REPOSITORY)}
BRING = """
import os, sys
from pathlib import Path
from imagefactory.errors import FactoryError
from imagefactory.launch import prepare
from imagefactory.pair import machines, up
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one

project = Project(Path(sys.argv[1]))
cell = select_one(project.matrix, sys.argv[2])
with machines.reach("spark2") as there:
    image = up.pulled(prepare.image_to_run(project, cell, print), print)
    given = {"MODEL": "some/tiny"}
    start = prepare.prepare(project, cell, image, given=given, environment=os.environ)
    try:
        pair = up.plan(cell, there, start, up.need_of(project, cell, ""), lambda text: None)
    except FactoryError as error:
        sys.exit(error.what)
    steps = [step for step in up.decide(pair) if step is up.Step.COPY_WEIGHTS]
    up.do(steps, cell, pair, print)
    print("copied" if steps else "nothing to do")
"""


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("nowhere.invalid", "nowhere.invalid is not known"),
        ("stranger", "stranger has a host key that this machine does not know"),
        ("nokey", "nokey refuses this user's ssh keys"),
        ("10.77.0.99", "10.77.0.99 does not answer"),
    ],
)
def test_who_cannot_be_reached_is_said_with_a_remedy(pair: Commands, host: str, what: str) -> None:
    assert what in pair.refused("no-ssh", host=host)


def test_ssh_that_is_off_is_named(pair: Commands) -> None:
    pair.worker.stop_daemon("sshd")
    assert "no ssh server listens" in pair.refused("no-ssh")


def test_a_machine_without_docker_is_named(pair: Commands) -> None:
    pair.worker.stop_daemon("dockerd")
    try:
        assert "Docker does not answer on spark2" in pair.refused("docker-missing")
    finally:
        pair.worker.start_dockerd()


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [(("down",), "no-ssh", "spark2 does not answer"), (("mtu", "1500"), "node-refuses", "MTU of the cable")],
)
def test_a_cable_that_is_out_or_whose_ends_differ_is_named(
    pair: Commands, change: tuple[str, ...], name: str, words: str
) -> None:
    pair.worker.check("ip", "link", "set", CABLE, *change)
    assert words in pair.refused(name, timeout=120)


def test_a_firewall_between_is_found_by_the_proof(pair: Commands) -> None:
    """ssh passes, and nothing else."""
    rules = ("-A", "INPUT", "-i", CABLE, "-p", "tcp", "--syn", "--dport", "29000:60999", "-j", "DROP")
    pair.head.check("iptables", *rules)
    said = pair.refused("node-refuses", timeout=120)
    assert CABLE in said or "10.77.0.1" in said
    assert "firewall" in said


def cached(home: Path) -> None:
    """Write the tiny model to a cache like huggingface_hub's, which has no list of files."""
    repository = home / ".cache/huggingface/hub/models--some--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    contents = {Path(name).name: content for name, content in tiny_model().items()} | {"model.safetensors": WEIGHTS}
    for name, content in contents.items():
        blob = repository / "blobs" / sha256_of(content)
        blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)  # relative, as huggingface_hub links


def bring(pair: Commands) -> str:
    """Do the step of `up` that copies weights; return what it says."""
    done = pair.head.run(sys.executable, "-c", BRING, str(pair.checkout), TARGET, env=PATHS, timeout=120)
    return done.stdout + done.stderr


def test_weights_are_copied_once_completed_and_verified(pair: Commands) -> None:
    cached(pair.head.home)
    place = pair.worker.home / ".cache/huggingface"
    place.mkdir(parents=True, exist_ok=True)
    pair.worker.check("mount", "-t", "tmpfs", "-o", "size=64k", "full", str(place))
    assert "free in ~/.cache/huggingface, and the weights to copy need" in bring(pair)
    pair.worker.check("umount", str(place))
    assert bring(pair).endswith("copied\n")
    assert bring(pair) == "nothing to do\n"
    blob = place / "hub/models--some--tiny/blobs" / sha256_of(WEIGHTS)
    with blob.open("r+b") as file:
        file.truncate(1000)
    assert bring(pair).endswith("copied\n")
    assert blob.read_bytes() == WEIGHTS
    ours = pair.head.home / blob.relative_to(pair.worker.home)
    ours.write_bytes(WEIGHTS[::-1])  # damaged on the first machine
    blob.unlink()
    assert "model.safetensors on spark2 does not have its hash" in bring(pair)
    assert not blob.exists()
