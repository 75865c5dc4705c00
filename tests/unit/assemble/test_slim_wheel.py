"""Wheel layers without the GPU code that a chip cannot load."""

import csv
import io
import json
import random
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.assemble.applied_mods import InstalledWheel
from imagefactory.assemble.layers.layer_blob import LayerWork, build_layer
from imagefactory.assemble.layers.slim_wheel import NOTE, Slimmer
from imagefactory.oci.entry import read_content
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import read_slimmed
from imagefactory.plan.plan import Environment, Input, SlimSettings, WheelLayer, WheelSettings
from imagefactory.project.locks.kernels import SlimmedWheel
from imagefactory.store.atomic import adopt
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.fatbins import Entry, container, library
from tests.fixtures.wheels import make_wheel

SITE = "opt/venv/lib/python3.13/site-packages"
NOISE = random.Random(3).randbytes(100_000)
FOREIGN, OWN = b"\x28\xb5\x2f\xfd" + NOISE, b"\x28\xb5\x2f\xfd" + NOISE[::-1]
LIBRARY = library(b"code" * 9000, container(Entry("sm_90", FOREIGN), Entry("sm_121a", OWN)), b"data")
SLIM = LIBRARY.replace(FOREIGN, bytes(len(FOREIGN)))
ODD = library(container(Entry("sm_90", FOREIGN), size=7))
FILES: dict[str, bytes | str] = {
    "gpu/__init__.py": "",
    "gpu/_C.abi3.so": LIBRARY,
    "gpu/libodd.so.1": ODD,
    "gpu/small.so": library(container("sm_90")),
    "gpu/data.bin": LIBRARY,
}
SETTINGS = SlimSettings(chip="12.1", rule=1)


@dataclass
class Bench:
    """A store with one wheel."""

    store: Store
    item: Input

    def layer(self, slim: SlimSettings | None = SETTINGS) -> WheelLayer:
        return WheelLayer.of("wheel", "gpu", [self.item], WheelSettings(python="3.13", venv="opt/venv", slim=slim))

    def build(self, *, slimmed: tuple[SlimmedWheel, ...] = (), expected: Blob | None = None) -> Blob:
        files = {self.item.sha256: self.store.download(self.item.sha256)}
        work = LayerWork(self.layer(), files, slimmed=slimmed, expected=expected)
        return build_layer(work, self.store, lambda _: None)

    def files(self, blob: Blob) -> dict[str, bytes]:
        with tarfile.open(self.store.blob(blob.digest)) as tar:
            members = [member for member in tar if member.isfile()]
            return {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]

    @property
    def record(self) -> SlimmedWheel:
        [record] = read_slimmed(self.layer().key, self.store)
        return record


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    wheel = make_wheel(tmp_path, "gpu", files=FILES, tag="py3-none-manylinux_2_28_aarch64")
    store = Store(tmp_path / "store")
    sha256 = sha256_of(wheel.read_bytes())
    name = wheel.name
    adopt(wheel, store.download(sha256))
    return Bench(store, Input(name=name, sha256=sha256))


def test_only_code_for_other_chips_is_overwritten_and_a_note_tells_what(bench: Bench) -> None:
    files = bench.files(bench.build())
    assert files[f"{SITE}/gpu/_C.abi3.so"] == SLIM
    for untouched in ("gpu/libodd.so.1", "gpu/small.so", "gpu/data.bin"):
        expected = FILES[untouched]
        assert files[f"{SITE}/{untouched}"] == expected, untouched
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(files[f"{SITE}/gpu-1.0.dist-info/RECORD"].decode()))}
    note = json.loads(files[f"{SITE}/gpu-1.0.dist-info/{NOTE}"])
    assert f"gpu-1.0.dist-info/{NOTE}" in rows
    assert note == bench.record.model_dump(mode="json")
    [slimmed] = note["libraries"]
    assert slimmed["published"] == sha256_of(LIBRARY)
    assert slimmed["sha256"] == sha256_of(SLIM)
    assert (slimmed["kept"], slimmed["blanked"]) == ({"sm_121a": len(OWN)}, {"sm_90": len(FOREIGN)})
    [odd] = note["untouched"]
    assert (odd["path"], "ends within" in odd["why"]) == ("gpu/libodd.so.1", True)


def test_layer_is_the_same_with_and_without_a_record(bench: Bench) -> None:
    first = bench.build()
    record = bench.record
    assert bench.build(slimmed=(record,)) == first
    assert bench.build(slimmed=(record,), expected=first) == first
    assert first.size < bench.store.download(bench.item.sha256).stat().st_size - len(FOREIGN) / 2


def test_wrong_record_is_named(bench: Bench) -> None:
    first = bench.build()
    [library_] = bench.record.libraries
    wrong = library_.model_copy(update={"sha256": Sha256("0" * 64)})
    lying = bench.record.model_copy(update={"libraries": (wrong,)})
    for expected in (None, first):
        with raises("wrong-slimming", match=r"_C\.abi3\.so does not come out as recorded"):
            bench.build(slimmed=(lying,), expected=expected)


def test_record_of_a_wheel_without_gpu_code_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.build()
    wheel = make_wheel(tmp_path / "plain", "plain", files={"plain/x.so": library(b"code" * 90_000)})
    plain = Bench(bench.store, Input(name=wheel.name, sha256=sha256_of(wheel.read_bytes())))
    adopt(wheel, bench.store.download(plain.item.sha256))
    lying = bench.record.model_copy(update={"file": wheel.name, "sha256": plain.item.sha256})
    with raises("wrong-slimming", match=r"_C\.abi3\.so does not come out as recorded"):
        plain.build(slimmed=(lying,))


def test_record_belongs_to_one_chip_and_rule(bench: Bench) -> None:
    first = bench.build()
    other = bench.record.model_copy(update={"chip": "9.0", "libraries": ()})
    assert bench.build(slimmed=(other,)) == first
    keys = {bench.layer(slim).key for slim in (None, SETTINGS, SlimSettings(chip="9.0", rule=1))}
    assert len(keys | {bench.layer(SlimSettings(chip="12.1", rule=2)).key}) == 4


def test_mods_see_the_libraries_as_they_are_in_the_image(bench: Bench) -> None:
    """Mods rewrite RECORD, from a wheel of which they read a few files only."""
    bench.build()
    environment = Environment(venv="opt/venv", python="3.13")
    wheel = bench.store.download(bench.item.sha256)
    slimmer = Slimmer(bench.item, SETTINGS, bench.record, believed=True)
    tree = InstalledWheel(wheel, bench.item.name, environment, slimmer=slimmer)
    content = tree.updated_record({"gpu/__init__.py": "changed\n"}).content
    files = bench.files(bench.build())
    original = files[f"{SITE}/gpu-1.0.dist-info/RECORD"].decode().splitlines()
    updated = read_content(content).decode().splitlines()
    assert [row for row in updated if row not in original] == [
        row for row in updated if row.startswith("gpu/__init__.py,")
    ]
