"""Builds that share a cache at the same time give the same results and download nothing twice."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.fixtures.failures import refused
from tests.fixtures.servers import Answer, SimpleIndex
from tests.fixtures.small_factory import SmallFactory
from tests.integration.assemble.test_killed import assert_whole

PATIENCE = 120


def start(factory: SmallFactory, target: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = factory.command("build", "--target", target)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_builds_at_the_same_time_do_not_disturb_each_other(tmp_path: Path, simple_index: SimpleIndex) -> None:
    factory = SmallFactory(tmp_path, big=1)
    simple_index.add(*factory.links.glob("*.whl"))
    environment = {**factory.environment(), "PIP_INDEX_URL": simple_index.url, "PIP_FIND_LINKS": ""}
    processes = [start(factory, target, environment) for target in ("tiny", "tiny", "other")]
    results = [(*process.communicate(timeout=PATIENCE), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0, 0, 0], results
    digests = [out.strip() for out, _, _ in results]
    assert digests[0] == digests[1] != digests[2]
    assert_whole(factory, digests[0])
    fetched = [entry.path for entry in simple_index.log if entry.path.startswith("/files/")]
    assert len(fetched) == len(set(fetched)), "each file is fetched once"
    record = factory.project.known_layers.read_text()
    assert "model tiny" in record
    assert "model other" in record


class SlowIndex(SimpleIndex):
    """An index that sends files only after `go_on`, and sets `asked` on the first request for one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = Event(), Event()

    def _answer(self, path: str, headers: dict[str, str]) -> Answer:
        if path.startswith("/files/"):
            self.asked.set()
            assert self.go_on.wait(PATIENCE)
        return super()._answer(path, headers)


@pytest.fixture
def slow_index() -> Iterator[SlowIndex]:
    index = SlowIndex()
    yield index
    index.go_on.set()
    index.close()


def test_cleaning_is_refused_while_a_build_runs(tmp_path: Path, slow_index: SlowIndex) -> None:
    factory = SmallFactory(tmp_path)
    slow_index.add(*factory.links.glob("*.whl"))
    environment = {**factory.environment(), "PIP_INDEX_URL": slow_index.url, "PIP_FIND_LINKS": ""}
    build = start(factory, "tiny", environment)
    assert slow_index.asked.wait(PATIENCE), "the build does not reach its downloads"
    done = factory.invoke("clean", "--everything")
    slow_index.go_on.set()
    digest, said = build.communicate(timeout=PATIENCE)
    assert refused(done, "cache-busy"), done.stderr
    assert "A build is running with this cache" in done.stderr
    assert build.returncode == 0, said
    assert_whole(factory, digest.strip())
    assert factory.invoke("clean", "--everything").returncode == 0
    assert not list(factory.cache.glob("blobs/sha256/*")), "after the build it works"
