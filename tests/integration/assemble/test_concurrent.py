"""Builds that share a cache at the same time give the same results and download nothing twice."""

import subprocess
from pathlib import Path

from tests.fixtures.servers import SimpleIndex
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
