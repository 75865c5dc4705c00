"""The site on the loopback."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

import requests

from imagefactory.site.writing import site_server
from tests.fixtures.failures import raises


def test_files_are_served_on_the_loopback_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("hello")
    with site_server(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = requests.get(f"http://127.0.0.1:{server.server_port}/", timeout=20)
        missing = requests.get(f"http://127.0.0.1:{server.server_port}/no", timeout=20)
        server.shutdown()
    assert server.server_address[0] == "127.0.0.1"
    assert (answer.status_code, answer.text) == (HTTPStatus.OK, "hello")
    assert missing.status_code == HTTPStatus.NOT_FOUND


def test_port_that_is_taken_or_impossible_is_refused(tmp_path: Path) -> None:
    with site_server(tmp_path) as server, raises("bad-option", match="--port"):
        site_server(tmp_path, server.server_port).__enter__()
    with raises("bad-option"):
        site_server(tmp_path, 70_000).__enter__()
