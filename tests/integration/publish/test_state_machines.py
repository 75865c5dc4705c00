"""Publish, roll back, prune and attach in any order on a real registry, with mishaps at any request.

tests/fixtures/invariants.py says what must hold. One of each kind runs always, the others with --all;
FACTORY_TEST_EXAMPLES=400 makes 400 sequences at random instead of the few that are the same in every run.
"""

import os
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.fixtures.invariants import Attach, Prune, Publish, RollBack, Run, World
from tests.fixtures.rehearsal import IMAGES, MISHAPS, RUNS, Crash, Mishap, Publishing, Replay, Rival

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

    def teardown(self) -> None:
        self.publishing.close()
        with self.world.registry.repository(self.publishing.name) as repository:
            tags = self.publishing.files.tags()
            assert {tag: repository.resolve(tag) for tag in tags} == tags


@pytest.mark.slow
def test_publishing_survives_crashes_faults_and_rivals(world: World) -> None:
    machine = type("ThisMachine", (Machine,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 10,
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
    expected = ("crash", "rival", "race", "replay", "faults", "crashed", "done", "refused")
    assert EXAMPLES or min(world.counts[kind] for kind in expected) > 0
    assert EXAMPLES or world.proxy.account.faults.total() > 0


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


def one_always(cases: Sequence[tuple[Any, Any]], always: int) -> list[Any]:
    """Run one case in every run, and all with --all."""
    return [
        pytest.param(*case, marks=() if number == always else pytest.mark.slow) for number, case in enumerate(cases)
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
"""The shorter ones first: a rival after each answer takes a while."""


@pytest.mark.parametrize(("before", "run"), one_always(EACH, 2))
def test_a_crash_after_any_write_is_made_good(world: World, before: Sequence[Run], run: Run) -> None:
    start = prepared(world, *before)
    for number in count(1):
        publishing = start.copy()
        ends = publishing.step(run, Crash(number, resume=True))
        publishing.close()
        if ends == ["done"]:
            break
    assert world.counts["crashed"] == number - 1 > 3


@pytest.mark.parametrize(("before", "run"), one_always([EACH[1], EACH[2], EACH[4]], 1))
def test_an_answer_lost_after_any_write_does_no_harm(world: World, before: Sequence[Run], run: Run) -> None:
    start = prepared(world, *before)
    for number in count(1):
        publishing = start.copy()
        assert publishing.step(run, Replay(number)) == ["done"]
        publishing.close()
        if world.proxy.account.faults.total() < number:
            break
    assert number > 3


@pytest.mark.parametrize(("run", "rival"), one_always(RIVALS if EXAMPLES else RIVALS[:5], 0))
def test_a_rival_after_any_answer_does_no_harm(world: World, run: Run, rival: Run) -> None:
    start = prepared(world, *THREE)
    start.copy().step(run)
    for number in range(1, world.answers + 1):
        publishing = start.copy()
        publishing.step(run, Rival(number, rival))
        publishing.close()
    assert world.counts["rival"] > 10
