"""When a server is called ready: what it calls is compiled, and it has answered a sampled request."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from images.serve.program import health, readiness
from tests.fixtures.engines import wait_until
from tests.fixtures.serve_process import Start, free_port, stand_in
from tests.fixtures.servers import Answer, scripted

SERVES = """
from http.server import BaseHTTPRequestHandler, HTTPServer
failures = [int(os.environ.get("FAILURES", "0"))]
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        failures[0] -= "top_p" in body
        self.send_response(500 if failures[0] >= 0 and "top_p" in body else 200)
        self.end_headers()
        print("asked", body.get("top_p"), file=sys.stderr, flush=True)
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
COMPILES = """#!{python}
import pathlib, sys, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
if {succeeds}:
    module = pathlib.Path({volume!r}, ".cache/flashinfer/0.7.0/121a/cached_ops/sampling/sampling.so")
    module.parent.mkdir(parents=True)
    module.touch()
    time.sleep(600)
"""


class Server:
    """A stand-in server beside the real companion, whose compiler ends when it is told to."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.start, self.folder, self.port = start, folder, free_port()
        self.go, self.log = folder / "go", folder / "log"
        self.process: subprocess.Popen[str] | None = None

    def run(self, *, compiles: bool = True, **variables: str) -> None:
        described = self.folder / "share" / "settings.json"
        document = json.loads(described.read_text())
        # The second is for another model than this one: nobody waits for it.
        document["image"]["flashinfer"] = {"modules": {"sampling": "flashinfer.a:one", "moe": "flashinfer.b:two"}}
        described.write_text(json.dumps(document))
        volume = str(self.folder / "volume")
        text = COMPILES.format(python=sys.executable, go=str(self.go), succeeds=compiles, volume=volume)
        stand_in(self.folder / "python", text)
        site = self.folder / "venv" / "lib" / "python3.13" / "site-packages"
        (site / "flashinfer_python-0.7.0.dist-info").mkdir(parents=True)
        own = {"PORT": str(self.port), "FLASHINFER_WORKSPACE_BASE": volume, "COMPILERS": "1"}
        self.process = self.start(then=SERVES, **own | variables)
        assert self.process.stderr is not None
        with self.log.open("wb") as log:  # a pipe that nobody reads would stop the server
            self.pump = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=log)

    def says(self, text: str) -> list[str]:
        wait_until(lambda: text in self.log.read_text(), 120)
        return self.log.read_text().splitlines()

    def asked(self) -> int:
        return self.log.read_text().count("asked 0.9")

    def close(self) -> None:
        if self.process:
            with self.process, self.pump:  # closes the pipes
                self.process.terminate()


@pytest.fixture
def server(start: Start, tmp_path: Path) -> Iterator[Server]:
    server = Server(start, tmp_path)
    yield server
    server.close()


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_server_is_ready_once_what_sampling_calls_is_compiled(server: Server, rounds: int) -> None:
    server.run(WARMUP=str(rounds))
    server.says("the server listens; it is ready once sampling is compiled")
    assert requests.get(f"http://127.0.0.1:{server.port}/health", timeout=5).ok, "the server's own check succeeds"
    assert not server.asked()
    server.go.touch()
    log = server.says("kernels of FlashInfer: sampling compiled; moe absent")
    assert "[serve] ready: " in "\n".join(log)
    assert server.asked() == 8 * rounds


def test_without_a_warm_up_what_could_not_be_compiled_is_called_before_the_server_is_ready(server: Server) -> None:
    server.go.touch()
    server.run(compiles=False, FAILURES="1")
    log = server.says("kernels of FlashInfer: sampling, moe absent")
    before = "\n".join(log).partition("[serve] ready: ")[0]
    assert before.count("asked 0.9") == 2, "a failure is no answer"
    assert server.asked() == 2


def test_a_failed_warm_up_is_followed_by_requests_until_one_is_answered(server: Server) -> None:
    server.go.touch()
    server.run(FAILURES="9", WARMUP="1")
    log = server.says("[serve] ready: ")
    assert any("8 at once got status 500" in line for line in log)
    assert server.asked() == 10


@pytest.mark.parametrize("status", [200, 404, 501, 500, 503])
def test_a_refusal_is_an_answer_and_a_failure_is_none(status: int) -> None:
    with scripted(lambda _: Answer(status=status)) as other:
        host, _, port = other.address.partition(":")
        assert readiness.answers(health.Address(host, int(port)), "tiny", "") is (status not in {500, 503})
    assert not readiness.answers(health.Address(host, int(port)), "tiny", "")
