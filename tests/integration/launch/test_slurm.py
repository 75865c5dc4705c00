"""Commands and files for a cluster, on a real Slurm: vLLM on the CPUs of several nodes, by Podman."""

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from imagefactory.ci.jobs import Night, Work
from imagefactory.oci.layout import Layout
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.engines import need
from tests.fixtures.tiny_image import TARGET, invoke
from tests.integration.launch.slurm_cluster import Cluster, slurm_cluster, slurm_missing, wait_for

MISSING = slurm_missing()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
END_LIMIT = 240
"""Seconds for two short jobs on a busy machine."""
START_LIMIT = 1500
"""Seconds for four servers on two cores."""
Property = Callable[[str, object], None]


def test_an_array_does_the_work_of_a_plan(tmp_path: Path) -> None:
    """With the command of docs/scale.md, and a stand-in for what it calls."""
    cells = [Cell(model, "0.32.0", arch, "linux/arm64") for arch in ("gb10", "h100") for model in ("a", "b")]
    night = Night("registry.test/x", tuple(Work(cell, "key", ("image",), "new") for cell in cells))
    (tmp_path / "plan.json").write_text(json.dumps(night.as_json()))
    (tmp_path / "inv").write_text('#!/bin/sh\necho "$@" > "done.$SLURM_ARRAY_TASK_ID"\n')
    (tmp_path / "inv").chmod(0o755)
    page = (REPOSITORY / "docs" / "scale.md").read_text("utf-8")
    [line] = re.findall(r"^\$ (sbatch --array=.*)$", page, re.MULTILINE)
    expected = [f"push --target {job['targets']}\n" for job in night.jobs()["image"]]
    with slurm_cluster(tmp_path, 1) as cluster:
        cluster.call("sh", "-c", line.replace("0-3", f"0-{len(expected) - 1}"))
        files = [tmp_path / f"done.{index}" for index in range(len(expected))]
        wait_for("the array", lambda: all(file.exists() for file in files), END_LIMIT)
        wait_for("its texts", lambda: [file.read_text() for file in files] == expected, END_LIMIT)


class Stored(NamedTuple):
    """An image in a folder of Podman's storage, and its reference by digest."""

    reference: str
    folder: Path


@pytest.fixture(scope="module")
def stored(tiny_checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    for program in ("podman", "skopeo", "curl"):
        need(program)
    layout = built_layout(tiny_checkout)
    folder = tmp_path_factory.mktemp("images")
    made = Stored(f"registry.test/tiny@{layout.manifest_digest()}", folder / "storage")
    place = f"containers-storage:[overlay@{made.folder}+{folder / 'run'}]{made.reference}"
    # In its own namespace: it mounts the storage on itself, and leaves that behind.
    words = ["unshare", "--mount", "skopeo", "copy", "--quiet", f"oci:{layout.folder}", place]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return made


def built_layout(checkout: Path) -> Layout:
    project = Project(checkout)
    return Layout(project.build_folder(select_one(project.matrix, TARGET)))


class Job:
    """The file that `./inv run` writes, in the hands of Slurm."""

    def __init__(self, cluster: Cluster, text: str) -> None:
        self.cluster = cluster
        (cluster.folder / "job.sh").write_text(text)
        self.identity = cluster.call("sbatch", "--parsable", "job.sh").strip()

    @property
    def log(self) -> str:
        [path] = self.cluster.folder.glob(f"*-{self.identity}.log")
        return path.read_text(errors="replace")

    @property
    def state(self) -> str:
        """Say what Slurm does with it, the only one of its cluster: nothing once it has ended."""
        return self.cluster.call("squeue", "--noheader", "--format", "%T %r").strip()

    def evidence(self) -> str:
        return f"{self.state}: {self.cluster.left_over()}\n{self.log[-6000:]}"

    def completion(self) -> str:
        """Ask the head from another machine; without an answer, return an empty text."""
        body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 4, "temperature": 0})
        form = ("--header", "Content-Type: application/json", "--data", body)
        url = f"http://{self.cluster.nodes['n1']}:8000/v1/completions"
        with suppress(AssertionError):
            answer = json.loads(self.cluster.call("curl", "--silent", "--fail", "--max-time", "50", *form, url))
            return str(answer["choices"][0]["text"])
        return ""

    def waits_for(self, what: str, holds: Callable[[], object], seconds: float = START_LIMIT) -> int:
        return round(wait_for(what, lambda: bool(holds()), seconds, self.evidence))


@pytest.mark.network
@pytest.mark.usefixtures("turn_of_many_servers")
@pytest.mark.parametrize("count", [2, 4])
def test_a_job_serves_ends_with_a_node_and_serves_again(
    tiny_checkout: Path, stored: Stored, tmp_path: Path, count: int, record_property: Property
) -> None:
    """With a part of every layer on each node."""
    settings = ("--set", f"NODES={count}")
    text = invoke(tiny_checkout, "run", "--target", TARGET, "--image", stored.reference, "--recipe", "slurm", *settings)
    with slurm_cluster(tmp_path, count, stored.folder) as cluster:
        job = Job(cluster, text)
        record_property("seconds until ready", job.waits_for("a completion", job.completion))
        answer = job.completion()
        assert answer == job.completion()
        last = f"n{count}"
        cluster.cut_power(last)
        sentence = f"node {count - 1} ({cluster.nodes[last]}) has ended or cannot be reached"
        record_property("seconds until the sentence", job.waits_for(sentence, lambda: sentence in job.log))
        record_property("seconds until queued", job.waits_for("the queue", lambda: "starts again" in job.log))
        cluster.boot(last)
        record_property("seconds until ready again", job.waits_for("another completion", job.completion))
        assert job.completion() == answer
        cluster.call("scancel", job.identity)
        job.waits_for("the end", lambda: not job.state)
        job.waits_for("empty nodes", lambda: not cluster.left_over(), END_LIMIT)
