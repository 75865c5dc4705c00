"""The store: what is in it is whole, and what killed builds leave is swept without disturbing the living."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.errors.layers import StoreBusyError
from imagefactory.store.cache import Store, default_root
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
