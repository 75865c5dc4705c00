"""The Docker engine without Docker: which command is used, with which words, and what is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException

from imagefactory.build.engines.by_name import ENGINES, engine_named
from imagefactory.build.engines.differences import DECLARED, compare_named, undeclared
from imagefactory.build.engines.docker import daemon
from imagefactory.build.engines.docker.build_context import layer_tree
from imagefactory.build.engines.docker.buildx import (
    Builder,
    build_arguments,
    find_builder,
    refuse_unsupported,
)
from imagefactory.build.engines.docker.dockerfile import plan_context
from imagefactory.build.engines.docker.engine import _run, build_image
from imagefactory.build.engines.docker.saved_image import open_saved
from imagefactory.build.engines.options import BuildOptions
from imagefactory.errors.docker import (
    BuilderMissingError,
    EngineTooOldError,
    ForeignPlatformError,
    ImageBuildError,
)
from imagefactory.errors.layers import DamagedFileError, EngineError, ImageMissingError
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.serving import SettingRefusedError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.compare import Difference, diff_images
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.make import make_plan
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.small_factory import Silence

AMD64 = "linux/amd64"
TINY = Cell("tiny", "0.32.0", "cpu", AMD64)
BUILDX = """
case "$2" in
  version) echo v0.20 ;;
  inspect) {inspect} ;;
  ls) printf 'NAME/NODE DRIVER\\nfarm* docker-container\\n \\\\_ farm0 x\\ndefault docker\\n' ;;
