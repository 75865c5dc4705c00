"""Both engines build the same image, apart from what is declared: with a real daemon and the real wheels."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefactory.assemble.assemble import BuildRun, assemble
from imagefactory.assemble.engines.by_name import BuildOptions, BuiltImage, build_images
from imagefactory.assemble.engines.differences import Pair
from imagefactory.assemble.engines.docker.daemon import image_id
from imagefactory.assemble.layers.debian.deb import data_files
from imagefactory.check.smoke.containers import docker
from imagefactory.lock.debian_index import read_index
from imagefactory.lock.mirrors import DebianMirrors, fetch
from imagefactory.mods.authoring import scaffold
from imagefactory.mods.choose import NO_MODEL
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import PLATFORM
from tests.fixtures.small_factory import NotedReads, RecordingWatcher

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
TINY = Cell("tiny", "0.32.0", "cpu", PLATFORM)
RELEASE = "trixie"
"""The first Debian with buildx; the program runs on the libc of the one before."""
PLUGIN = "usr/libexec/docker/cli-plugins/docker-buildx"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Take a copy of the checkout, so that nobody changes it between the two builds."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("imagefactory", "images", "locks", "mods"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    matrix = (REPOSITORY / "matrix.yaml").read_text("utf-8")
    # Another name, so that the images of whoever runs this stay as they are; and a mod, which tiny has none of.
    matrix = matrix.replace("/spark-vllm ", f"/test-{os.getpid()} ", 1)
    (root / "matrix.yaml").write_text(matrix, "utf-8")
    mod = scaffold(Project(root), "note")
    mod.write_text(mod.read_text("utf-8").replace(NO_MODEL, "tiny"), "utf-8")
    return Project(root)


def build_with_docker(project: Project) -> BuiltImage:
    [built] = build_images(project, [TINY], "docker", BuildOptions(), watch=RecordingWatcher(), say=lambda _: None)
    return built


def debian_buildx(folder: Path) -> Path:
    """Return a configuration folder of docker with Debian's plugin in it, for a machine that has none."""
    plugin = folder / "cli-plugins" / "docker-buildx"
    plugin.parent.mkdir()
    mirrors = DebianMirrors.discover(RELEASE)
    index = read_index(debian=RELEASE, platform=PLATFORM, mirrors=mirrors, say=lambda _line: None)
    package = index.packages["docker-buildx"]
    content = next(filter(None, (fetch(root, package.file) for root in mirrors.roots(package.archive))))
    assert sha256_of(content) == package.sha256
    deb = folder / "docker-buildx.deb"
    deb.write_bytes(content)
    with data_files(deb) as files:
        [data] = [read() for path, _, read in files if path == PLUGIN and read is not None]
    plugin.write_bytes(data)
    plugin.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def by_docker(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltImage]:
    with pytest.MonkeyPatch.context() as patch:
        if docker("buildx", "version").returncode:
            patch.setenv("DOCKER_CONFIG", str(debian_buildx(tmp_path_factory.mktemp("docker-config"))))
        made = build_with_docker(project)
        yield made
        docker("image", "rm", "--force", made.where)


def test_engines_differ_only_in_what_is_declared(project: Project, by_docker: BuiltImage) -> None:
    [embedded] = assemble(BuildRun(project, [make_plan(project, TINY)], RecordingWatcher()))
    unexpected, declared = Pair.named(project, str(embedded.layout.folder), by_docker.where).compare(NotedReads())
    assert [f"{item.path} {item.field}: {item.left} | {item.right}" for item in unexpected] == []
    assert declared
    assert "mod" in [layer.kind for layer in by_docker.plan.layers]


def test_configuration_is_the_planned_one(project: Project, by_docker: BuiltImage) -> None:
    config = json.loads(docker("image", "inspect", by_docker.digest).stdout)[0]["Config"]
    plan = by_docker.plan
    assert config["Labels"] == {**plan.config.labels, "imagefactory.plan": plan.key}
    assert config["Healthcheck"] == plan.config.healthcheck
    assert config["Entrypoint"] == list(plan.config.entrypoint)
    # The context is removed after the build.
    left = {path.name for path in project.build_folder(TINY).iterdir()}
    assert ("Dockerfile" in left, "context" in left) == (True, False)


def test_programs_of_the_image_run(by_docker: BuiltImage) -> None:
    def run(program: str, *arguments: str) -> str:
        # The host's network: a daemon on a restricted machine has no bridge.
        options = ("--rm", "--network", "host", "--entrypoint", program)
        return docker("run", *options, by_docker.where, *arguments).stdout

    assert "Running uvicorn" in run("uvicorn", "--version")
    ask = "from importlib.metadata import version; print(version('vllm'))"
    assert run("/opt/venv/bin/python3", "-c", ask) == "0.32.0+cpu\n"


def test_second_build_takes_every_step_from_the_cache(project: Project, by_docker: BuiltImage) -> None:
    again = build_with_docker(project)
    log = (project.build_folder(TINY) / "docker-build.log").read_text("utf-8")
    steps = [line for line in log.splitlines() if " RUN --mount" in line and line.startswith("#")]
    assert steps
    assert log.count(" CACHED") >= len(steps)
    assert image_id(again.where) == again.digest == by_docker.digest
