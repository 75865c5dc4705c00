"""How much disk it takes to assemble and push an image from nothing: GitHub promises a job 14 GB.

    python tests/bench/disk.py --target gemma4-31b --folder /a/large/disk

The cache is empty and everything that is written below the folder counts, several times a second. What is pushed goes
to a registry that keeps no blobs: its disk is not the job's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select_one
from imagefactory.plan.make import make_plan
from imagefactory.publish.automation.disk_space import refuse_full, space_needed

ROOT = Path(__file__).resolve().parents[2]
GOAL = 10.0
"""GB."""
BLOCK = 1 << 20
SPARED = 2_000_000_000
"""Bytes that are left to others."""


class Sink(BaseHTTPRequestHandler):
    """A registry that checks what it is sent, and forgets all of it but manifests."""

    protocol_version = "HTTP/1.1"
    blobs: dict[str, int]
    manifests: dict[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        self._answer_manifest(with_body=True)

    def do_HEAD(self) -> None:
        found = re.search(r"/blobs/(sha256:[0-9a-f]{64})$", self.path)
        if found and found[1] in self.blobs:
            self._send(200, {"Content-Length": str(self.blobs[found[1]])})
        elif found:
            self._send(404)
        else:
            self._answer_manifest(with_body=False)

    def do_POST(self) -> None:
        self._read()
        self._send(202, {"Location": f"{urlsplit(self.path).path}upload"})

    def do_PUT(self) -> None:
        digest, size, kept = self._read(keep="/manifests/" in self.path)
        if "/manifests/" in self.path:
            name = self.path.rpartition("/")[2]
            self.manifests[name] = self.manifests[digest] = (self.headers["Content-Type"], kept)
        else:
            [wanted] = parse_qs(urlsplit(self.path).query)["digest"]
            if wanted != digest:
                self._send(400)
                return
            self.blobs[digest] = size
        self._send(201, {"Docker-Content-Digest": digest})

    def _answer_manifest(self, *, with_body: bool) -> None:
        name = self.path.rpartition("/")[2]
        if "/manifests/" not in self.path or name not in self.manifests:
            self._send(200 if self.path == "/v2/" else 404)
            return
        kind, body = self.manifests[name]
        digest = f"sha256:{sha256(body).hexdigest()}"
        self._send(200, {"Content-Type": kind, "Docker-Content-Digest": digest}, body if with_body else b"")

    def _read(self, *, keep: bool = False) -> tuple[str, int, bytes]:
        left, hashed, kept = int(self.headers.get("Content-Length") or 0), sha256(), b""
        size = left
        while left > 0:
            block = self.rfile.read(min(left, BLOCK))
            if not block:
                break
            left -= len(block)
            hashed.update(block)
            kept += block if keep else b""
        return f"sha256:{hashed.hexdigest()}", size, kept

    def _send(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def sink() -> Iterator[tuple[str, type[Sink]]]:
    handler = type("Handler", (Sink,), {"blobs": {}, "manifests": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()


def used(folder: Path) -> int:
    """Count the bytes that files take on the disk; what has several names counts once."""
    found: dict[int, int] = {}
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(path, name))  # noqa: PTH118 - many times a second
            except FileNotFoundError:
                continue
            found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def measure(target: str, folder: Path) -> dict[str, float | str]:
    project = Project(ROOT)
    cell = select_one(project.matrix, target)
    expected = space_needed([make_plan(project, cell)])
    free = refuse_full(folder, expected)
    with TemporaryDirectory(prefix="disk-", dir=folder) as scratch, sink() as (address, registry):
        work = Path(scratch)
        (work / "tmp").mkdir()
        environment = {
            **os.environ,
            "FACTORY_CACHE": str(work / "cache"),
            "FACTORY_REGISTRY": f"{address}/bench/disk",
            "TMPDIR": str(work / "tmp"),
        }
        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "ci.push", "--target"]
        began = time.monotonic()
        peak = 0
        with subprocess.Popen([*command, f"{cell}/{cell.machine}"], env=environment, cwd=ROOT) as process:
            while process.poll() is None:
                peak = max(peak, used(work))
                if shutil.disk_usage(work).free < SPARED:
                    process.terminate()
                    sys.exit("the disk is nearly full; others need it, too")
                time.sleep(0.3)
        if process.returncode:
            sys.exit(process.returncode)
        return {
            "target": str(cell),
            "seconds": round(time.monotonic() - began, 1),
            "peak_gb": round(max(peak, used(work)) / 1e9, 2),
            "left_gb": round(used(work) / 1e9, 2),
            "pushed_gb": round(sum(registry.blobs.values()) / 1e9, 2),
            "reckoned_gb": round(expected, 2),
            "free_before_gb": round(free, 1),
            "goal_gb": GOAL,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default=next(iter(Project(ROOT).matrix.models)))
    parser.add_argument("--folder", type=Path, default=Path.cwd())
    options = parser.parse_args()
    found = measure(options.target, options.folder)
    print(json.dumps(found, indent=1))
    sys.exit(float(found["peak_gb"]) >= GOAL)


if __name__ == "__main__":
    main()
