"""The embedded engine: it stops at once, it names lost workers, and its workers never outlive it."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagefactory.assemble import parallel
from imagefactory.assemble.layers.layer_blob import LayerWork
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import wait_until
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import SmallFactory, solid
from tests.fixtures.wheels import make_wheel


def children(pid: int) -> list[int]:
    """List the processes below one, at any depth."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(status.parent.name)
            found += [child, *children(child)]
    return found


def test_an_error_in_a_worker_arrives_whole(small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    small_factory.lock_wheels([solid(make_wheel(small_factory.links, "bad", "1", files={"a/.wh.b": ""}))])
    monkeypatch.setattr(parallel, "SMALL_WORK", 0)
    with raises("unsafe-wheel", match=r"bad-1-py3-none-any\.whl") as caught:
        small_factory.build()
    assert "delete files of other layers" in caught.value.why
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_is_an_error_with_a_remedy(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SMALL_WORK", 0)
    monkeypatch.setattr(parallel, "_build", _die)
    with raises("worker-lost") as caught:
        small_factory.build()
    assert ("exit code -9" in caught.value.what, "--workers 1" in caught.value.fix) == (True, True)
    assert [path.name for path in (small_factory.cache / "scratch").glob("[!.]*")] == []


def _die(_: LayerWork, store: Store, *__: object) -> None:
    (store.root / "scratch" / "left").mkdir(parents=True, exist_ok=True)  # two workers do it
    os.kill(os.getpid(), signal.SIGKILL)


SLOW = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.fixtures.small_factory import SmallFactory
from tests.unit.assemble.test_parallel import sleep_in_workers

if __name__ == "__main__":
    sleep_in_workers(SmallFactory(Path(sys.argv[1])))
"""


def sleep_in_workers(factory: SmallFactory) -> None:
    """Start a build whose workers take a minute for each layer."""
    parallel.SMALL_WORK = 0
    parallel._build = _sleep  # type: ignore[assignment]
    factory.build()


def _sleep(_: LayerWork, store: Store, *__: object) -> None:
    with store.scratch() as folder:
        (folder / "work").write_text(str(os.getpid()))
        time.sleep(60)


FAST = """
import sys
from pathlib import Path
from imagefactory.assemble import parallel
from tests.fixtures.small_factory import SmallFactory

if __name__ == "__main__":
    parallel.SMALL_WORK = 0
    SmallFactory(Path(sys.argv[1])).build()
"""


def test_workers_import_nothing_from_the_current_folder(small_factory: SmallFactory, tmp_path: Path) -> None:
    script, package = tmp_path / "script.py", tmp_path / "other" / "imagefactory"
    script.write_text(FAST)
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    environment = {**os.environ, **small_factory.environment(), "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, script, small_factory.folder], cwd=package.parent, env=environment, check=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_workers_do_not_outlive_the_build(small_factory: SmallFactory, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(small_factory.folder), str(REPOSITORY)],
        env={**os.environ, **small_factory.environment()},
        stderr=subprocess.PIPE,
        text=True,
    )
    scratch = small_factory.cache / "scratch"
    wait_until(lambda: list(scratch.glob("*/work")), 90)
    for worker in filter(None, (work.read_text() for work in scratch.glob("*/work"))):
        status = Path("/proc", worker, "status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked >> (signal.SIGINT - 1) & 1, "Ctrl-C would reach a worker"
    below = children(process.pid)
    assert below
    process.send_signal(how)
    process.communicate(timeout=20)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 5)
    small_factory.build()
    assert list(scratch.glob("*/work")) == []
