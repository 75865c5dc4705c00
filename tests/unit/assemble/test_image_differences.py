"""Images read from `docker save`, and the declared differences between the engines' images."""

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException

from imagefactory.assemble.engines.differences import Pair, Summary, unexpected_of
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.engines.docker.daemon import open_saved
from imagefactory.oci.compare import Difference
from imagefactory.oci.layout import Layout
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.debs import link, member, tar_of
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, NotedReads, SmallFactory


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
    monkeypatch.setattr(daemon, "inspect", lambda _: None)
    with raises("no-image", match="nothing:here"):
        Pair.named(Project(REPOSITORY), "nothing:here", "nothing:there")


def test_one_image_is_never_read_and_of_two_first_the_layers_and_packages_are_told(
    small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = small_factory.build(CELL, SECOND)
    monkeypatch.setattr(daemon, "inspect", lambda _: {"Id": one.image.config_digest})
    noted = NotedReads()
    for name in (str(one.layout.folder), "small:loaded"):
        pair = Pair.named(small_factory.project, str(one.layout.folder), name)
        assert (pair.summary, pair.compare(noted)) == (None, ([], []))
    pair = Pair.named(small_factory.project, str(one.layout.folder), str(other.layout.folder))
    assert noted.read == []
    assert pair.summary is not None
    last = [plan.layers[-1] for plan in (one.plan, other.plan)]
    assert {row[0] for row in pair.summary.layers} == {f"model {layer.name}" for layer in last}
    assert pair.summary.equal == len(one.plan.layers) - 1
    assert pair.compare(noted)[0]
    assert {*noted.read} >= {f"model {layer.name}" for layer in last}


def test_packages_of_other_versions_are_told(small_factory: SmallFactory) -> None:
    [one] = small_factory.build()
    plan = one.plan.model_dump_json().replace("platform-3.0", "platform-4.0")
    other = small_factory.root / "other"
    shutil.copytree(one.layout.folder, other)
    (other / "plan.json").write_text(plan)
    assert ("platform", "3.0", "4.0") in Summary.of(one.layout, Layout(other)).packages


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


class Client:
    """A daemon that takes an image, and reports what it unpacks."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers, self.api, self.images, self.sent = answers, self, self, 0

    def ping(self) -> None: ...

    def load_image(self, stream: Iterator[bytes], *, quiet: bool) -> Iterator[dict[str, Any]]:
        assert not quiet
        self.sent = sum(map(len, stream))
        return iter(self.answers)

    def get(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(id="sha256:1")


def test_a_load_tells_what_was_sent_and_unpacked(small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    [built] = small_factory.build()
    total, told = built.layout.size(), list[tuple[str, int, int]]()
    progress = [{"id": name, "progressDetail": {"current": 7, "total": 9}} for name in ("a", "a", "b")]
    client = Client([{"status": "Loading"}, {"progressDetail": {}}, *progress])
    monkeypatch.setattr(daemon, "client_for", lambda *_: nullcontext(client))
    assert daemon.load(built.layout, "x", lambda *report: told.append(report)) == "sha256:1"
    assert [row[1] for row in told if row[0] == "sending"][-1] == client.sent > total
    assert [row[1:] for row in told if row[0] == "unpacking"] == [(7, total), (7, total), (14, total)]
    client.answers = [{"error": "no space left"}]
    with pytest.raises(DockerException, match="no space left"):
        daemon.load(built.layout, "x")
