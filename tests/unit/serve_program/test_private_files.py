"""The health check and its note: everybody can ask, nobody else can redirect or fake them."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from images.serve.program import health, main, private_files, state

ADDRESS = health.Address("127.0.0.1", 1234)
OTHER = health.Address("127.0.0.1", 8000)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for /tmp; return the program's folder in it, which does not exist yet."""
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    return tmp_path / f"imagefactory-{os.getuid()}"


def test_only_its_owner_changes_a_note(place: Path) -> None:
    assert health.address({"PORT": "1234"}) == ADDRESS
    health.leave_note(ADDRESS)
    assert place.stat().st_mode & 0o777 == 0o711
    assert (place / health.NOTE).stat().st_mode & 0o777 == 0o644
    assert health.address({"PORT": "1"}) == ADDRESS
    health.leave_note(OTHER)
    assert health.address({}) == OTHER


def test_whoever_asks_in_a_container_hears_of_its_server_and_no_secret(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    health.leave_note(ADDRESS)
    state.starting("the model is being loaded")
    assert Path(private_files.write("key", "s3cret", secret=True)).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(private_files, "FIRST_PROCESS", str(place))  # its owner started the container
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert health.address({}) == ADDRESS
    assert main.main(["health"]) == 1
    assert capsys.readouterr().out == "the server is starting: the model is being loaded\n"
    private_files.forget(state.STARTING)
    assert private_files.exists(state.STARTING), "only its owner removes a note"
    place.chmod(0o777)
    assert health.address({}) == OTHER


def test_a_note_does_not_follow_a_link(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place.mkdir(mode=0o700)
    (place / health.NOTE).symlink_to(victim)
    assert health.address({}) == OTHER
    health.leave_note(ADDRESS)
    assert victim.read_text() == "precious"
    assert health.address({}) == ADDRESS


@pytest.mark.parametrize("flaw", ["is a link", "is open to others"])
def test_a_folder_of_somebody_else_is_not_used(place: Path, tmp_path: Path, flaw: str) -> None:
    folder = tmp_path / "victim" if flaw == "is a link" else place
    folder.mkdir(mode=0o700)
    if flaw == "is a link":
        place.symlink_to(folder)
    else:
        folder.chmod(0o777)
    (folder / health.NOTE).write_text('["192.0.2.1", 1, false]')
    health.leave_note(ADDRESS)
    assert (folder / health.NOTE).read_text() == '["192.0.2.1", 1, false]'
    assert health.address({}) == OTHER


@pytest.mark.parametrize("text", ["", "[1]", '["h", "x", 0]', "[" * 100_000])
def test_a_damaged_note_is_ignored(place: Path, text: str) -> None:
    place.mkdir(mode=0o700)
    (place / health.NOTE).write_text(text)
    assert health.address({}) == OTHER


@contextmanager
def answering(answer: bytes) -> Iterator[health.Address]:
    """Give one client an answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(65536).startswith(b"GET /health ")
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield health.Address("127.0.0.1", server.getsockname()[1])
        thread.join(timeout=10)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"HTTP/1.1 " + b"2" * 5000])
def test_an_answer_without_a_status_is_not_healthy(answer: bytes) -> None:
    with answering(answer) as address:
        assert not health.is_well(address)


def test_status_200_is_healthy() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\n") as address:
        assert health.is_well(address)
    assert not health.is_well(health.Address("127.0.0.1", 1), timeout=1)
