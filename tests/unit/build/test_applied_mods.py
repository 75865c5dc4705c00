"""Mods are applied once per build, to files read from a remote wheel, and give what the whole wheel gives."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagefactory.build.applied_mods import WheelSource, apply_mods_of
from imagefactory.build.layers import mod_layer
from imagefactory.build.layers.mod_layer import ModFiles
from imagefactory.build.layers.wheel_excerpt import Excerpt, NoExcerptError, record_sha256
from imagefactory.errors.store import DigestMismatchError
from imagefactory.locks.files import LockedWheel, WheelLock
from imagefactory.locks.gpu_libraries import SlimLock
from imagefactory.mods.choose import Chosen
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import _mod_layers
from imagefactory.plan.plan import ModLayer, ModLink
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of
from imagefactory.store.downloads import Wanted
from imagefactory.store.indexes import WheelLocation
from images.shipped.mods.apply import Applied, Reader, apply_mods
from images.shipped.mods.manifest import Mod, Variant
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
def layers(wheel: Path, tmp_path: Path) -> list[ModLayer]:
    """Two mods of the wheel, one on top of the other."""
    locked = LockedWheel(
        name="vllm", version="1.5", file=wheel.name, sha256=sha256_of(wheel.read_bytes()),
        size=wheel.stat().st_size, unpacked=1, needed_by=("matrix.yaml",),
    )  # fmt: skip
    lock = WheelLock(
        made_from={"matrix": Sha256("0" * 64)}, version="1.5", arch="cpu", platform="linux/amd64", python="3.11",
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
    return list(_mod_layers(lock, "vllm", Chosen(chosen, ()), None))


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


def chosen_mod(link: ModLink) -> tuple[Mod, Variant]:
    return link.mod, link.mod.manifest.variants[0]


@dataclass
class Source:
    """A wheel on a server, an empty store to read it into, and what is said meanwhile."""

    wheel: Path
    store: Store
    said: list[str] = field(default_factory=list)

    def apply(
        self, layers: list[ModLayer], known: KnownLayers, server: LocalServer | None
    ) -> dict[Sha256, ModFiles]:
        wanted = Wanted(
            self.wheel.name, layers[0].inputs[0].sha256, self.wheel.stat().st_size, lambda: [str(self.wheel)]
        )
        found = offers(server, self.wheel) if server else []
        source = WheelSource(
            self.store, known, lambda _: found, lambda _: wanted, SlimLock(made_from={}), self.said.append
        )
        return apply_mods_of(layers, source, chosen_mod)


@pytest.fixture
def source(wheel: Path, tmp_path: Path) -> Source:
    return Source(wheel, Store(tmp_path / "store"))


@pytest.fixture
def from_whole(wheel: Path, layers: list[ModLayer], tmp_path: Path) -> dict[Sha256, ModFiles]:
    """The files of the layers, from a wheel that is here."""
    whole = Source(wheel, Store(tmp_path / "whole"))
    target = whole.store.download(layers[0].inputs[0].sha256)
    target.parent.mkdir(parents=True)
    target.write_bytes(wheel.read_bytes())
    return whole.apply(layers, KnownLayers(tmp_path / "none.toml"), None)


def test_a_remote_wheel_gives_what_the_whole_wheel_gives(
    source: Source,
    layers: list[ModLayer],
    known: KnownLayers,
    server: LocalServer,
    from_whole: dict[Sha256, ModFiles],
) -> None:
    files = source.apply(layers, known, server)
    assert files == from_whole
    assert files.keys() == {layer.key for layer in layers}
    assert source.said == []
    assert not source.store.download(layers[0].inputs[0].sha256).exists()
    assert sum(served.sent for served in server.log) < source.wheel.stat().st_size / 4


def test_a_chain_is_applied_once(
    source: Source,
    layers: list[ModLayer],
    known: KnownLayers,
    server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chains: list[int] = []

    def counting(chosen: Sequence[tuple[Mod, Variant]], read: Reader) -> list[Applied]:
        chains.append(len(chosen))
        return apply_mods(chosen, read)

    monkeypatch.setattr(mod_layer, "apply_mods", counting)
    source.apply(layers, known, server)
    assert chains == [len(layers)]


def test_files_read_without_a_known_record_are_compared_with_the_whole_wheel(
    source: Source,
    layers: list[ModLayer],
    server: LocalServer,
    from_whole: dict[Sha256, ModFiles],
    tmp_path: Path,
) -> None:
    wheel, files = source.wheel, source.apply(layers, KnownLayers(tmp_path / "none.toml"), server)
    sha256, key = layers[0].inputs[0].sha256, layers[0].key
    assert files[key].unconfirmed == {sha256: record_sha256(wheel)}
    assert files[key].confirmed_by({sha256: wheel}) == from_whole[key].entries
    other = tmp_path / "other.whl"
    other.write_bytes(rewritten(wheel, lambda name, data: data + b"\n" if name.endswith("/RECORD") else data))
    with pytest.raises(DigestMismatchError, match="parts of a wheel that are not in the wheel"):
        files[key].confirmed_by({sha256: other})


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
        "not the one in locks/layers.toml",
    ),
    "a file less": (
        lambda name, data: None if name == "vllm/more.so" else data,
        "name different files",
    ),
    "no RECORD": (lambda name, data: None if name.endswith("/RECORD") else data, "it has no RECORD"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_tampered_remote_wheel_is_downloaded_and_checked_as_a_whole(
    source: Source,
    layers: list[ModLayer],
    known: KnownLayers,
    from_whole: dict[Sha256, ModFiles],
    tampering: str,
) -> None:
    change, says = TAMPERINGS[tampering]
    with serving(ranges_of(rewritten(source.wheel, change))) as server:
        assert source.apply(layers, known, server) == from_whole
    [line] = source.said  # once, although two layers want it
    assert line.startswith(f"Mods need {source.wheel.name} as a whole: ")
    assert says in line
    assert source.store.download(layers[0].inputs[0].sha256).exists()


@pytest.mark.parametrize("answer", [Answer(b"x" * 2_000_000), Answer(status=404)])
def test_a_server_without_ranges_means_a_download(
    source: Source,
    layers: list[ModLayer],
    known: KnownLayers,
    from_whole: dict[Sha256, ModFiles],
    answer: Answer,
) -> None:
    with serving(lambda *_: answer) as server:
        assert source.apply(layers, known, server) == from_whole
    assert len(source.said) == 1


def test_a_wheel_on_no_index_means_a_download(
    source: Source, layers: list[ModLayer], known: KnownLayers, from_whole: dict[Sha256, ModFiles]
) -> None:
    assert source.apply(layers, known, None) == from_whole
    assert "no index offers it" in source.said[0]


def test_a_record_without_hashes_vouches_for_nothing(wheel_factory: WheelFactory) -> None:
    bare = wheel_factory(
        "bare", "1.0", files={"bare.py": ""}, record=lambda text: text.replace("sha256=", "md5=")
    )
    record = record_sha256(bare)
    assert record is not None
    with zipfile.ZipFile(bare) as archive, pytest.raises(NoExcerptError, match="no sha256"):
        Excerpt(archive, record)
