"""The Docker engine without Docker: the command it runs, its arguments and build context, and what it refuses."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from docker.errors import DockerException

from imagefactory.assemble.engines.by_name import ENGINES, engine_named
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.engines.docker.build_context import copied_layers, layer_tree
from imagefactory.assemble.engines.docker.dockerfile import plan_context
from imagefactory.assemble.engines.docker.engine import (
    _run,
    build_arguments,
    build_image,
    refuse_unfit_builder,
)
from imagefactory.assemble.engines.options import BuildOptions
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.platforms import FOREIGN, machine_of
from tests.fixtures.small_factory import CELL, RecordingWatcher, SmallFactory

AMD64 = "linux/amd64"
FARM = 'printf "Name: farm\\nDriver: kubernetes\\nPlatforms: linux/arm64*, linux/amd64\\n"'


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Make a docker command whose `buildx version` and `buildx inspect` run these lines."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(version: str = "echo v0.20", inspect: str = FARM) -> None:
        command = tmp_path / "docker"
        command.write_text(f'#!/bin/sh\ncase "$2" in\nversion) {version} ;;\ninspect) {inspect} ;;\nesac\n')
        command.chmod(0o755)

    return make


def test_builder_for_the_platform_is_accepted(fake_docker: Callable[..., None]) -> None:
    fake_docker()
    refuse_unfit_builder("farm", AMD64)
    fake_docker(inspect="echo Name: farm")  # one that does not tell
    refuse_unfit_builder("farm", AMD64)


@pytest.mark.parametrize(
    ("answers", "error", "says"),
    [
        (None, "engine-failed", "no docker command"),
        ({"version": "exit 1"}, "engine-too-old", "no buildx.*Install the plugin"),
        ({"inspect": 'echo "ERROR: no builder" >&2; exit 1'}, "no-builder", "farm.*no builder"),
        ({"inspect": 'echo "Platforms: linux/arm64"'}, "foreign-platform", AMD64),
    ],
    ids=["no command", "no buildx", "an unknown builder", "a foreign builder"],
)
def test_docker_that_cannot_build_is_refused(
    fake_docker: Callable[..., None], answers: dict[str, str] | None, error: str, says: str
) -> None:
    if answers is not None:
        fake_docker(**answers)
    with raises(error) as caught:
        refuse_unfit_builder("farm", AMD64)
    assert re.search(says, f"{caught.value.what} {caught.value.why} {caught.value.fix}")


def command_line(factory: SmallFactory, options: BuildOptions) -> str:
    [built] = factory.build()
    return shlex.join(build_arguments(built.plan, options, Path("/b/Dockerfile"), "name:tag", built.layout))


def test_build_has_no_network_and_a_fixed_time(small_factory: SmallFactory) -> None:
    assert command_line(small_factory, BuildOptions()) == (
        "docker buildx build --builder default --progress plain --file /b/Dockerfile "
        f"--platform {CELL.platform} --tag name:tag --network none --build-arg SOURCE_DATE_EPOCH=315619200 "
        "--load --provenance=false"
    )


def test_other_builders_get_the_base_as_a_layout_and_caches_as_given(small_factory: SmallFactory) -> None:
    options = BuildOptions(builder="farm", cache_from=("r/cache",), cache_to=("type=local,dest=c",))
    line = command_line(small_factory, options)
    assert " --builder farm " in line
    assert re.search(r"--build-context imagefactory/base:\w{16}=oci-layout:///.+@sha256:\w{64} ", line)
    assert line.endswith(" --cache-from r/cache --cache-to type=local,dest=c")


def test_missing_daemon_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise DockerException("Connection refused")

    monkeypatch.setattr("docker.from_env", fail)
    with raises("engine-failed", match="does not answer") as caught:
        daemon.ask()
    assert caught.value.why == "Connection refused"
    assert "embedded" in caught.value.fix


def test_foreign_platform_needs_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    here = daemon.Daemon("28.2.2", "amd64")
    daemon.refuse_foreign(here, AMD64)
    with raises("foreign-platform", match="linux/arm64"):
        daemon.refuse_foreign(here, "linux/arm64")
    (tmp_path / "qemu-aarch64").touch()
    daemon.refuse_foreign(here, "linux/arm64")


def test_foreign_platform_is_refused_before_anything_is_fetched(
    fake_docker: Callable[..., None], monkeypatch: pytest.MonkeyPatch, small_factory: SmallFactory
) -> None:
    fake_docker(inspect=f"echo Platforms: {FOREIGN}")
    monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("28.2.2", machine_of(FOREIGN)))
    project = small_factory.project
    with raises("foreign-platform"):
        build_image(project, make_plan(project, CELL), BuildOptions(), RecordingWatcher(), lambda _: None)
    assert not list(small_factory.cache.rglob("*"))


@pytest.mark.parametrize("step", ["[ 2/13]", "[stage-0  2/13]"])  # an old BuildKit, and a newer one
def test_failed_build_shows_its_last_lines_and_logs_all_of_them(step: str, tmp_path: Path) -> None:
    said: list[str] = []
    script = (
        f"echo '#5 {step} RUN --mount=type=bind,source=wheels/01-torch,target=/srv x'; echo 'uv: no'; exit 3"
    )
    with raises("docker-build-failed") as caught:
        _run(["sh", "-c", script], tmp_path / "log", said.append)
    assert caught.value.why.endswith("uv: no")
    assert "uv: no" in (tmp_path / "log").read_text()
    assert said[1:] == ["step 2/13: wheels/01-torch"]


def test_engine_is_found_by_name_and_takes_only_its_own_options() -> None:
    assert engine_named("docker", BuildOptions(builder="farm")) is ENGINES["docker"]
    assert engine_named("embedded", BuildOptions(workers=2)) is ENGINES["embedded"]
    with raises("unknown-name", match="dokcer") as caught:
        engine_named("dokcer", BuildOptions())
    assert "docker" in caught.value.why
    with raises("bad-setting", match="--cache-from") as refused:
        engine_named("embedded", BuildOptions(cache_from=("cache",)))
    assert "--engine docker" in refused.value.fix
    with raises("bad-setting", match="--output"):
        engine_named("docker", BuildOptions(output=Path("there")))


def test_every_option_belongs_to_an_engine() -> None:
    taken = [option for engine in ENGINES.values() for option in engine.takes]
    assert sorted(taken) == sorted(field.name for field in fields(BuildOptions))


def test_copied_files_have_the_modes_and_times_of_the_image(
    small_factory: SmallFactory, tmp_path: Path
) -> None:
    project = small_factory.project
    os.umask(0o077)
    for _, piece in copied_layers(make_plan(project, CELL).layers, project.root):
        piece.put(tmp_path, project.store, {})
    caches = tmp_path / "serve/var/cache/imagefactory"
    assert stat.S_IMODE(caches.stat().st_mode) == 0o1777
    config = tmp_path / "model/opt/models/tiny/config.json"
    assert stat.S_IMODE(config.stat().st_mode) == 0o644
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o755
    assert config.stat().st_mtime == 315619200


def test_links_are_copied_as_links(tmp_path: Path) -> None:
    entries = [
        Entry(ImagePath("usr/local/cuda"), EntryKind.SYMLINK, 0o777, target="/opt/cuda"),
        Entry(ImagePath("opt/cuda/nvcc"), EntryKind.FILE, 0o755, Bytes(b"x")),
    ]
    tree = layer_tree("serve", "here", entries)
    tree.put(tmp_path, Store(tmp_path / "store"), {})
    assert (tmp_path / "serve/usr/local/cuda").readlink() == Path("/opt/cuda")
    assert [file.get("link_to") for file in tree.files] == [None, "/opt/cuda"]


def test_mods_are_described_by_their_inputs() -> None:
    project = Project(REPOSITORY)
    plan = make_plan(project, Cell("gemma4-31b", "0.20.2", "gb10", "linux/arm64"))
    files = [file for piece in plan_context(project, plan).pieces for file in piece.files]
    mods = [file for file in files if file["path"].startswith("mods/")]
    assert mods
    for file in mods:
        assert file["changes"]
        assert file["made_from"][0]["name"].startswith("vllm-0.20.2")
