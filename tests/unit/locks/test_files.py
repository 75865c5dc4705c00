"""Locks as files: what is written is read back, and what a hand did to them is seen."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from imagefactory.errors.locks import LockEditedError, LockFormatError, LockMissingError
from imagefactory.errors.store import DiskFullError
from imagefactory.locks.files import LockedRevision, LockedWheel, ModelLock, WheelLock
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256


def a_lock(**changes: object) -> WheelLock:
    wheel = LockedWheel(
        name="vllm",
        version="0.32.0",
        file="vllm-0.32.0-cp38-abi3-manylinux_2_31_aarch64.whl",
        sha256=Sha256("ab" * 32),
        size=1000,
        unpacked=3000,
        needed_by=("matrix.yaml",),
    )
    lock = WheelLock(
        made_from={"vllm.0.32.0": Sha256("cd" * 32)},
        vllm="0.32.0",
        arch="gb10",
        platform="linux/arm64",
        python="3.11",
        kernels="upstream",
        wheels=(wheel,),
    )
    return lock.model_copy(update=changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "0.32.0" / "gb10-linux-arm64.toml"


def test_what_is_written_is_read_back(path: Path) -> None:
    assert a_lock().write(path)
    read = WheelLock.read(path)
    assert read.model_copy(update={"integrity": ""}) == a_lock()


def test_writing_the_same_lock_again_touches_nothing(path: Path) -> None:
    a_lock().write(path)
    before = path.stat()
    assert not a_lock().write(path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino


def test_a_lock_is_readable_by_everyone_whatever_the_umask(path: Path) -> None:
    old = os.umask(0o077)
    try:
        a_lock().write(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("old", "new"), [("ab" * 32, "ac" * 32), ("size = 1000", "size = 1001"), ("gb10", "b200")]
)
def test_an_edit_by_hand_is_seen(path: Path, old: str, new: str) -> None:
    a_lock().write(path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(LockEditedError) as failure:
        WheelLock.read(path)
    line = int(failure.value.where.rpartition(":")[2])
    assert path.read_text().splitlines()[line - 1].startswith("integrity")


def test_a_comment_is_no_edit(path: Path) -> None:
    a_lock().write(path)
    path.write_text(f"# reviewed\n{path.read_text()}")
    assert WheelLock.read(path).vllm == "0.32.0"


def test_a_syntax_error_is_reported_with_its_line(path: Path) -> None:
    a_lock().write(path)
    path.write_text(path.read_text().replace("arch = ", "arch "))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("arch "))
    with pytest.raises(LockFormatError) as failure:
        WheelLock.read(path)
    assert failure.value.where == f"{path}:{line}"


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"format = 2\n", b"format = 1\nwheels = 3\n", b"a = " + b"[" * 5000],
    ids=["empty", "not text", "another format", "wrong type", "absurdly nested"],
)
def test_what_is_not_a_lock_is_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(LockFormatError) as failure:
        WheelLock.read(path)
    assert str(path) in failure.value.where


def test_an_unknown_key_is_refused(path: Path) -> None:
    a_lock().write(path)
    path.write_text(path.read_text().replace("format = 1", "format = 1\nurl = 'https://index.example'"))
    with pytest.raises(LockFormatError, match="url"):
        WheelLock.read(path)


def test_a_lock_that_is_not_there_says_what_to_run(path: Path) -> None:
    with pytest.raises(LockMissingError, match="invoke lock"):
        WheelLock.read(path)


def test_a_lock_that_cannot_be_opened_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(LockFormatError):
        WheelLock.read(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_lock().write(path)
    before = path.read_bytes()

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFullError):
        write_text(path, "half of someth")
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_model_without_a_pinned_revision_has_no_commit() -> None:
    lock = ModelLock(made_from={}, revisions=(LockedRevision(repo="a/b", commit="0" * 40),))
    assert lock.commit_of("a/b") == "0" * 40
    assert lock.commit_of("a/c") is None
