"""Serves the tiny model on a CPU: by the image itself if its server can, else by one of the same vLLM and mods.

Of a version without an image for CPUs, the image itself serves it on its GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.check.smoke.assignment import Assignment
from imagefactory.check.smoke.containers import Containers, RunningServer
from imagefactory.launch.docker_run import STOP_SECONDS
from imagefactory.plan.serve.description import GENERATED_MODELS
from imagefactory.plan.serve.image_paths import ENTRYPOINT
from imagefactory.project.servers.server import Server
from imagefactory.serve_program import Server as ProgramServer

Applies = Callable[[bool, str], None]
Measure = Callable[[str, object], None]
START_LIMIT = 600  # seconds
MODEL = "tiny"
QUESTION: dict[str, object] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 8,
    "temperature": 0,
}
OPEN = {"/alive", "/health", "/ping", "/metrics"}
# Paths that resemble open ones, or that a router could shorten to one.
EXTRA_PATHS = (
    "/",
    "/alive/",
    "/docs",
    "/redoc",
    "/health/",
    "/health/x",
    "/healthz",
    "//health",
    "/metrics/x",
    "/v1/../health",
    "/x",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WebSocket")
HERE = Path(__file__).parent
INSIDE = HERE / "inside"
CHAT = "/v1/chat/completions"
TINY = f"{GENERATED_MODELS}/tiny"
PLACE = "/tmp/on-cpu"  # noqa: S108 - in a container of our own
BROUGHT = ("on_cpu/serve.sh", "on_cpu/cpu_shim.py", "inside/with_driver_stub.sh")


@pytest.fixture(scope="module")
def server(
    assignment: Assignment, containers: Containers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    assert assignment.serving is not None
    serving, folder = assignment.serving, tmp_path_factory.mktemp("key")
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    if serving.on_gpu:
        options = ("--gpus", "all", *with_tiny_model(folder, serving.variables))
    elif serving.variables:
        options, arguments = on_cpu(folder, serving.variables)
    if serving.mods:
        mods = ",".join(serving.mods)
        options += ("--volume", f"{assignment.root / 'mods'}:/mods:ro", "--env", f"MODS={mods}")
    with containers.serve(serving.image, folder, *arguments, options=options) as server:
        yield server


def on_cpu(folder: Path, variables: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return options and arguments with which an image for GPUs serves on a CPU; the model is written to `folder`."""
    mounts = (word for path in BROUGHT for word in ("--volume", f"{HERE / path}:{PLACE}/{Path(path).name}:ro"))
    return (*with_tiny_model(folder, variables), *mounts, "--entrypoint", "/bin/sh"), (f"{PLACE}/serve.sh",)


