"""The store: what is in it is whole, and what killed builds leave is swept without disturbing the living."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.errors.layers import StoreBusyError
from imagefactory.errors.store import DiskFullError
from imagefactory.store.cache import Store, default_root, locked, translating_disk_full
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.checkouts import REPOSITORY

HOLDER = """
import sys, time
from pathlib import Path
from imagefactory.store.cache import Store
store = Store(Path(sys.argv[1]))
with store.in_use(), store.scratch() as folder:
    (folder / "work").write_text("half of it")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def holder(store: Store) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that works in a scratch folder of the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_the_place_of_the_store_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FACTORY_CACHE", str(tmp_path / "elsewhere"))
    assert default_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("FACTORY_CACHE")
    assert default_root() == Path.home() / ".cache" / "imagefactory"


def test_a_file_appears_when_it_is_finished(store: Store) -> None:
    target = store.blob(Digest("sha256:abc"))
    with store.writing(target) as file:
        file.write(b"all of it")
        assert not target.exists()
    assert target.read_bytes() == b"all of it"
    assert [path.name for path in target.parent.iterdir()] == ["abc"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_that_is_not_finished_vanishes(store: Store, error: type[BaseException]) -> None:
    target = store.layer(Sha256("ab" * 32))
    with pytest.raises(error), store.writing(target):
        raise error
    assert list(target.parent.iterdir()) == []


def test_others_may_read_what_is_adopted_whatever_the_umask(store: Store, tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        file = tmp_path / "file"
        file.write_bytes(b"x")
        store.adopt(file, store.blob(Digest("sha256:abc")))
    finally:
        os.umask(previous)
    assert store.blob(Digest("sha256:abc")).stat().st_mode & 0o777 == 0o644
    assert not file.exists()


def test_a_scratch_folder_is_gone_afterwards(store: Store) -> None:
    with store.scratch() as folder:
        (folder / "sub").mkdir()
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt), store.scratch() as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_what_a_killed_build_left_is_swept(store: Store) -> None:
    process, folder = holder(store)
    end(process)
    assert (folder / "work").exists()
    store.sweep()
    assert not folder.exists()


def test_what_a_living_build_works_with_stays(store: Store) -> None:
    process, folder = holder(store)
    try:
        store.sweep()
        assert (folder / "work").exists()
        with store.scratch() as own:
            store.sweep()
            assert own.exists()
    finally:
        end(process)


def test_cleaning_waits_for_no_one_and_disturbs_no_one(store: Store) -> None:
    process, _ = holder(store)
    try:
        with pytest.raises(StoreBusyError, match="A build is running") as caught, store.for_cleaning():
            pass
        assert caught.value.where == str(store.root)
        with store.in_use():
            pass  # another build may start
    finally:
        end(process)
    with store.for_cleaning():
        pass


def test_an_error_while_cleaning_is_not_taken_for_a_busy_store(store: Store) -> None:
    with pytest.raises(BlockingIOError, match="something else"), store.for_cleaning():
        raise BlockingIOError("something else")


def test_a_lock_is_let_go_of(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "lock"):
            pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_remedy(tmp_path: Path, number: int) -> None:
    with pytest.raises(DiskFullError) as caught, translating_disk_full(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "invoke clean" in caught.value.fix
    assert caught.value.where == str(tmp_path)


def test_other_failures_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), translating_disk_full(tmp_path):
        raise PermissionError
