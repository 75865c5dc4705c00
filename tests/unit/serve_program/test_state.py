"""The state of a server, from the notes of its companion."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from images.serve.program import link, main, private_files, state
from images.serve.program.errors import StartError
from tests.fixtures.engines import wait_until


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))


def test_the_worst_that_is_known_about_a_server_is_its_state() -> None:
    assert state.find() == (state.READY, "", True)
    state.starting("it is being warmed up")
    assert state.find() == (state.STARTING, "the server is starting: it is being warmed up", True)
    for name in (state.SHORT, state.HANGING):
        private_files.write(name, f"it is {name}")
        assert state.find() == (name, f"it is {name}", True)
    state.promise(60)
    assert state.find().name == state.HANGING
    state.promise(-5)
    assert state.find().name == "unwatched"
    private_files.write(f"{state.ENDING}.{os.getppid()}", "69")
    assert state.find() == (state.ENDING, "the server is being ended", False)


def test_who_breaks_the_promise_to_watch_is_named() -> None:
    state.promise(60)
    assert state.find().name == state.READY
    state.promise(-5)
    silent = state.find()
    assert "silent for 5 s longer than it may be" in silent.reason
    assert silent.alive, "it may have been held up"
    state.promise(-state.FORSAKEN)
    assert not state.find().alive
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    until = time.monotonic() + 60
    private_files.write(state.COMPANION, json.dumps([process.pid, state._born(process.pid), until, 1]))
    assert state.find().name == state.READY
    process.kill()
    wait_until(lambda: "has ended" in state.find().reason, 20)  # also while nobody has waited for it
    process.communicate()
    assert not state.find().alive
    private_files.write(state.COMPANION, json.dumps([os.getpid(), "1", until, 1]))  # another process has its number
    assert "has ended" in state.find().reason


@pytest.mark.parametrize("text", ["", "[1]", "null", '["x", "y", "z", 1]'])
def test_a_damaged_promise_is_none(text: str) -> None:
    private_files.write(state.COMPANION, text)
    assert state.find().name == state.READY


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return what `docker exec CONTAINER health` would say now."""

    def ask() -> str:
        assert main.main(["health"]) == 1
        return capsys.readouterr().out.strip()

    return ask


def test_a_start_says_so_before_its_checks_and_forgets_what_an_earlier_one_said(
    told: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link.note("the other node, 10.77.0.2, has ended or cannot be reached", well=False)
    private_files.write(state.HANGING, "the engine is stuck")
    seen: list[str] = []

    def prepare(_: list[str], *, patient: bool) -> None:
        assert patient, "a start may wait for other nodes"
        seen.append(told())
        raise StartError("gpu", "There is no GPU.", remedy="Add one.")

    monkeypatch.setattr(main, "_prepare", prepare)
    main.main([])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    main.main([])
    checking = "the server is starting: machine and settings are being checked"
    assert seen == ["the engine is stuck", checking], "only process 1 speaks for the container"


def test_a_head_that_waits_says_for_whom(told: Callable[[], str]) -> None:
    state.starting("it waits for the other node")
    assert told() == "the server is starting: it waits for the other node"
    link.note("starting: node 0 waits for the other to connect", well=False)
    assert told() == "starting: node 0 waits for the other to connect"
