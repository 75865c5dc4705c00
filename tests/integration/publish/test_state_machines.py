"""Publish, roll back, prune and attach in any order, with mishaps at any request.

tests/fixtures/rehearsal.py says what must hold. FACTORY_TEST_EXAMPLES=400 makes 400 sequences at random instead of the
few that are the same in every run.
"""

import os
from collections.abc import Sequence
from itertools import count
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.fixtures.mishaps import (
    IMAGES,
    MISHAPS,
    RUNS,
    Attach,
    Crash,
    Mishap,
    Prune,
    Publish,
    Replay,
    Rival,
    RollBack,
    Run,
)
from tests.fixtures.rehearsal import Publishing, World

EXAMPLES = int(os.environ.get("FACTORY_TEST_EXAMPLES", "0"))
THREE = (Publish(0), Publish(1), Publish(2))


class Machine(RuleBasedStateMachine):
    """Commands and mishaps as they come."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.publishing = Publishing(self.world)

    @initialize(images=st.integers(0, IMAGES))
    def begin(self, images: int) -> None:
        for run in THREE[:images]:
            self.publishing.step(run)

    @rule(run=RUNS, mishap=MISHAPS)
    def step(self, run: Run, mishap: Mishap) -> None:
        self.publishing.step(run, mishap)


def test_publishing_survives_crashes_lost_answers_and_rivals(world: World) -> None:
    machine = type("ThisMachine", (Machine,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 20,
            stateful_step_count=25,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            print_blob=False,
            phases=[Phase.generate],  # a failure comes with its steps; making them fewer takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert world.counts["steps"] >= 100
    expected = ("crash", "rival", "race", "replay", "crashed", "done", "refused")
    assert EXAMPLES or min(world.counts[kind] for kind in expected) > 0


def prepared(world: World, *runs: Run) -> Publishing:
    publishing = Publishing(world)
    for run in runs:
        publishing.step(run)
    return publishing


EACH = [
    ((), Publish(0)),
    (THREE[:2], Publish(2)),
    (THREE[:2], RollBack()),
    ((*THREE, RollBack()), Publish(2, again=True)),
    (THREE, Prune(1)),
    (THREE[:1], Attach(0)),
]


RIVALS = [
    (Attach(0), Attach(0)),
    (RollBack(0), RollBack(1)),
    (RollBack(0), Prune(1)),
    (Prune(1), RollBack(0)),
    (Publish(0), Publish(1)),
    (Prune(1), Publish(0, again=True)),
    (Publish(0, again=True), Prune(1)),
    (Publish(0), RollBack(1)),
]


@pytest.mark.parametrize(("before", "run"), EACH)
def test_a_crash_after_any_write_is_made_good(world: World, before: Sequence[Run], run: Run) -> None:
    start = prepared(world, *before)
    for number in count(1):
        if start.copy().step(run, Crash(number, resume=True)) == ["done"]:
            break
    assert world.counts["crashed"] == number - 1 > 1


@pytest.mark.parametrize(("before", "run"), [EACH[1], EACH[2], EACH[4]])
def test_an_answer_lost_after_any_write_does_no_harm(world: World, before: Sequence[Run], run: Run) -> None:
    start = prepared(world, *before)
    for number in count(1):
        assert start.copy().step(run, Replay(number)) == ["done"]
        if world.writes < number:  # all answers came
            break
    assert number > 3


@pytest.mark.parametrize(("run", "rival"), RIVALS)
def test_a_rival_after_any_answer_does_no_harm(world: World, run: Run, rival: Run) -> None:
    start = prepared(world, *THREE)
    start.copy().step(run)
    for number in range(1, world.answers + 1):
        start.copy().step(run, Rival(number, rival))
    assert world.counts["rival"] > 5
