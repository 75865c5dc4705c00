"""Comparing images and layers."""

from pathlib import Path

import pytest

from imagefactory.oci.compare import Difference, Opened, diff_images, diff_layouts
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.oci.image import Blob
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.oci.listing import read_listing
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan, make_image
from imagefactory.store.atomic import adopt
from imagefactory.store.cache import Store
from tests.fixtures.small_factory import CELL, SECOND, NotedReads, SmallFactory
from tests.unit.oci.test_listing import write


def file(path: str, data: bytes = b"", mode: int = 0o644) -> Entry:
    return Entry(ImagePath(path), EntryKind.FILE, mode, Bytes(data))


class Stack:
    """Makes layouts from handmade layers."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan, self.store = folder, plan, Store(folder / "stack")
        self.count = 0

    def layer(self, *entries: Entry) -> Blob:
        path = self.folder / "layer"
        blob = write(path, *entries)
        adopt(path, self.store.blob(blob.digest))
        return blob

    def image(self, *layers: list[Entry]) -> Layout:
        self.count += 1
        image = make_image(self.plan, [self.layer(*entries) for entries in layers])
        return write_layout(image, "stack", self.store, self.folder / f"image-{self.count}")


@pytest.fixture
def stack(small_factory: SmallFactory, tmp_path: Path) -> Stack:
    return Stack(tmp_path, make_plan(small_factory.project, CELL))


def differences(stack: Stack, left: Layout, right: Layout) -> list[tuple[str, str, str, str]]:
    return [(d.path, d.field, d.left, d.right) for d in diff_layouts(left, right, stack.store, NotedReads())]


def test_paths_contents_and_modes_are_compared(stack: Stack) -> None:
    left = stack.image([file("gone"), file("same"), file("mode"), file("text", b"one")])
    right = stack.image([file("new"), file("same"), file("mode", mode=0o755), file("text", b"two")])
    found = differences(stack, left, right)
    assert [row[:2] for row in found] == [
        ("gone", "presence"),
        ("mode", "mode"),
        ("new", "presence"),
        ("text", "sha256"),
    ]
    assert found[0][2:] == ("there", "missing")
    assert found[1][2:] == ("0644", "0755")


MERGED = {
    "the same layer": ([[file("a")]], [file("a")]),
    "an upper layer wins": ([[file("a", b"old"), file("b")], [file("a", b"new")]], [file("a", b"new"), file("b")]),
    "whiteouts remove": (
        [[file("kept"), file("gone"), file("folder/one/two")], [file(".wh.gone"), file(".wh.folder")]],
        [file("kept")],
    ),
    "an opaque folder hides lower layers": (
        [[file("folder/old")], [file("folder/.wh..wh..opq"), file("folder/new")]],
        [file("folder/new")],
    ),
    "a file over a folder hides its content": ([[file("thing/inside")], [file("thing")]], [file("thing")]),
}


@pytest.mark.parametrize("name", MERGED)
def test_layers_are_merged_before_they_are_compared(stack: Stack, name: str) -> None:
    layers, merged = MERGED[name]
    assert differences(stack, stack.image(*layers), stack.image(merged)) == []


def test_configurations_are_compared(small_factory: SmallFactory) -> None:
    one, other = small_factory.build(CELL, SECOND)
    found = diff_layouts(one.layout, other.layout, Store(small_factory.cache), NotedReads())
    assert "Labels imagefactory.model" in {row.field for row in found if row.path == "(config)"}
    assert Difference("opt/models/tiny/config.json", "presence", "there", "missing") in found


def folder(path: str, mode: int = 0o755) -> Entry:
    return Entry(ImagePath(path), EntryKind.DIRECTORY, mode)


BASE, OLD, NEW, TOP = (
    [file("etc/a"), file("lib/x", b"x"), folder("lib", 0o700)],
    [file("app/a", b"1"), file("app/b")],
    [file("app/a", b"2"), file("app/c")],
    [file("app/b", b"top")],
)
STACKS: dict[str, tuple[list[list[Entry]], list[list[Entry]]]] = {
    "one layer is new": ([BASE, OLD], [BASE, NEW]),
    "a shared layer on top decides": ([BASE, OLD, TOP], [BASE, NEW, TOP]),
    "a shared layer below shows through": ([TOP, [file("app/b")]], [TOP, [file("etc/z")]]),
    "a folder shows through": ([BASE, [file("app/a"), folder("lib")]], [BASE, NEW]),
    "a file of both hides a new folder": ([[file("lib/y")], [file("lib")]], [[file("etc/z")], [file("lib")]]),
    "a layer changed its place": ([BASE, TOP, OLD], [BASE, OLD, TOP]),
    "a new layer lies deeper": ([OLD, TOP, BASE], [BASE, OLD, TOP, NEW]),
    "a layer deletes what another has": ([BASE, OLD], [BASE, [file("etc/.wh.a")]]),
    "a file took a folder's place": ([BASE, [file("etc/b")]], [BASE, [file("lib")]]),
    "all are equal": ([BASE, OLD], [BASE, OLD]),
}


def whole(image: Layout) -> Opened:
    return Opened(image.config(), [read_listing(image.blob(digest)) for digest in image.layer_digests()])


@pytest.mark.parametrize("known", [True, False], ids=["known paths", "unknown paths"])
@pytest.mark.parametrize("name", STACKS)
def test_layers_that_both_images_have_are_not_read_in_vain(stack: Stack, name: str, *, known: bool) -> None:
    layers, others = STACKS[name]
    left, right, noted = stack.image(*layers), stack.image(*others), NotedReads()
    paths = {stack.layer(*entries).digest: [str(entry.path) for entry in entries] for entries in [*layers, *others]}
    found = diff_layouts(left, right, stack.store, noted, paths.get if known else lambda _: None)
    whole = [
        Opened(side.config(), [read_listing(side.blob(one)) for one in side.layer_digests()]) for side in (left, right)
    ]
    assert found == diff_images(*whole)
    reads = {"one layer is new": 2 + (not known), "all are equal": 0}
    assert len(noted.read) == reads.get(name, len(noted.read))
