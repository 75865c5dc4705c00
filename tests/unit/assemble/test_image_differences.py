"""Images read from `docker save`, and the declared differences between the engines' images."""

import gzip
import json
from collections.abc import Iterator

import pytest

from imagefactory.assemble.engines.differences import compare_named, unexpected_of
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.engines.docker.daemon import open_saved
from imagefactory.oci.compare import Difference
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.debs import link, member, tar_of
from tests.fixtures.failures import raises


def tar(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    files = [member(name, data) for name, data in members.items()]
    return tar_of([*files, *(link(name, target) for name, target in (links or {}).items())])


CONFIG = {"architecture": "amd64", "config": {"Env": ["B=2", "A=1"], "Cmd": []}, "created": "2026"}
ONE, TWO = tar({"etc/a": b"a", "etc/b": b"b"}), tar({"etc/a": b"new", "etc/.wh.b": b""})


def of_an_old_daemon() -> bytes:
    manifest = [{"Config": "c.json", "Layers": ["1/layer.tar", "2/layer.tar", "3/layer.tar"]}]
    members = {
        "1/VERSION": b"1.0",
        "1/layer.tar": ONE,
        "2/layer.tar": TWO,
        "c.json": json.dumps(CONFIG).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    return tar(members, {"3/layer.tar": "../2/layer.tar"})


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
    return tar(members)


def chunks(data: bytes, size: int = 700) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("saved", [of_an_old_daemon(), of_a_new_daemon()], ids=["layer.tar", "blobs"])
def test_saved_image_is_read_from_its_stream(saved: bytes) -> None:
    image = open_saved(chunks(saved), "x")
    assert image.config == CONFIG
    assert [[(entry.path, entry.mode) for entry in layer] for layer in image.layers[:2]] == [
        [("etc/a", "0644"), ("etc/b", "0644")],
        [("etc/a", "0644"), ("etc/.wh.b", "0644")],
    ]


@pytest.mark.parametrize(
    "saved",
    [
        b"",
        b"not a tar" * 100,
        of_an_old_daemon()[:3000],
        tar({"manifest.json": b"[]"}),
        tar({"manifest.json": b"[{"}),
    ],
    ids=["empty", "no tar", "cut", "no image", "no JSON"],
)
def test_stream_without_an_image_is_an_error(saved: bytes) -> None:
    with raises("damaged-file", match="x cannot be read"):
        open_saved(chunks(saved), "x")


def test_image_that_docker_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "image_id", lambda _: None)
    with raises("no-image", match="nothing:here"):
        compare_named(Project(REPOSITORY), "nothing:here", "nothing:there")


SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (Difference("(config)", "created", "a", "b"), True),
        (Difference("usr/share", "mtime", "1", "2", "directory"), True),
        (Difference(f"{SITE}/a-1.dist-info/INSTALLER", "sha256", "a", "b", "file"), True),
        (Difference(f"{SITE}/a-1.dist-info/RECORD", "size", "1", "2", "file"), True),
        (Difference("opt/venv/bin/vllm", "size", "120", "300", "file"), True),
        (Difference("(config)", "Entrypoint", "a", "b"), False),
        (Difference("usr/share/a", "mtime", "1", "2", "file"), False),
        (Difference(f"{SITE}/a-1.dist-info/RECORD", "presence", "there", "missing", "file"), False),
        (Difference(f"{SITE}/a-1.dist-info/METADATA", "sha256", "a", "b", "file"), False),
        (Difference(f"{SITE}/vllm/_C.so", "sha256", "a", "b", "file"), False),
        (Difference("opt/venv/bin/ninja", "size", "200000", "300000", "file"), False),
        (Difference("opt/venv/bin/vllm", "mode", "0755", "0644", "file"), False),
    ],
    ids=lambda value: f"{value.path} {value.field}" if isinstance(value, Difference) else "",
)
def test_only_differences_of_engines_are_expected(difference: Difference, *, expected: bool) -> None:
    assert unexpected_of([difference]) == ([] if expected else [difference])
