"""Two builds at once on one cache: each ends as if it were alone, and nothing is done twice."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from tests.fixtures.servers import SimpleIndex
from tests.fixtures.small_factory import SmallFactory
from tests.integration.test_killed import assert_whole


def test_builds_at_once_do_not_disturb_each_other(tmp_path: Path, simple_index: SimpleIndex) -> None:
    factory = SmallFactory(tmp_path, big=1)
    simple_index.add(*factory.links.glob("*.whl"))
    environment = {**factory.environment(), "PIP_INDEX_URL": simple_index.url, "PIP_FIND_LINKS": ""}
    commands = [factory.command("build", "--target", target) for target in ("tiny", "tiny", "other")]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    results = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0, 0, 0], results
    digests = [out.strip() for out, _, _ in results]
    assert digests[0] == digests[1] != digests[2]
    assert_whole(factory, digests[0])
    fetched = [entry.path for entry in simple_index.log if entry.path.startswith("/files/")]
    assert len(fetched) == len(set(fetched)), "each file is fetched once"
    record = factory.project.known_layers.read_text()
    assert "model tiny" in record
    assert "model other" in record


def test_cleaning_is_refused_while_a_build_runs(tmp_path: Path, simple_index: SimpleIndex) -> None:
    factory = SmallFactory(tmp_path, big=1)
    environment = {**os.environ, **factory.environment()}
    build = subprocess.Popen(
        factory.command("build", "--target", "tiny"),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 30
    while not (factory.cache / ".in-use").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    clean = subprocess.run(
        factory.command("clean", "--everything"), env=environment, capture_output=True, text=True, check=False
    )
    running = build.poll() is None
    build.communicate(timeout=60)
    assert build.returncode == 0
    assert simple_index.log == []
    if running:
        assert clean.returncode == 68
        assert "A build is running with this cache" in clean.stderr
