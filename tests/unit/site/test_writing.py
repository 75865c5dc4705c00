"""A site is written whole or not at all, only where nothing else is, and served on the loopback."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

import requests

from imagefactory.site.rendering import site_server, write_site
from tests.fixtures.failures import raises

FILES = {"index.html": b"1", "index.json": b"{}", "feed.xml": b"", "models/a.html": b"a"}


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_site_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "site"
    folder.mkdir(parents=True)  # an empty one is taken
    write_site(FILES | {"models/old.html": b"old"}, folder)
    write_site(FILES, folder)
    assert contents(folder) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["site"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_folder_with_something_else_is_left_alone(places: Path) -> None:
    with raises("output-unusable", match="holiday"):
        write_site(FILES, places / "full")
    with raises("output-unusable"):
        write_site(FILES, places / "file")
    assert contents(places / "full") == {"holiday.jpg": b""}


def test_failure_half_way_leaves_the_old_site(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_site(FILES, folder)
    with raises("output-unusable"):
        write_site({"index.html": b"2", "index.html/x": b""}, folder)
    assert contents(folder) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


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
