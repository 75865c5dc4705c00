"""What the Docker engine hands to Docker: every file as locked, or nothing at all."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from imagefactory.assemble.engines.docker import daemon, engine
from imagefactory.assemble.engines.docker.build_context import TOOLS
from imagefactory.oci.layout import Layout, archive
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan, WheelLayer
from imagefactory.project.locks.files import LockedSource, ToolLock
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, file_sha256
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.wheels import make_wheel
from tests.unit.assemble.test_changed_cache import poison


class DockerFactory:
    """A small factory whose Docker only keeps what it is given."""

    def __init__(self, factory: SmallFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.factory = factory
        self.loaded: list[str] = []
        self.received = factory.folder / "received"
        uv = make_wheel(factory.links, "uv", "1.0", files={"uv-1.0.data/scripts/uv": "#!/bin/sh\n"})
        tool = LockedSource(name="uv", version="1.0", file=uv.name, sha256=file_sha256(uv), size=uv.stat().st_size)
        self.uv = Sha256(tool.sha256)
        ToolLock(made_from={}, amd64=(tool,), arm64=(tool,)).write(ToolLock.path(factory.locks))
        docker = factory.folder / "docker"
        # Files of the store are links, and copied; links of the image lead nowhere here.
        keep = f"shutil.copytree(sys.argv[-1], {str(self.received)!r}, ignore_dangling_symlinks=True)"
        docker.write_text(f"#!{sys.executable}\nimport shutil, sys\n{keep}\n")
        docker.chmod(0o755)
        monkeypatch.setenv("PATH", str(docker.parent), prepend=os.pathsep)
        monkeypatch.setattr(engine, "refuse_missing_buildx", lambda: None)
        monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("28.2.2", MACHINE))
        monkeypatch.setattr(daemon, "image_id", lambda _: "sha256:somewhere")
        monkeypatch.setattr(daemon, "load", self._load)

    @property
    def project(self) -> Project:
        return self.factory.project

    @property
    def store(self) -> Store:
        return self.project.store

    def plan(self) -> Plan:
        return make_plan(self.project, CELL)

    def build(self) -> str:
        factory = self.factory
        return engine.build_image(self.project, self.plan(), factory.watch, factory.said.append)

    def _load(self, layout: Layout, name: str) -> str:
        assert list(archive(layout, name))
        self.loaded.append(name)
        return "sha256:loaded"

    def refuse(self, changed: Path) -> None:
        """Build, and expect that a changed file is named before Docker gets anything."""
        with raises("damaged-cache") as caught:
            self.build()
        assert caught.value.where == str(changed.resolve())
        assert not self.received.exists()


@pytest.fixture
def docker_factory(small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch) -> DockerFactory:
    return DockerFactory(small_factory, monkeypatch)


def wheels(plan: Plan) -> dict[str, Sha256]:
    layers = (layer for layer in plan.layers if isinstance(layer, WheelLayer))
    return {item.name: item.sha256 for layer in layers for item in layer.inputs}


def test_docker_gets_the_locked_files_and_no_others(docker_factory: DockerFactory) -> None:
    docker_factory.build()
    found = {path.name: file_sha256(path) for path in docker_factory.received.glob("wheels/*/*.whl")}
    assert found == wheels(docker_factory.plan())
    assert (docker_factory.received / TOOLS / "uv").read_text() == "#!/bin/sh\n"
    assert len(docker_factory.loaded) == 1


def test_changed_wheel_or_program_is_not_handed_to_docker(docker_factory: DockerFactory) -> None:
    docker_factory.build()
    for sha256 in (*wheels(docker_factory.plan()).values(), docker_factory.uv):
        file = docker_factory.store.download(sha256)
        content = file.read_bytes()
        poison(file)
        shutil.rmtree(docker_factory.received)
        docker_factory.refuse(file)
        file.write_bytes(content)
        docker_factory.build()


def test_changed_base_is_not_loaded(docker_factory: DockerFactory) -> None:
    [built] = docker_factory.factory.build()
    base = docker_factory.store.blob(built.image.layers[0].digest)
    poison(base)
    docker_factory.refuse(base)
    assert docker_factory.loaded == []
