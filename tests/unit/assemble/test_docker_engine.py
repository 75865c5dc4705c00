"""The Docker engine without Docker: the command it runs, its arguments and build context, and what it refuses."""

import gc
import os
import shlex
import stat
from pathlib import Path

import pytest

from imagefactory.assemble.engines.by_name import BuildOptions, refuse_engine
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.engines.docker.build_context import copied_layers, layer_tree
from imagefactory.assemble.engines.docker.dockerfile import base_image
from imagefactory.assemble.engines.docker.engine import (
    _run,
    build_arguments,
    build_image,
    refuse_missing_buildx,
)
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.plan.make import make_plan
from imagefactory.store.cache import Store
from tests.fixtures.failures import raises
from tests.fixtures.platforms import FOREIGN, machine_of
from tests.fixtures.small_factory import CELL, RecordingWatcher, SmallFactory

AMD64 = "linux/amd64"


@pytest.mark.parametrize(("program", "says"), [(None, "no docker command"), ("exit 1", "no buildx"), ("exit 0", "")])
def test_docker_without_buildx_is_refused(
    program: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "docker").chmod(0o755)
    if says:
        with raises("engine-failed", match=says) as caught:
            refuse_missing_buildx()
        assert "docker-buildx-plugin" in caught.value.fix
    else:
        refuse_missing_buildx()


def test_build_has_no_network_and_a_fixed_time_and_hands_options_over(small_factory: SmallFactory) -> None:
    plan, base = make_plan(small_factory.project, CELL), small_factory.build()[0].layout

    def arguments(builder: str, *caches: str) -> str:
        file = Path("/b/Dockerfile")
        return shlex.join(build_arguments(plan, file, "name:tag", base, builder=builder, caches=caches))

    plain = arguments("")
    assert plain == (
        "docker buildx build --builder default --progress plain --file /b/Dockerfile "
        f"--platform {plan.platform} --tag name:tag --network none --build-arg SOURCE_DATE_EPOCH=315619200 "
        "--load --provenance=false"
    )
    caches = ["--cache-from", "a", "--cache-from", "b", "--cache-to", "type=registry,ref=c"]
    given = arguments("farm", *caches)
    layout = f"oci-layout://{base.folder}@{base.manifest_digest()}"
    assert given == (
        f"{plain.replace('--builder default', '--builder farm')} --build-context {base_image(plan.layers[0])}={layout} "
        "--cache-from a --cache-from b --cache-to type=registry,ref=c"
    )


def test_missing_daemon_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix://no-daemon")  # a whole path may be too long for a socket
    with raises("engine-failed", match="does not answer") as caught:
        daemon.ask()
    assert caught.value.why == "no-daemon: No such file or directory"
    gc.collect()  # a socket that is left open would fail the test
    assert "embedded" in caught.value.fix


def test_engine_is_found_by_name_and_takes_only_its_own_options() -> None:
    refuse_engine("docker", BuildOptions())
    refuse_engine("embedded", BuildOptions(fat=True, workers=2))
    with raises("unknown-name", match="dokcer") as caught:
        refuse_engine("dokcer", BuildOptions())
    assert "docker" in caught.value.why
    with raises("bad-setting", match="--workers"):
        refuse_engine("docker", BuildOptions(workers=1))


def test_foreign_platform_needs_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    here = daemon.Daemon("28.2.2", "amd64")
    daemon.refuse_foreign(here, AMD64)
    with raises("foreign-platform", match="linux/arm64"):
        daemon.refuse_foreign(here, "linux/arm64")
    (tmp_path / "qemu-aarch64").touch()
    daemon.refuse_foreign(here, "linux/arm64")


def test_foreign_platform_is_refused_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, small_factory: SmallFactory, tmp_path: Path
) -> None:
    monkeypatch.setattr(daemon, "EMULATORS", tmp_path)
    monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("28.2.2", machine_of(FOREIGN)))
    project = small_factory.project
    with raises("foreign-platform"):
        build_image(project, make_plan(project, CELL), RecordingWatcher(), lambda _: None)
    assert not list(small_factory.cache.rglob("*"))


@pytest.mark.parametrize("step", ["[ 2/13]", "[stage-0  2/13]"])  # an old BuildKit, and a newer one
def test_failed_build_shows_its_last_lines_and_logs_all_of_them(step: str, tmp_path: Path) -> None:
    said: list[str] = []
    script = f"echo '#5 {step} RUN --mount=type=bind,source=wheels/01-torch,target=/srv x'; echo 'uv: no'; exit 3"
    with raises("docker-build-failed") as caught:
        _run(["sh", "-c", script], tmp_path / "log", said.append)
    assert caught.value.why.endswith("uv: no")
    assert "uv: no" in (tmp_path / "log").read_text()
    assert said[1:] == ["step 2/13: wheels/01-torch"]


def test_copied_files_have_the_modes_and_times_of_the_image(small_factory: SmallFactory, tmp_path: Path) -> None:
    project = small_factory.project
    os.umask(0o077)
    for _, put in copied_layers(make_plan(project, CELL).layers, project.root):
        put(tmp_path, project.store, {})
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
    layer_tree("serve", entries)(tmp_path, Store(tmp_path / "store"), {})
    assert (tmp_path / "serve/usr/local/cuda").readlink() == Path("/opt/cuda")