def with_tiny_model(folder: Path, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return options with which an image for GPUs serves the tiny model, which is written to `folder`."""
    model = folder / "tiny"
    model.mkdir(parents=True)
    for name, data in tiny_model().items():
        (model / name).write_bytes(data)
    settings = {**variables, "MODEL_PATH": TINY, "NODES": "1"}
    environment = (word for name, value in settings.items() for word in ("--env", f"{name}={value}"))
    return ("--volume", f"{model}:{TINY}:ro", *environment)


def test_it_becomes_healthy(ready: tuple[RunningServer, float], record_property: Measure) -> None:
    """The server does not start."""
    server, seconds = ready
    record_property("start_seconds", round(seconds, 1))
    health = server.container.execute(*ENTRYPOINT, "health")
    explanation = f"Docker's own check says: {health.stdout}{health.stderr}"
    assert (health.returncode, health.stdout.strip()) == (0, "healthy"), explanation


def test_mods_were_applied_at_start(served: RunningServer, assignment: Assignment, applies: Applies) -> None:
    """The image's mods cannot be applied, or the server does not start with them."""
    assert assignment.serving is not None
    applies(bool(assignment.serving.mods), "the image that serves has the same mods built in")
    log = served.container.log
    missing = [name for name in assignment.serving.mods if f"mods: {name}: applied" not in log]
    assert not missing, f"not applied: {', '.join(missing)}"


def test_it_lists_its_model(served: RunningServer) -> None:
    """Chat programs, most of which list the models first, find none."""
    answer = served.get("/v1/models")
    assert answer.status_code == 200, answer.text
    assert [model["id"] for model in answer.json()["data"]] == [MODEL]


def test_it_answers_a_chat(served: RunningServer, record_property: Measure) -> None:
    """The API responds, but not with the output of a model."""
    answer = served.post(CHAT, QUESTION)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["model"] == MODEL
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert 0 < body["usage"]["completion_tokens"] <= 8
    record_property("answer_seconds", round(answer.elapsed.total_seconds(), 2))


def test_answers_are_repeatable(served: RunningServer) -> None:
    """Answers at temperature 0 vary: a computation is wrong."""
    answers = {served.post(CHAT, QUESTION).json()["choices"][0]["message"]["content"] for _ in range(2)}
    assert len(answers) == 1


def test_it_streams(served: RunningServer) -> None:
    """Chat programs, which all stream, show the answer only at the end, or not at all."""
    answer = served.post(CHAT, {**QUESTION, "stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    # Server-sent events, of which OpenAI's API makes the last one [DONE].
    events = [line.removeprefix(b"data: ") for line in answer.iter_lines() if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]", f"the stream ends with {events[-1:]!r}"
    chunks = [json.loads(event) for event in events[:-1]]
    assert len(chunks) > 1, "everything came in one piece"
    whole = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert whole == served.post(CHAT, QUESTION).json()["choices"][0]["message"]["content"]


def test_an_answer_keeps_to_a_schema(served: RunningServer) -> None:
    """Programs that ask for JSON of a certain shape get an error, or text that they cannot read."""
    # Random weights would fill an object with white space.
    schema = {"name": "decision", "schema": {"type": "string", "enum": ["yes", "no"]}}
    answer_format = {"response_format": {"type": "json_schema", "json_schema": schema}}
    answer = served.post(CHAT, {**QUESTION, **answer_format})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] in ('"yes"', '"no"'), answer.text


@pytest.mark.parametrize("key", ["wrong", ""])
def test_a_wrong_key_is_refused(served: RunningServer, key: str) -> None:
    """Anyone in the network can use the server although it has an API key."""
    assert served.post(CHAT, QUESTION, key=key).status_code == 401


def test_every_path_but_four_needs_the_key(
    served: RunningServer, program: ProgramServer, record_property: Measure
) -> None:
    """Anyone in the network can use the server by a path that its API key does not guard, or read its state."""
    routes = served.container.execute("python3", "-c", (INSIDE / "routes.py").read_text("utf-8"), program.name)
    described = served.get("/openapi.json").json()["paths"]
    paths = {*json.loads(routes.stdout), *described, *EXTRA_PATHS}
    assert len(described) > 10
    record_property("paths", len(paths))
    answers = {}
    for path, method, key in product(sorted(paths - OPEN), METHODS, (None, "wrong")):
        # What a path takes in braces is any word.
        sent, socket = re.sub(r"\{[^{}]*\}", "x", path), method == "WebSocket"
        answers[path, method, key] = served.status("GET" if socket else method, sent, key, websocket=socket)
    # Some ASGI servers can only refuse a WebSocket with 403.
    wrong = [f"{method} {path}: {status}" for (path, method, _), status in answers.items() if status not in (401, 403)]
    assert not wrong, f"answered without a key, or with a wrong one: {', '.join(wrong)}"
    # SGLang itself asks for the key at /ping.
    closed = [path for path in OPEN - {"/ping"} if served.status("GET", path) != 200]
    assert not closed, f"needs a key, or does not exist: {', '.join(closed)}"
    assert served.status("GET", "/v1/models", served.key) == 200


def test_the_key_is_not_logged(served: RunningServer) -> None:
    """Anyone who can read logs can use the server."""
    assert served.key not in served.container.log


def test_an_unknown_model_is_refused(served: RunningServer, about: Server, applies: Applies) -> None:
    """A client with a typo in the model's name gets answers from another model, or an unclear error."""
    applies(about.checks_model_names, f"{about.title} answers whatever model a request names")
    answer = served.post(CHAT, {**QUESTION, "model": "another"})
    assert answer.status_code == 404, answer.text
    assert "another" in answer.text


def test_a_prompt_that_is_too_long_is_refused(served: RunningServer) -> None:
    """A long prompt crashes the server for everyone, or is silently cut off."""
    long = {**QUESTION, "messages": [{"role": "user", "content": "word " * 2000}]}
    answer = served.post(CHAT, long)
    assert answer.status_code == 400, answer.text
    assert served.get("/health").status_code == 200


def test_the_image_warms_up(served: RunningServer) -> None:
    """The first user has to wait while the server compiles, tunes and allocates."""
    # It says that it is ready only afterwards.
    assert "warm-up 1 of 1: short" in served.container.log.partition("[serve] ready: ")[0], served.last_words()


def test_it_stops_when_asked(stop_seconds: float) -> None:
    """`docker stop` has to kill the server: requests are lost, and GPU memory may remain allocated."""
    assert stop_seconds < STOP_SECONDS, "it had to be killed"
