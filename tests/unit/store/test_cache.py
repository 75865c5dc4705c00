"""The store: scratch folders are removed, except for those of running builds, and cleaning needs it alone."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from imagefactory.store.cache import Store, clean, default_root
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

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


@contextmanager
def holder(store: Store) -> Iterator[Path]:
    """Run a process that uses a scratch folder of the store, and kill it afterwards."""
    command, env = ([sys.executable, "-c", HOLDER, str(store.root)], {**os.environ, "PYTHONPATH": str(REPOSITORY)})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_location_of_the_store_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FACTORY_CACHE", str(tmp_path / "elsewhere"))
    assert default_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("FACTORY_CACHE")
    assert default_root() == Path.home() / ".cache" / "imagefactory"


def test_scratch_folder_is_removed_afterwards(store: Store) -> None:
    with store.scratch() as folder:
        (folder / "sub").mkdir()
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt), store.scratch() as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_error_while_cleaning_is_not_mistaken_for_a_busy_store(store: Store) -> None:
    with pytest.raises(BlockingIOError, match="something else"), store.for_cleaning():
        raise BlockingIOError("something else")


def test_scratch_folder_of_a_running_build_stays_and_that_of_a_killed_one_is_swept(store: Store) -> None:
    with holder(store) as folder:
        store.sweep()
        assert (folder / "work").exists()
        with store.scratch() as own:
            store.sweep()
            assert own.exists()
        with raises("cache-busy", match="A build is running") as caught:
            clean(store)
        assert caught.value.where == str(store.root)
        with store.in_use():
            pass  # another build may start
    assert (folder / "work").exists()
    clean(store, older_than=30)
    assert not folder.exists()


def test_sweeping_leaves_alone_what_a_build_removes_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter([folder / "gone"]))
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    Store(tmp_path).sweep()
    assert not (tmp_path / "scratch" / "gone").exists()


def test_child_process_does_not_keep_the_store(store: Store) -> None:
    # Workers that a build forks have its files open.
    with store.in_use():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # ends with the test
            os._exit(0)
    with store.for_cleaning():
        pass
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_a_part_of_the_cache_that_everybody_may_write_to_is_refused(store: Store, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    store.root.mkdir(parents=True, exist_ok=True)
    (store.root / "blobs").symlink_to(shared)
    with store.in_use():
        pass
    shared.chmod(0o777)
    with raises("bad-path", match="changed by everybody"), store.in_use():
        pass
