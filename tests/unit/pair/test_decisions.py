"""What `pair up` does follows from what it saw of both machines, and from nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.errors import EngineError
from imagefactory.launch.prepare import prepare
from imagefactory.pair.cable import find_cable
from imagefactory.pair.containers import START, State
from imagefactory.pair.images import Image
from imagefactory.pair.machines import There
from imagefactory.pair.up import Pair, Step, View, decide, pair_of
from imagefactory.pair.weights import Models
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.sparks import cabled, spark

IMAGE = Image("sha256:1", 1, "")
THERE = There("spark2", Path())
FOLDER = "models--some--tiny/snapshots/c0ffee"
MODELS = Models((("some/tiny", "c0ffee"),), "")
FILES = {FOLDER: {"config.json": 2, "model.safetensors": 7}}
AFTER = [Step.PROVE_CABLE, Step.START_SERVERS]

Seen = Callable[..., Pair]


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    """Return a pair as it is planned for what was seen; without changes, image and weights are on both machines."""
    nodes = tuple(spark(tmp_path, f"spark{number}", cabled(number), snapshots=FILES) for number in (1, 2))
    project = Project(REPOSITORY)
    start = prepare(project, select_one(project.matrix, "tiny"), "sha256:" + "1" * 64, given={}, environment={})

    def make(theirs: dict[str, Any] | None = None, **changes: Any) -> Pair:
        view = View((nodes[0], nodes[1].model_copy(update=theirs)), (None, None), (IMAGE, IMAGE), MODELS)
        view = replace(view, **changes)
        return pair_of(start, THERE, find_cable(*view.nodes), view)

    return make


def state(start: str = "", other: str = "spark2", status: str = "running") -> State:
    return State(status, 0, 0, image="sha256:1", other=other, start=start, address="")


def test_only_what_is_missing_is_done(seen: Seen) -> None:
    assert decide(seen()) == AFTER
    assert decide(seen(images=(IMAGE, None))) == [Step.SEND_IMAGE, *AFTER]
    assert decide(seen({"snapshots": {}})) == [Step.COPY_WEIGHTS, *AFTER]
    assert decide(seen({"snapshots": {FOLDER: FILES[FOLDER] | {"model.safetensors": 6}}})) == [
        Step.COPY_WEIGHTS,
        *AFTER,
    ]
    assert decide(seen({"snapshots": {FOLDER: FILES[FOLDER] | {"pytorch_model.bin": 6}}})) == AFTER
    absent = replace(MODELS, snapshots=(), lacking="some/tiny")
    assert decide(seen(models=absent)) == [Step.DOWNLOAD_WEIGHTS, Step.COPY_WEIGHTS, *AFTER]


def test_the_bytes_to_copy_are_known_before(seen: Seen) -> None:
    assert seen().view.weights_to_copy is None
    assert seen({"snapshots": {FOLDER: {"config.json": 2}}}).view.weights_to_copy == 7


def test_a_pair_that_runs_as_wanted_is_left_alone(seen: Seen) -> None:
    wanted = seen()
    running = tuple(state(launch.labels[START]) for launch in (wanted.head, wanted.worker))
    assert decide(seen(containers=running, images=(IMAGE, None))) == []
    assert decide(seen(containers=(running[0], state("another start")))) == [Step.REMOVE_CONTAINERS, *AFTER]
    assert decide(seen(containers=(running[0], None))) == [Step.REMOVE_CONTAINERS, *AFTER]


def test_the_container_of_a_single_server_is_not_removed_while_it_runs(seen: Seen) -> None:
    with pytest.raises(EngineError, match="outside of a pair") as caught:
        decide(seen(containers=(None, state(other=""))))
    assert caught.value.where == "spark2"
    assert decide(seen(containers=(None, state(other="", status="exited")))) == [Step.REMOVE_CONTAINERS, *AFTER]


def test_models_are_in_the_home_of_each_machine(seen: Seen) -> None:
    pair = seen({"home": "/home/other"})
    assert (pair.head.models, pair.worker.models) == ("~/.cache/huggingface", "/home/other/.cache/huggingface")
