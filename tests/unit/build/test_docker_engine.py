"""The Docker engine without Docker: the command it runs, its arguments and build context, and what it refuses."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException

from imagefactory.build.engines.by_name import ENGINES, engine_named
from imagefactory.build.engines.docker import daemon
from imagefactory.build.engines.docker.build_context import copied_layers, layer_tree
from imagefactory.build.engines.docker.buildx import (
    Builder,
    build_arguments,
    find_builder,
    refuse_unsupported,
)
from imagefactory.build.engines.docker.dockerfile import plan_context
from imagefactory.build.engines.docker.engine import _run, build_image
from imagefactory.build.engines.options import BuildOptions
from imagefactory.errors import FactoryError
from imagefactory.errors.docker import (
    BuilderMissingError,
    EngineTooOldError,
    ForeignPlatformError,
    ImageBuildError,
)
from imagefactory.errors.layers import EngineError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.serving import SettingRefusedError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.make import make_plan
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import FOREIGN, machine_of
from tests.fixtures.small_factory import CELL, RecordingWatcher, SmallFactory

AMD64 = "linux/amd64"
BUILDX = """
case "$2" in
  version) echo v0.20 ;;
  inspect) {inspect} ;;
  ls) printf 'NAME/NODE DRIVER\\nfarm* docker-container\\n \\\\_ farm0 x\\ndefault docker\\n' ;;
esac
"""
UNKNOWN = 'echo "ERROR: no builder" >&2; exit 1'
FARM = 'printf "Name: farm\\nDriver: docker-container\\nPlatforms: linux/arm64*, linux/amd64\\n"'
Docker = Callable[..., Path]


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Make docker commands that answer as told, in folders that become PATH."""
    folders: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    def make(version: str, buildx: str | None = None) -> Path:
        command = tmp_path / f"bin{len(folders)}" / "docker"
        command.parent.mkdir()
        answer = BUILDX.format(inspect=buildx) if buildx is not None else "exit 1"
        command.write_text(
            f'#!/bin/sh\ncase "$1" in\n--version) echo "Docker version {version}, build x" ;;\n'
            f"buildx) {answer} ;;\nesac\n"
        )
        command.chmod(0o755)
        folders.append(str(command.parent))
        monkeypatch.setenv("PATH", os.pathsep.join([*folders, "/usr/bin", "/bin"][: len(folders)]))
        return command

    return make


def test_old_command_builds_with_its_own_buildkit(fake_docker: Docker) -> None:
    command = fake_docker("20.10.24")
    builder = find_builder(None, AMD64)
    assert builder == Builder((str(command), "build"), buildx=False)
    assert builder.environment["DOCKER_BUILDKIT"] == "1"


def test_new_command_without_buildx_is_passed_over_for_an_older_one(fake_docker: Docker) -> None:
    fake_docker("28.2.2")
    old = fake_docker("20.10.24")
    assert find_builder(None, AMD64).command[0] == str(old)


def test_buildx_is_preferred_wherever_it_is(fake_docker: Docker) -> None:
    fake_docker("20.10.24")
    other = fake_docker("27.0.1", FARM)
    builder = find_builder("farm", AMD64)
    assert builder == Builder(
        (str(other), "buildx", "build"), buildx=True, name="farm", driver="docker-container"
    )
    assert builder.is_remote


@pytest.mark.parametrize(
    ("command", "builder", "error", "says"),
    [
        (None, None, EngineError, "no docker command"),
        (
            ("28.2.2",),
            None,
            EngineTooOldError,
            "cannot build with BuildKit.*Install the docker-buildx plugin",
        ),
        (("20.10.24",), "farm", EngineTooOldError, "--builder needs buildx"),
        (
            ("27.0.1", UNKNOWN),
            "frm",
            BuilderMissingError,
            "builder frm.*no builder.*Known builders: default, farm",
        ),
        (("27.0.1", 'echo "Platforms: linux/arm64"'), None, ForeignPlatformError, AMD64),
    ],
    ids=["no command", "no buildx", "a builder without buildx", "an unknown builder", "a foreign builder"],
)
def test_command_that_cannot_build_is_refused(
    fake_docker: Docker,
    command: tuple[str, ...] | None,
    builder: str | None,
    error: type[FactoryError],
    says: str,
) -> None:
    if command:
        fake_docker(*command)
    with pytest.raises(error) as caught:
        find_builder(builder, AMD64)
    assert re.search(says, f"{caught.value.what} {caught.value.why} {caught.value.fix}")


def command_line(builder: Builder, **options: Any) -> str:
    files = {"dockerfile": Path("/b/Dockerfile"), "context": Path("/b/context")}
    given: dict[str, Any] = {"platform": AMD64, "tag": "name:tag", "base": None}
    return shlex.join(build_arguments(builder, **given | files | options))


