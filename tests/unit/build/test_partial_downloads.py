"""Excerpts: a mod's layer from a few files of a wheel is the layer from the whole wheel, or there is none."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagefactory.build.layers.layer_blob import build_layer
from imagefactory.build.layers.wheel_excerpt import Excerpt, NoExcerptError, record_sha256
from imagefactory.build.partial_downloads import take_excerpts
from imagefactory.locks.files import LockedWheel, WheelLock
from imagefactory.mods.choose import Chosen
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import _mod_layers
from imagefactory.plan.plan import Layer, WheelLayer, WheelSettings
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of
from imagefactory.store.indexes import WheelLocation
from tests.fixtures.mods import edit, has, make_mod, manifest
from tests.fixtures.servers import Answer, LocalServer, serving
from tests.fixtures.small_factory import noise
from tests.fixtures.wheels import WheelFactory

FILES: dict[str, bytes | str] = {
    "vllm/__init__.py": "",
    "vllm/x.py": "one = 1\ntwo = 2\n",
    "vllm/kernels.so": noise(3_000_000),
    "vllm/more.so": noise(3_000_000, 2),
    "vllm-1.5.data/scripts/tool": "#!python\nprint(1)\n",
    "vllm-1.5.data/data/share/manual.txt": "read me\n",
}


@pytest.fixture
def wheel(wheel_factory: WheelFactory) -> Path:
    return wheel_factory("vllm", "1.5", files=FILES, entry_points={"vllm": "vllm:main"})


@pytest.fixture
def layers(wheel: Path, tmp_path: Path) -> list[Layer]:
    """Two mods of the wheel, one on top of the other."""
    locked = LockedWheel(
        name="vllm", version="1.5", file=wheel.name, sha256=sha256_of(wheel.read_bytes()),
        size=wheel.stat().st_size, unpacked=1, needed_by=("matrix.yaml",),
    )  # fmt: skip
    lock = WheelLock(
        made_from={"matrix": Sha256("0" * 64)}, vllm="1.5", arch="cpu", platform="linux/amd64", python="3.11",
        kernels="upstream", wheels=(locked,),
    )  # fmt: skip
    chosen = tuple(
        make_mod(
            tmp_path / "mods",
            manifest(
                name, edit("vllm/x.py", anchor, after=f"# {name}\n"), checks=[has("vllm/x.py", f"# {name}")]
            ),
        )
        for name, anchor in (("first", "one = 1\n"), ("second", "two = 2\n"))
    )
    return list(_mod_layers(lock, "vllm", Chosen(chosen, ())))


@pytest.fixture
def known(wheel: Path, tmp_path: Path) -> KnownLayers:
    """A record that was written when the wheel was here."""
    record = record_sha256(wheel)
    assert record is not None
    file = KnownLayers(tmp_path / "layers.toml")
    file.record({}, (), {sha256_of(wheel.read_bytes()): (wheel.name, record)})
    return KnownLayers(tmp_path / "layers.toml")


def ranges_of(data: bytes) -> Callable[[str, dict[str, str]], Answer]:
    """Answer range requests for one file."""

    def answer(_: str, headers: dict[str, str]) -> Answer:
        first, _, last = headers["range"].removeprefix("bytes=").partition("-")
        begin = len(data) - int(last) if not first else int(first)
        end = len(data) if not first or not last else int(last) + 1
        span = {"Content-Range": f"bytes {max(begin, 0)}-{end - 1}/{len(data)}"}
        return Answer(data[max(begin, 0) : end], 206, span)

    return answer


@pytest.fixture
def server(wheel: Path) -> Iterator[LocalServer]:
    with serving(ranges_of(wheel.read_bytes())) as running:
        yield running


def offers(server: LocalServer, wheel: Path) -> list[WheelLocation]:
    return [WheelLocation(file=wheel.name, url=f"{server.url}/{wheel.name}", sha256=None)]


def build(layer: Layer, store: Store) -> object:
    files = {item.sha256: store.input(layer.key, item.sha256) for item in layer.inputs}
    return build_layer(layer, files, store, lambda _: None)


def test_a_layer_from_an_excerpt_is_the_layer_from_the_wheel(
    layers: list[Layer], known: KnownLayers, wheel: Path, server: LocalServer, tmp_path: Path
) -> None:
    whole, part = Store(tmp_path / "whole"), Store(tmp_path / "part")
    target = whole.download(layers[0].inputs[0].sha256)
    target.parent.mkdir(parents=True)
    target.write_bytes(wheel.read_bytes())
    said: list[str] = []
    take_excerpts(layers, known, part, lambda _: offers(server, wheel), said.append)
    assert said == []
    for layer in layers:
        assert build(layer, part) == build(layer, whole)
    assert not part.download(layers[0].inputs[0].sha256).exists()
    assert sum(served.sent for served in server.log) < wheel.stat().st_size / 4


def test_a_wheel_that_something_else_needs_is_not_read_twice(
    layers: list[Layer], known: KnownLayers, wheel: Path, server: LocalServer, tmp_path: Path
) -> None:
    own = WheelLayer.of("wheel", "vllm", layers[0].inputs, WheelSettings(python="3.11", venv="opt/venv"))
    take_excerpts([own, *layers], known, Store(tmp_path), lambda _: offers(server, wheel), pytest.fail)
    assert server.log == []


def test_without_a_record_nothing_is_read_in_places(
    layers: list[Layer], wheel: Path, server: LocalServer, tmp_path: Path
) -> None:
    unknown = KnownLayers(tmp_path / "none.toml")
    take_excerpts(layers, unknown, Store(tmp_path), lambda _: offers(server, wheel), pytest.fail)
    assert server.log == []
    assert not Store(tmp_path).excerpt(layers[0].key, layers[0].inputs[0].sha256).exists()


def rewritten(wheel: Path, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """Write a wheel again with other members; None leaves one out."""
    out = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return out.getvalue()


TAMPERINGS: dict[str, tuple[Callable[[str, bytes], bytes | None], str]] = {
    "another file": (
        lambda name, data: b"one = 1\ntwo = 3\n" if name == "vllm/x.py" else data,
        "vllm/x.py is not what RECORD says",
    ),
    "another RECORD": (
        lambda name, data: data + b"\n" if name.endswith("/RECORD") else data,
        "not the one that was written down",
    ),
    "a file less": (
        lambda name, data: None if name == "vllm/more.so" else data,
        "name different files",
    ),
    "no RECORD": (lambda name, data: None if name.endswith("/RECORD") else data, "it has no RECORD"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_an_index_that_offers_something_else_is_not_believed(
    layers: list[Layer], known: KnownLayers, wheel: Path, tmp_path: Path, tampering: str
) -> None:
    change, says = TAMPERINGS[tampering]
    said: list[str] = []
    with serving(ranges_of(rewritten(wheel, change))) as server:
        take_excerpts(layers, known, Store(tmp_path), lambda _: offers(server, wheel), said.append)
    [line] = said  # once, although two layers want it
    assert line.startswith(f"{wheel.name} has to be downloaded: ")
    assert says in line
    assert not list(tmp_path.rglob("excerpts/*/*"))


@pytest.mark.parametrize("answer", [Answer(b"x" * 2_000_000), Answer(status=404)])
def test_a_server_without_ranges_means_a_download(
    layers: list[Layer], known: KnownLayers, wheel: Path, tmp_path: Path, answer: Answer
) -> None:
    said: list[str] = []
    with serving(lambda *_: answer) as server:
        take_excerpts(layers, known, Store(tmp_path), lambda _: offers(server, wheel), said.append)
    assert len(said) == 1


def test_a_wheel_on_no_index_means_a_download(
    layers: list[Layer], known: KnownLayers, tmp_path: Path
) -> None:
    said: list[str] = []
    take_excerpts(layers, known, Store(tmp_path), lambda _: [], said.append)
    assert "no index offers it" in said[0]


def test_a_record_without_hashes_vouches_for_nothing(wheel_factory: WheelFactory) -> None:
    bare = wheel_factory(
        "bare", "1.0", files={"bare.py": ""}, record=lambda text: text.replace("sha256=", "md5=")
    )
    record = record_sha256(bare)
    assert record is not None
    with zipfile.ZipFile(bare) as archive, pytest.raises(NoExcerptError, match="no sha256"):
        Excerpt(archive, record)
