"""Serves the real model, downloaded if necessary, or the one that settings name, on a GPU of the arch."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from imagefactory.check.smoke.assignment import Assignment
from imagefactory.check.smoke.containers import Containers, RunningServer
from imagefactory.check.weights import weights_of
from imagefactory.launch.docker_run import HUB_CACHE, STACK
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.image_paths import MODEL_CACHE
from imagefactory.project.servers.server import Server
from imagefactory.serve_program import LOW_ACCEPTANCE
from imagefactory.serve_program import Server as ProgramServer

Applies = Callable[[bool, str], None]
Measure = Callable[[str, object], None]
START_LIMIT = float(os.environ.get("FACTORY_SMOKE_START_LIMIT", "7200"))
"""Seconds for a first start, which downloads up to 100 GB."""
CHAT = "/v1/chat/completions"
BACKENDS = re.compile(r"\[serve\] attention by (?P<model>\w+)(?:, draft attention by (?P<draft>\w+))?")
SLOW_KERNELS = re.compile(r"\[serve\] WARNING: (\w+) runs through Marlin")
PATIENCE = 120  # seconds until the log has the kernels


@pytest.fixture(scope="module")
def server(
    assignment: Assignment, containers: Containers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    models = Path(os.environ.get("HF_HOME") or HUB_CACHE).expanduser()
    options = (
        *("--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", f"stack={STACK}"),
        *("--volume", f"{models}:{MODEL_CACHE}"),
        *(word for name, value in assignment.settings.items() for word in ("--env", f"{name}={value}")),
    )
    with containers.serve(assignment.image, tmp_path_factory.mktemp("key"), options=options) as server:
        yield server


@pytest.fixture(scope="module")
def model(ready: tuple[RunningServer, float]) -> str:
    return str(ready[0].get("/v1/models").json()["data"][0]["id"])


@pytest.fixture(scope="module")
def settings(plan: Plan, assignment: Assignment) -> Mapping[str, str]:
    """The settings of the server: the image's, and those that were given."""
    return plan.config.env | assignment.settings


def ask(served: RunningServer, model: str, text: str, tokens: int, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens}
    answer = served.post(CHAT, body | more)
    assert answer.status_code == 200, answer.text
    document: dict[str, object] = answer.json()
    return document


def test_the_model_serves(
    ready: tuple[RunningServer, float], model: str, settings: Mapping[str, str], record_property: Measure
) -> None:
    """The model does not load on this GPU, or its answers are garbage."""
    server, seconds = ready
    record_property("start_seconds", round(seconds, 1))
    answer = ask(server, model, "What is the capital of France? Answer in one word.", 512)
    # Of generated weights no answer is wrong.
    sensible = weights_of(settings) or "paris" in str(answer["choices"]).lower()
    assert sensible, f"it says {str(answer['choices'])[:400]}"


def test_the_intended_backends_are_used(
    served: RunningServer, settings: Mapping[str, str], about: Server, applies: Applies
) -> None:
    """The server uses other kernels than those that were measured: slower, or with other memory needs."""
    applies(about.logs_backends, f"{about.title} does not log its attention kernels")
    deadline = time.monotonic() + PATIENCE
    while (match := BACKENDS.search(served.container.log)) is None and time.monotonic() < deadline:
        time.sleep(1)
    assert match is not None, "the log does not say which attention kernels the server chose"
    intended = {"model": settings.get("ATTENTION_BACKEND"), "draft": settings.get("DRAFT_ATTENTION_BACKEND")}
    if settings.get("DFLASH_DRAFTER") == "off":
        del intended["draft"]
    wrong = [
        f"{part} attention by {match[part]}, intended: {backend}"
        for part, backend in intended.items()
        if backend not in (None, "", "auto") and (match[part] or "").lower() != backend
    ]
    assert not wrong, "; ".join(wrong)
    slow = SLOW_KERNELS.search(served.container.log)
    assert slow is None, f"{slow[1]} runs through Marlin, which only unpacks the weights" if slow else ""


def test_tokens_per_second_are_measured(
    served: RunningServer, model: str, settings: Mapping[str, str], record_property: Measure
) -> None:
    """The model is too slow to be useful."""
    started = time.monotonic()
    # Generated weights may end a text at any word.
    more = {"ignore_eos": True} if weights_of(settings) else {}
    answer = ask(served, model, "Write the numbers from 1 to 200 as a list, one per line.", 512, **more)
    seconds = time.monotonic() - started
    usage = answer["usage"]
    assert isinstance(usage, dict)
    record_property("tokens_per_second", round(usage["completion_tokens"] / seconds, 1))
    assert usage["completion_tokens"] > 100, "it stopped early"


def test_drafts_are_accepted(
    served: RunningServer,
    model: str,
    settings: Mapping[str, str],
    program: ProgramServer,
    *,
    applies: Applies,
    record_property: Measure,
) -> None:
    """Nearly all drafts are rejected: the drafter costs time and memory for nothing."""
    applies(settings.get("DFLASH_DRAFTER", "off") not in ("", "off"), "the server has no drafter")
    applies(not weights_of(settings), "generated weights accept drafts by chance")
    before = program.drafted(served.get("/metrics").content)
    ask(served, model, "Write a Python function that sorts a list with quicksort, and explain it.", 512)
    new = program.drafted(served.get("/metrics").content).since(before)
    assert new.tokens > 0, "nothing was drafted"
    record_property("draft_acceptance", round(new.accepted / new.tokens, 3))
    share = f"{new.accepted:.0f} of {new.tokens:.0f} drafted tokens were accepted"
    assert new.accepted / new.tokens >= LOW_ACCEPTANCE, share


@pytest.mark.usefixtures("stop_seconds")
def test_it_stops_when_asked() -> None:
    """`docker stop` has to kill the server: GPU memory, on a DGX Spark the host's, may remain allocated."""
