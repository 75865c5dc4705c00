"""The guard of a server with a key."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from images.serve.program import private_files, state
from tests.fixtures.serve_process import SERVES, Start, finished, free_port
from tests.fixtures.serving import REPOSITORY

HOOK = REPOSITORY / "images" / "serve" / "hook"
KEY = "s3cret-key"
STARLETTE = """
class Starlette:
    async def __call__(self, scope, receive, send):
        await send({"reached": scope["path"]})
class Inner(Starlette): pass
class FastAPI(Starlette):
    async def __call__(self, scope, receive, send):
        scope["root_path"] = "/proxy"
        await super().__call__(scope, receive, send)
        await Inner()({**scope, "root_path": "/proxy/metrics"}, receive, send)
"""


def ask(folder: Path, *requests: dict[str, Any], **variables: str) -> list[Any]:
    """Send requests to an application in a process with the hook; return in short what came of each."""
    return [
        _checked(answer[0]) if isinstance(answer, list) else answer for answer in _ask(folder, *requests, **variables)
    ]


def _ask(folder: Path, *requests: dict[str, Any], **variables: str) -> list[Any]:
    package = folder / "starlette"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "applications.py").write_text(STARLETTE)
    program = (
        "import asyncio, json, sys\n"
        "from starlette.applications import FastAPI\n"
        "def ask(request):\n"
        "    said = []\n"
        "    async def send(message): said.append(message)\n"
        "    headers = [(name.encode(), value.encode()) for name, value in request.pop('headers', [])]\n"
        "    scope = {'type': 'http', 'method': 'GET', 'headers': headers, **request}\n"
        "    asyncio.run(FastAPI()(scope, None, send))\n"
        "    body = [json.loads(message['body']) for message in said if 'body' in message]\n"
        "    return body or said[0].get('code') or said[-1]['reached']\n"
        "print(json.dumps([ask(request) for request in json.loads(sys.argv[1])]))\n"
    )
    paths = os.pathsep.join([str(HOOK), str(folder)])
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, json.dumps(requests)],
        env={"PYTHONPATH": paths, "VLLM_API_KEY": KEY, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(done.stdout)
    return answers


def _checked(body: dict[str, Any]) -> Any:
    """Return the state in an answer of the guard, or a status with its reason, if clients of both APIs can print it."""
    if "state" in body:
        return body["state"]
    error = body["error"]
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"] if error["code"] == 401 else (error["code"], error["type"], error["message"])


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_a_request_with_the_key_reaches_the_server(tmp_path: Path, kind: str) -> None:
    keys = {
        f"Bearer {KEY}": True, f"bearer {KEY}": True, "Bearer": False, KEY: False, f"Basic {KEY}": False,
        f"Bearer {KEY}x": False, f"Bearer  {KEY}": False, "Bearer é": False, "": False,
    }  # fmt: skip
    requests = [{"type": kind, "path": "/invocations", "headers": [("authorization", key)]} for key in keys]
    two = [("authorization", "Bearer wrong"), ("authorization", f"Bearer {KEY}")]
    requests += [{"type": kind, "path": "/x", "headers": headers} for headers in ([], two)]
    anthropic, wrong = ("x-api-key", KEY), ("x-api-key", f"{KEY}x")
    mixed = [[anthropic], [wrong], [wrong, anthropic], [("authorization", "Bearer wrong"), anthropic]]
    requests += [{"type": kind, "path": "/x", "headers": headers} for headers in mixed]
    refusal = 401 if kind == "http" else 1008
    expected = ["/invocations" if good else refusal for good in keys.values()] + [refusal, refusal]
    expected += ["/x", refusal, refusal, refusal]
    assert ask(tmp_path, *requests) == expected
    assert set(ask(tmp_path, *requests, VLLM_API_KEY="")) == {"/invocations", "/x"}


def test_a_refusal_says_what_to_send_also_to_a_websocket_where_the_server_lets_it(tmp_path: Path) -> None:
    sent = [[], [("authorization", "Bearer wrong")], [("x-api-key", "wrong")]]
    for kind in ({}, {"type": "websocket", "extensions": {"websocket.http.response": {}}}):
        answers = _ask(tmp_path, *({"path": "/x", "headers": headers, **kind} for headers in sent))
        errors = [body["error"] for body, *_ in answers]
        assert {(error["type"], error["code"]) for error in errors} == {("authentication_error", 401)}
        assert [error["message"].partition(":")[0] for error in errors] == [
            "no API key was sent", *["the API key is not this server's"] * 2,
        ]  # fmt: skip
        assert all("`Authorization: Bearer KEY` or `x-api-key: KEY`" in error["message"] for error in errors)


def test_four_paths_and_a_preflight_of_a_browser_need_no_key(tmp_path: Path) -> None:
    paths = {
        "/health": True, "/ping": True, "/metrics": True, "/metrics/": True, "/proxy/health": True, "/alive": True,
        "/health/": False, "/healthz": False, "/health_generate": False, "/metrics/x": False, "//health": False,
        "/proxyhealth": False, "/proxy": False, "/proxy/proxy/health": False, "/v1/../health": False, "": False,
        "/alive/": False,
    }  # fmt: skip
    requests = [{"path": path} for path in paths]
    assert ask(tmp_path, *requests) == [path if free else 401 for path, free in paths.items()]
    assert ask(tmp_path, {"path": "/health", "type": "websocket"}) == [1008]
    metrics = {"path": "/metrics"}, {"path": "/proxy/metrics/"}
    for value, free in (("0", True), ("off", True), ("1", False), ("nonsense", False)):
        answers = ask(tmp_path, *metrics, PROTECT_METRICS=value)
        assert answers == (["/metrics", "/proxy/metrics/"] if free else [401, 401])
    asked = [("origin", "http://chat"), ("access-control-request-method", "POST")]
    request = {"path": "/v1/models", "method": "OPTIONS"}
    assert ask(tmp_path, request | {"headers": asked}, request, {"path": "/x", "headers": asked}) == [
        "/v1/models", 401, 401,
    ]  # fmt: skip


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], object]:
    """Leave a note as the companion does."""
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    return private_files.write


Note = Callable[[str, str], object]


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize(("name", "asked"), [(state.SHORT, 503), (state.HANGING, "/v1/completions")])
def test_without_memory_or_stuck_all_but_questions_about_the_server_are_refused(
    tmp_path: Path, key: str, note: Note, name: str, asked: object
) -> None:
    headers = [("authorization", f"Bearer {key}")]
    requests = [{"path": path, "headers": headers} for path in ("/v1/completions", "/metrics")]
    own = {"path": "/v1/completions", "headers": [*headers, ("x-imagefactory", "1")]}
    socket = {"path": "/v1/realtime", "type": "websocket", "headers": headers}
    variables = {"IMAGEFACTORY_NOTES": str(tmp_path), "VLLM_API_KEY": key}
    assert ask(tmp_path, *requests, socket, **variables) == ["/v1/completions", "/metrics", "/v1/realtime"]
    note(name, "That is how it is.")
    refusal = (503, name, "That is how it is.")
    companion = refusal if asked == 503 else asked
    assert ask(tmp_path, *requests, socket, own, **variables) == [refusal, "/metrics", 1013, companion]
    if key:
        assert ask(tmp_path, {"path": "/v1/completions"}, **variables) == [401]


@pytest.mark.parametrize("key", ["", KEY])
def test_health_and_alive_are_told_without_a_key(tmp_path: Path, key: str, note: Note) -> None:
    own = {"path": "/health", "headers": [("x-imagefactory", "1")]}
    requests = [{"path": path} for path in ("/health", "/ping", "/proxy/health", "/alive", "/proxy/alive")]

    def told() -> list[Any]:
        answers = ask(tmp_path, *requests, own, IMAGEFACTORY_NOTES=str(tmp_path), VLLM_API_KEY=key)
        assert answers.pop() == "/health", "the companion asks for the server's own check"
        assert answers[0] == answers[2] or answers[0] == "/health"
        assert answers.pop() == answers[-1]
        return [answers[0], answers[1], answers[-1]]

    assert told() == ["/health", "/ping", "ready"], "the server's own check decides"
    for name, reason in (
        (state.STARTING, "sampling is being compiled"),
        (state.SHORT, "2.9 GB of memory are left"),
        (state.HANGING, "the engine is stuck"),
    ):
        note(name, reason)
        assert told() == [(503, name, reason), (503, name, reason), name]
    state.promise(-1)
    health, _, alive = told()
    assert (health[0], health[1], alive) == (503, "unwatched", "unwatched")
    note(state.COMPANION, json.dumps([os.getpid(), "another", 1e9, 1]))
    health, _, alive = told()
    assert health == alive
    assert health[2].startswith("the program beside the server has ended")


def test_a_server_that_cannot_be_guarded_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_bytes((HOOK / "sitecustomize.py").read_bytes())
    environment = {"PYTHONPATH": str(tmp_path), "VLLM_API_KEY": KEY}
    command = [sys.executable, "-B", "-c", "print('served')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (68, "")
    assert KEY not in done.stderr


def test_a_server_that_answers_without_its_key_is_stopped(start: Start) -> None:
    ran = finished(start(then=SERVES % 200, PORT=str(free_port()), VLLM_API_KEY=KEY))
    assert ran.returncode == 128 + signal.SIGTERM
    assert "the server answers without its key: it is stopped" in ran.stderr


LATE = """
from http.server import BaseHTTPRequestHandler, HTTPServer
left = [2]
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health" and left[0]:
            left[0] -= 1
            return  # no answer at all
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def test_an_answer_that_is_late_does_not_spare_a_server_the_question_for_its_key(start: Start) -> None:
    ran = finished(start(then=LATE, PORT=str(free_port()), VLLM_API_KEY=KEY))
    assert ran.returncode == 128 + signal.SIGTERM
    assert "the server answers without its key: it is stopped" in ran.stderr
    assert "ready" not in ran.stderr
