"""Tests reading and writing locks, and detecting manual edits."""

import errno
import os
import stat
from pathlib import Path

import pytest

from imagefactory.project.locks.files import WheelLock
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import wheel_entry

LOCK = WheelLock(
    made_from={"vllm.0.32.0": Sha256("cd" * 32)},
    version="0.32.0",
    arch="gb10",
    platform="linux/arm64",
    python="3.11",
    kernels="upstream",
    wheels=(wheel_entry("vllm-0.32.0-cp38-abi3-manylinux_2_31_aarch64.whl", bytes(1000)),),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write the lock, whatever the umask."""
    path = tmp_path / "locks" / "0.32.0" / "gb10-linux-arm64.toml"
    old = os.umask(0o077)
    try:
        assert LOCK.write(path)
    finally:
        os.umask(old)
    return path


def test_lock_is_read_as_written_whatever_its_comments_and_not_written_again(path: Path) -> None:
    before = path.stat()
    assert not LOCK.write(path)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    path.write_text(f"# reviewed\n{path.read_text()}")
    assert WheelLock.read(path).model_copy(update={"integrity": ""}) == LOCK
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_manual_edit_is_refused(path: Path) -> None:
    written = path.read_text()
    for old, new in ((LOCK.wheels[0].sha256, "ac" * 32), ("gb10", "b200")):
        path.write_text(written.replace(old, new))
        with raises("lock-edited") as failure:
            WheelLock.read(path)
        line = int(failure.value.where.rpartition(":")[2])
        assert path.read_text().splitlines()[line - 1].startswith("integrity")


def test_syntax_error_is_reported_with_its_line(path: Path) -> None:
    path.write_text(path.read_text().replace("arch = ", "arch "))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("arch "))
    with raises("bad-lock") as failure:
        WheelLock.read(path)
    assert failure.value.where == f"{path}:{line}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"format = 2\n",
        b"format = 1\nwheels = 3\n",
        b"format = 1\nurl = 'x'\n",
        b"a = " + b"[" * 5000,
    ],
    ids=["empty", "not text", "another format", "wrong type", "unknown key", "absurdly nested"],
)
def test_file_that_is_not_a_lock_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with raises("bad-lock") as failure:
        WheelLock.read(path)
    assert str(path) in failure.value.where


def test_missing_or_unreadable_lock_is_reported(path: Path) -> None:
    path.unlink()
    with raises("no-lock", match="./inv lock"):
        WheelLock.read(path)
    path.mkdir()
    with raises("bad-lock"):
        WheelLock.read(path)


def test_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with raises("disk-full"):
        write_text(path, "half of someth")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