OLD = Builder(("docker", "build"), buildx=False)
NEW = Builder(("docker", "buildx", "build"), buildx=True, name="farm", driver="kubernetes")


def test_build_has_no_network_and_a_fixed_time() -> None:
    assert command_line(OLD) == (
        "docker build --file /b/Dockerfile --platform linux/amd64 --tag name:tag --network none "
        "--build-arg SOURCE_DATE_EPOCH=315619200 /b/context"
    )


def test_remote_builder_gets_the_base_as_a_layout_and_loads_the_image() -> None:
    line = command_line(NEW, base=("imagefactory/base:1", "/b/base@sha256:2"))
    assert "--load --provenance=false --builder farm" in line
    assert "--build-context imagefactory/base:1=oci-layout:///b/base@sha256:2" in line


def test_cache_without_type_is_a_name_in_a_registry() -> None:
    line = command_line(NEW, cache_from=["r/cache", "type=local,src=c"], cache_to=["r/cache"])
    assert "--cache-from type=registry,ref=r/cache --cache-from type=local,src=c" in line
    assert "--cache-to type=registry,ref=r/cache,mode=max" in line


def test_cache_is_only_read_without_buildx() -> None:
    assert "--cache-from r/cache" in command_line(OLD, cache_from=["r/cache"])
    with pytest.raises(EngineTooOldError, match="--cache-to"):
        refuse_unsupported(OLD, ["r/cache"])
    refuse_unsupported(NEW, ["r/cache"])


def test_daemon_without_mounts_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"Version": "20.10.24+dfsg1", "Arch": "arm64"}
    client = SimpleNamespace(version=lambda: said, close=lambda: None)
    monkeypatch.setattr("docker.from_env", lambda **_: client)
    assert daemon.ask() == daemon.Daemon("20.10.24+dfsg1", "arm64")
    for version in ("19.03.15", "18.09"):
        said["Version"] = version
        with pytest.raises(EngineTooOldError, match=version):
            daemon.ask()


def test_missing_daemon_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise DockerException("Connection refused")

    monkeypatch.setattr("docker.from_env", fail)
    with pytest.raises(EngineError, match="does not answer") as caught:
        daemon.ask()
    assert caught.value.why == "Connection refused"
    assert "embedded" in caught.value.fix


def test_foreign_platform_needs_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    here = daemon.Daemon("20.10", "amd64")
    daemon.refuse_foreign(here, AMD64)
    with pytest.raises(ForeignPlatformError, match="linux/arm64"):
        daemon.refuse_foreign(here, "linux/arm64")
    (tmp_path / "qemu-aarch64").touch()
    daemon.refuse_foreign(here, "linux/arm64")


def test_foreign_platform_is_refused_before_anything_is_fetched(
    fake_docker: Docker, monkeypatch: pytest.MonkeyPatch, small_factory: SmallFactory
) -> None:
    fake_docker("20.10.24")
    monkeypatch.setattr(daemon, "EMULATORS", small_factory.folder)
    monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("20.10.24", machine_of(FOREIGN)))
    project = small_factory.project
    with pytest.raises(ForeignPlatformError):
        build_image(project, make_plan(project, CELL), BuildOptions(), RecordingWatcher(), lambda _: None)
    assert not list(small_factory.cache.rglob("*"))


@pytest.mark.parametrize("step", ["[ 2/13]", "[stage-0  2/13]"])  # an old BuildKit, and a newer one
def test_failed_build_shows_its_last_lines_and_logs_all_of_them(step: str, tmp_path: Path) -> None:
    said: list[str] = []
    script = (
        f"echo '#5 {step} RUN --mount=type=bind,source=wheels/01-torch,target=/srv x'; echo 'uv: no'; exit 3"
    )
    with pytest.raises(ImageBuildError) as caught:
        _run(["sh", "-c", script], OLD, tmp_path / "log", said.append)
    assert caught.value.why.endswith("uv: no")
    assert "uv: no" in (tmp_path / "log").read_text()
    assert said[1:] == ["step 2/13: wheels/01-torch"]


def test_engine_is_found_by_name_and_takes_only_its_own_options() -> None:
    assert engine_named("docker", BuildOptions(builder="farm")) is ENGINES["docker"]
    assert engine_named("embedded", BuildOptions(workers=2)) is ENGINES["embedded"]
    with pytest.raises(UnknownNameError, match="dokcer") as caught:
        engine_named("dokcer", BuildOptions())
    assert "docker" in caught.value.why
    with pytest.raises(SettingRefusedError, match="--cache-from") as refused:
        engine_named("embedded", BuildOptions(cache_from=("cache",)))
    assert "--engine docker" in refused.value.fix
    with pytest.raises(SettingRefusedError, match="--output"):
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