esac
"""
FARM = 'printf "Name: farm\\nDriver: docker-container\\nPlatforms: linux/arm64*, linux/amd64\\n"'
Docker = Callable[..., Path]


@pytest.fixture
def fake_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """Make docker commands that answer as told, in folders that are PATH from then on."""
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


@pytest.mark.usefixtures("fake_docker")
def test_without_a_docker_command_there_is_an_error_that_says_so() -> None:
    with pytest.raises(EngineError, match="no docker command"):
        find_builder(None, AMD64)


def test_an_old_command_builds_with_its_own_buildkit(fake_docker: Docker) -> None:
    command = fake_docker("20.10.24")
    builder = find_builder(None, AMD64)
    assert builder == Builder((str(command), "build"), buildx=False)
    assert builder.environment["DOCKER_BUILDKIT"] == "1"


def test_a_new_command_without_buildx_is_passed_over_for_an_older_one(fake_docker: Docker) -> None:
    fake_docker("28.2.2")
    old = fake_docker("20.10.24")
    assert find_builder(None, AMD64).command[0] == str(old)


def test_a_new_command_without_buildx_alone_cannot_build(fake_docker: Docker) -> None:
    fake_docker("28.2.2")
    with pytest.raises(EngineTooOldError, match="BuildKit") as caught:
        find_builder(None, AMD64)
    assert "buildx" in caught.value.fix


def test_buildx_is_preferred_wherever_it_is(fake_docker: Docker) -> None:
    fake_docker("20.10.24")
    other = fake_docker("27.0.1", FARM)
    builder = find_builder("farm", AMD64)
    assert builder == Builder(
        (str(other), "buildx", "build"), buildx=True, name="farm", driver="docker-container"
    )
    assert builder.is_remote


def test_a_builder_needs_buildx(fake_docker: Docker) -> None:
    fake_docker("20.10.24")
    with pytest.raises(EngineTooOldError, match="--builder"):
        find_builder("farm", AMD64)


def test_a_builder_that_does_not_exist_is_named_with_those_that_do(fake_docker: Docker) -> None:
    fake_docker("27.0.1", 'echo "ERROR: no builder \\"frm\\" found" >&2; exit 1')
    with pytest.raises(BuilderMissingError, match="frm") as caught:
        find_builder("frm", AMD64)
    assert "no builder" in caught.value.why
    assert "default, farm" in caught.value.fix


def test_a_builder_for_other_machines_is_refused(fake_docker: Docker) -> None:
    fake_docker("27.0.1", 'printf "Driver: docker\\nPlatforms: linux/arm64\\n"')
    with pytest.raises(ForeignPlatformError, match=AMD64):
        find_builder(None, AMD64)


def arguments(builder: Builder, **options: Any) -> list[str]:
    given: dict[str, Any] = {"base": None} | options
    return build_arguments(
        builder,
        dockerfile=Path("/b/Dockerfile"),
        context=Path("/b/context"),
        platform=AMD64,
        tag="name:tag",
        epoch=315619200,
        **given,
    )


OLD = Builder(("docker", "build"), buildx=False)
NEW = Builder(("docker", "buildx", "build"), buildx=True, name="farm", driver="kubernetes")


def test_a_build_has_no_network_and_a_fixed_time() -> None:
    line = shlex.join(arguments(OLD))
    assert line == (
        "docker build --file /b/Dockerfile --platform linux/amd64 --tag name:tag --network none "
        "--build-arg SOURCE_DATE_EPOCH=315619200 /b/context"
    )


def test_a_builder_elsewhere_gets_the_base_as_a_layout_and_hands_the_image_over() -> None:
    line = shlex.join(arguments(NEW, base=("imagefactory/base:1", "/b/base@sha256:2")))
    assert "--load --provenance=false --builder farm" in line
    assert "--build-context imagefactory/base:1=oci-layout:///b/base@sha256:2" in line


def test_a_name_is_a_cache_in_a_registry_and_anything_else_is_taken_as_it_is() -> None:
    line = shlex.join(arguments(NEW, cache_from=["r/cache", "type=local,src=c"], cache_to=["r/cache"]))
    assert "--cache-from type=registry,ref=r/cache --cache-from type=local,src=c" in line
    assert "--cache-to type=registry,ref=r/cache,mode=max" in line


def test_without_buildx_a_cache_can_be_read_and_not_written() -> None:
    assert "--cache-from r/cache" in shlex.join(arguments(OLD, cache_from=["r/cache"]))
    with pytest.raises(EngineTooOldError, match="--cache-to"):
        refuse_unsupported(OLD, ["r/cache"])
    refuse_unsupported(NEW, ["r/cache"])


def a_daemon(version: str, machine: str) -> SimpleNamespace:
    return SimpleNamespace(version=lambda: {"Version": version, "Arch": machine}, close=lambda: None)


@pytest.mark.parametrize("version", ["19.03.15", "18.09"])
def test_a_daemon_that_cannot_mount_wheels_is_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = a_daemon(version, "amd64")
    monkeypatch.setattr("docker.from_env", lambda **_: said)
    with pytest.raises(EngineTooOldError, match=version):
        daemon.ask()


def test_a_daemon_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = a_daemon("20.10.24+dfsg1", "arm64")
    monkeypatch.setattr("docker.from_env", lambda **_: said)
    assert daemon.ask() == daemon.Daemon("20.10.24+dfsg1", "arm64")


def test_without_a_daemon_there_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise DockerException("Connection refused")

    monkeypatch.setattr("docker.from_env", fail)
    with pytest.raises(EngineError, match="does not answer") as caught:
        daemon.ask()
    assert caught.value.why == "Connection refused"
    assert "embedded" in caught.value.fix


def test_a_foreign_platform_needs_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    here = daemon.Daemon("20.10", "amd64")
    daemon.refuse_foreign(here, AMD64)
    with pytest.raises(ForeignPlatformError, match="linux/arm64"):
        daemon.refuse_foreign(here, "linux/arm64")
    (tmp_path / "qemu-aarch64").touch()
    daemon.refuse_foreign(here, "linux/arm64")


def test_a_foreign_platform_is_refused_before_anything_is_fetched(
    fake_docker: Docker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_docker("20.10.24")
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("20.10.24", "amd64"))
    project = Project(REPOSITORY, Store(tmp_path / "store"))
    plan = make_plan(project, Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64"))
    with pytest.raises(ForeignPlatformError):
        build_image(project, plan, BuildOptions(), Silence(), lambda _: None)
    assert not list((tmp_path / "store").rglob("*"))


@pytest.mark.parametrize("step", ["[ 2/13]", "[stage-0  2/13]"])  # an old BuildKit, and a newer one
def test_a_failed_build_shows_its_last_lines_and_keeps_all_of_them(step: str, tmp_path: Path) -> None:
    said: list[str] = []
    script = (
        f"echo '#5 {step} RUN --mount=type=bind,source=wheels/01-torch,target=/srv x'; echo 'uv: no'; exit 3"
    )
    with pytest.raises(ImageBuildError) as caught:
        _run(["sh", "-c", script], OLD, tmp_path / "log", said.append)
    assert caught.value.why.endswith("uv: no")
    assert "uv: no" in (tmp_path / "log").read_text()
    assert said[1:] == ["step 2/13: wheels/01-torch"]


def test_engines_are_named_and_take_their_own_options_only() -> None:
    assert engine_named("docker", BuildOptions(builder="farm")) is ENGINES["docker"]
    assert engine_named("embedded", BuildOptions(locked=True, workers=2)) is ENGINES["embedded"]
    with pytest.raises(UnknownNameError, match="dokcer") as caught:
        engine_named("dokcer", BuildOptions())
    assert "docker" in caught.value.why
    with pytest.raises(SettingRefusedError, match="--cache-from") as refused:
        engine_named("embedded", BuildOptions(cache_from=("cache",)))
    assert "--engine docker" in refused.value.fix
    with pytest.raises(SettingRefusedError, match="--output"):
        engine_named("docker", BuildOptions(output=Path("there")))


def test_every_option_is_for_some_engine() -> None:
    taken = [option for engine in ENGINES.values() for option in engine.takes]
    assert sorted(taken) == sorted(field.name for field in fields(BuildOptions))


# --- docker save ---------------------------------------------------------------------------------


def tar_of(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o100644
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return buffer.getvalue()


CONFIG = {"architecture": "amd64", "config": {"Env": ["B=2", "A=1"], "Cmd": []}, "created": "2026"}
ONE, TWO = tar_of({"etc/a": b"a", "etc/b": b"b"}), tar_of({"etc/a": b"new", "etc/.wh.b": b""})


def of_an_old_daemon() -> bytes:
    manifest = [{"Config": "c.json", "Layers": ["1/layer.tar", "2/layer.tar", "3/layer.tar"]}]
    members = {
        "1/VERSION": b"1.0",
        "1/layer.tar": ONE,
        "2/layer.tar": TWO,
        "c.json": json.dumps(CONFIG).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    return tar_of(members, {"3/layer.tar": "../2/layer.tar"})


def of_a_new_daemon() -> bytes:
    manifest = [{"Config": "blobs/sha256/c", "Layers": ["blobs/sha256/1", "blobs/sha256/2"]}]
    members = {
        "blobs/sha256/1": gzip.compress(ONE),
        "blobs/sha256/2": TWO,
        "blobs/sha256/c": json.dumps(CONFIG).encode(),
        "index.json": b"{}",
        "manifest.json": json.dumps(manifest).encode(),
        "oci-layout": b"{}",
    }
    return tar_of(members)


def chunks(data: bytes, size: int = 700) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("saved", [of_an_old_daemon(), of_a_new_daemon()], ids=["layer.tar", "blobs"])
def test_what_docker_saves_is_read_as_it_comes(saved: bytes) -> None:
    image = open_saved(chunks(saved), "x")
    assert image.config == CONFIG
    assert [[(entry.path, entry.mode) for entry in layer] for layer in image.layers[:2]] == [
        [("etc/a", "0644"), ("etc/b", "0644")],
        [("etc/a", "0644"), ("etc/.wh.b", "0644")],
    ]


def test_both_formats_hold_the_same_image(tmp_path: Path) -> None:
    one, other = (open_saved(chunks(saved), "x") for saved in (of_an_old_daemon(), of_a_new_daemon()))
    assert diff_images(one, other, Store(tmp_path)) == []


@pytest.mark.parametrize(
    "saved",
    [
        b"",
        b"not a tar" * 100,
        of_an_old_daemon()[:3000],
        tar_of({"manifest.json": b"[]"}),
        tar_of({"manifest.json": b"[{"}),
    ],
    ids=["empty", "no tar", "cut", "no image", "no JSON"],
)
def test_a_stream_that_is_no_image_is_an_error(saved: bytes) -> None:
    with pytest.raises(DamagedFileError, match="x cannot be read"):
        open_saved(chunks(saved), "x")


def test_an_image_that_docker_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "image_id", lambda _: None)
    with pytest.raises(ImageMissingError, match="nothing:here"):
        compare_named(Project(REPOSITORY), "nothing:here", "nothing:there")


# --- declared differences ------------------------------------------------------------------------

SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    "difference",
    [
        Difference("(config)", "created", "a", "b"),
        Difference("usr/share", "mtime", "1", "2", "directory"),
        Difference(f"{SITE}/a-1.dist-info/INSTALLER", "sha256", "a", "b", "file"),
        Difference(f"{SITE}/a-1.dist-info/RECORD", "size", "1", "2", "file"),
        Difference("opt/venv/bin/vllm", "size", "120", "300", "file"),
    ],
    ids=lambda difference: difference.path,
)
def test_what_is_declared_is_no_surprise(difference: Difference) -> None:
    assert undeclared([difference]) == []


@pytest.mark.parametrize(
    "difference",
    [
        Difference("(config)", "Entrypoint", "a", "b"),
        Difference("usr/share/a", "mtime", "1", "2", "file"),
        Difference(f"{SITE}/a-1.dist-info/RECORD", "presence", "there", "missing", "file"),
        Difference(f"{SITE}/a-1.dist-info/METADATA", "sha256", "a", "b", "file"),
        Difference(f"{SITE}/vllm/_C.so", "sha256", "a", "b", "file"),
        Difference("opt/venv/bin/ninja", "size", "200000", "300000", "file"),
        Difference("opt/venv/bin/vllm", "mode", "0755", "0644", "file"),
    ],
    ids=lambda difference: f"{difference.path} {difference.field}",
)
def test_everything_else_is_one(difference: Difference) -> None:
    assert undeclared([difference]) == [difference]


def test_every_declared_difference_is_explained_in_the_documentation() -> None:
    text = " ".join((REPOSITORY / "docs" / "engines.md").read_text("utf-8").split())
    assert [line.reason for line in DECLARED if line.reason not in text] == []


# --- the build context ---------------------------------------------------------------------------


def test_copied_files_have_the_modes_and_times_of_the_image(tmp_path: Path) -> None:
    project = Project(REPOSITORY, Store(tmp_path / "store"))
    context = plan_context(project, make_plan(project, TINY))
    os.umask(0o077)
    for piece in context.pieces:
        if piece.files[0]["path"].startswith(("serve/", "model/")):
            piece.put(tmp_path, project.store)
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
    tree.put(tmp_path, Store(tmp_path / "store"))
    assert (tmp_path / "serve/usr/local/cuda").readlink() == Path("/opt/cuda")
    assert [file.get("link_to") for file in tree.files] == [None, "/opt/cuda"]


def test_mods_are_described_by_what_they_are_made_from() -> None:
    project = Project(REPOSITORY)
    plan = make_plan(project, Cell("gemma4-31b", "0.20.2", "gb10", "linux/arm64"))
    files = [file for piece in plan_context(project, plan).pieces for file in piece.files]
    mods = [file for file in files if file["path"].startswith("mods/")]
    assert mods
    for file in mods:
        assert file["changes"]
        assert file["made_from"][0]["name"].startswith("vllm-0.20.2")
