"""What the first Spark makes of containers that start, refuse, or start again and again."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagefactory.errors import CheckError, EngineError, FactoryError, MachineError
from imagefactory.pair import up
from imagefactory.pair.containers import Container, State
from imagefactory.pair.machines import HERE, Machine, There
from imagefactory.pair.weights import refusal

THERE = There("spark2", Path())
REFUSED = """[serve] joined with 10.77.0.1
error[disk]: 1.0 GB are free in /root/.cache; the download needs 9.0 GB.
  setting: HF_HOME=/root
  remedy:  Free space there.
"""


def state(status: str = "running", code: int = 0, restarts: int = 0) -> State:
    return State(status, code, restarts, image="sha256:1", other="spark2", start="", address="10.77.0.1")


def again(restarts: int) -> State:
    return state(code=71, restarts=restarts)


@dataclass(frozen=True)
class Fake(Container):
    """A container that goes through states, and stays in the last."""

    states: list[State | None] = field(default_factory=list)
    text: str = ""

    def state(self) -> State | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def health(self) -> tuple[bool, str]:
        return len(self.states) == 1, "healthy" if len(self.states) == 1 else "starting"

    def log(self, lines: int) -> str:
        return "\n".join(self.text.splitlines()[-lines:])


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "EVERY", 0)


def fake(*states: State | None, text: str = "", machine: Machine = HERE) -> Fake:
    return Fake(machine, "vllm-tiny", list(states), text)


def test_each_sentence_is_said_once_until_both_are_healthy() -> None:
    said: list[str] = []
    up.wait((fake(*[state()] * 5, text="[serve] checks"), fake(state(), machine=THERE)), 60, said.append)
    assert [line.rpartition(" (")[0] for line in said] == [
        "this machine: starting",
        "spark2: healthy",
        "this machine: healthy",
    ]


def test_a_container_that_has_said_nothing_has_just_started() -> None:
    said: list[str] = []
    up.wait((fake(*[state()] * 5), fake(state(), machine=THERE)), 60, said.append)
    assert said[0].rpartition(" (")[0] == "this machine: its container has just started"


def test_a_long_start_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "SAY_EVERY", 0)
    said: list[str] = []
    up.wait((fake(*[state()] * 5, text="[serve] checks"), fake(state(), machine=THERE)), 60, said.append)
    assert [line.rpartition(" (")[0] for line in said] == [
        *("this machine: starting", "spark2: healthy", "this machine: starting", "this machine: healthy"),
    ]


@pytest.mark.parametrize(
    ("states", "text", "kind", "words"),
    [
        ([state(), state("restarting", 67)], REFUSED, MachineError, "the download needs 9.0 GB"),
        ([state(), *map(again, (1, 3, 3))], "ValueError: x", CheckError, "restarted 3 times"),
        ([state(), None], "", CheckError, "its container is gone"),
    ],
)
def test_a_server_that_does_not_start_ends_the_wait(
    states: list[State | None], text: str, kind: type[FactoryError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        up.wait((fake(state()), fake(*states, text=text, machine=THERE)), 60, lambda _: None)
    assert words in caught.value.what


def test_the_wait_has_an_end() -> None:
    with pytest.raises(CheckError, match="not healthy after 0 s"):
        up.wait((fake(*[state()] * 99), fake(state(), machine=THERE)), 0, lambda _: None)


def test_a_refusal_is_quoted_with_its_remedy() -> None:
    error = refusal(HERE, "download", REFUSED)
    assert isinstance(error, MachineError)
    assert (error.what, error.fix) == (REFUSED.splitlines()[1].partition(": ")[2], "Free space there.")
    with pytest.raises(EngineError, match="failed on this machine"):
        refusal(HERE, "download", "docker: unknown flag")
