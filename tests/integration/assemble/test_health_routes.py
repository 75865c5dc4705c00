"""The guard before real applications: FastAPI and uvicorn as each server's lock has them, with routes like its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagefactory.plan.serve.image_paths import program_folder
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from images.serve.program import health, private_files, state
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_until
from tests.fixtures.locked_wheels import unpack_wheels
from tests.fixtures.serve_process import free_port

pytestmark = pytest.mark.network
PACKAGES = ("annotated-doc", "anyio", "click", "fastapi", "h11", "idna", "starlette", "typing-inspection", "uvicorn")
KEY = "s3cret-key"
VLLM = """
import os
from fastapi import APIRouter, FastAPI, Response
from starlette.routing import Mount, Route
from starlette.applications import Starlette
router = APIRouter()
@router.get("/health", response_class=Response)
async def health():
    return Response(status_code=503 if os.path.exists(os.environ["DEAD"]) else 200)
router.add_api_route("/ping", health, methods=["GET", "POST"])
@router.get("/v1/models")
async def models():
    return {"data": []}
app = FastAPI()
app.include_router(router)
app.routes.append(Mount("/metrics", Starlette(routes=[Route("/", lambda _: Response("figures 1"))])))
"""
SGLANG = """
import os
from fastapi import FastAPI, Response
from starlette.responses import JSONResponse
app = FastAPI()
@app.middleware("http")
async def authentication(request, call_next):
    key = os.environ.get("VLLM_API_KEY")
    if key and not request.url.path.startswith(("/health", "/metrics")):
        if request.headers.get("Authorization") != "Bearer " + key:
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
    return await call_next(request)
@app.get("/health")
@app.get("/health_generate")
async def health():
    return Response(status_code=503 if os.path.exists(os.environ["DEAD"]) else 200)
@app.api_route("/v1/models")
async def models():
    return {"data": []}
"""
SERVERS = {"vllm": ("0.32.0", VLLM), "sglang": ("sglang-0.5.23", SGLANG)}
RUN = "import uvicorn, application; uvicorn.run(application.app, host='127.0.0.1', port={port})"


@pytest.fixture(scope="module", params=SERVERS)
def packages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a server's lock, and an application with routes like that server's."""
    version, text = SERVERS[request.param]
    folder = tmp_path_factory.mktemp(str(request.param))
    unpack_wheels(Project(REPOSITORY), Cell("gemma4-31b", version, "gb10", "linux/arm64"), PACKAGES, folder)
    (folder / "application.py").write_text(text)
    return folder


@pytest.fixture(params=["", KEY])
def served(
    packages: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Run the application behind the guard; return its address and its key."""
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    port, key = free_port(), str(request.param)
    hook = program_folder(REPOSITORY) / "hook"
    variables = {
        "PYTHONPATH": f"{hook}{os.pathsep}{packages}",
        "IMAGEFACTORY_NOTES": str(tmp_path),
        "VLLM_API_KEY": key,
    }
    process = subprocess.Popen(
        [sys.executable, "-B", "-c", RUN.format(port=port)],
        env=variables | {"DEAD": str(tmp_path / "dead")},
        stderr=subprocess.PIPE,
        text=True,
    )
    address = health.Address("127.0.0.1", port)
    try:
        wait_until(lambda: process.poll() is not None or health.is_well(address), 60)
        assert process.poll() is None, process.communicate()[1]
        yield address.url, key
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_both_servers_say_how_they_are(served: tuple[str, str], tmp_path: Path) -> None:
    url, key = served

    def told() -> tuple[int, str, int]:
        answer, alive = requests.get(f"{url}/health", timeout=5), requests.get(f"{url}/alive", timeout=5)
        assert requests.head(f"{url}/alive", timeout=5).status_code == alive.status_code
        assert key not in answer.text + alive.text or not key
        return answer.status_code, answer.json()["error"]["type"] if answer.content else "", alive.status_code

    state.promise(60)
    assert told() == (200, "", 200)
    state.starting("sampling is being compiled")
    assert told() == (503, state.STARTING, 200)
    error = {"message": "the server is starting: sampling is being compiled", "type": "starting"}
    assert requests.get(f"{url}/health", timeout=5).json()["error"] == {**error, "param": None, "code": 503}
    assert health.is_well(health.address({"PORT": url.rpartition(":")[2]})), "the companion sees that it listens"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    assert requests.get(f"{url}/v1/models", headers=headers, timeout=5).json() == {"data": []}, "it is served"
    private_files.write(state.HANGING, "the engine is stuck")
    assert told() == (503, state.HANGING, 200)
    private_files.forget(state.STARTING, state.HANGING)
    assert told() == (200, "", 200)
    (tmp_path / "dead").touch()
    assert told() == (503, "", 200), "the server's own check failed"
    (tmp_path / "dead").unlink()
    state.promise(-1)
    assert told() == (503, "unwatched", 200)
    private_files.write(state.COMPANION, json.dumps([os.getpid(), "another", 1e9, 1]))
    assert told() == (503, "unwatched", 503)
    if key:
        answer = requests.get(f"{url}/v1/models", timeout=5)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_requests_are_refused_while_memory_is_short(served: tuple[str, str]) -> None:
    url, _ = served
    private_files.write(state.SHORT, "2.9 GB of memory are left")
    answer = requests.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=5)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json()["error"]["message"] == "2.9 GB of memory are left"
    assert requests.get(f"{url}/alive", timeout=5).json() == {"state": "short"}
