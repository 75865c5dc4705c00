"""Compares images path by path, and layers entry by entry."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import ListedPath, cached_listing, read_listing
from imagefactory.store.cache import Store

# Of the image specification (layer.md#whiteouts): the prefix of a deleted path, and what hides a folder's content.
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_FOLDER = "directory"


@dataclass(frozen=True)
class Difference:
    """A difference between two images."""

    path: str
    field: str
    left: str
    right: str
    kind: str = dataclass_field(default="", compare=False)
    """The kind of path on the right, or on the left if the right has none."""


@dataclass(frozen=True)
class Opened:
    """The configuration of an image and the listings of its layers, from any source."""

    config: Mapping[str, Any]
    layers: Sequence[Sequence[ListedPath]]  # the listing of each layer, lowest first


def diff_images(left: Layout | Opened, right: Layout | Opened, store: Store) -> list[Difference]:
    before, after = (_open(side, store) if isinstance(side, Layout) else side for side in (left, right))
    files = _diff_listings(merged(before.layers), merged(after.layers))
    return [*_diff_configs(before.config, after.config), *files]


def _open(layout: Layout, store: Store) -> Opened:
    listings = [cached_listing(layout.blob(digest), digest, store) for digest in layout.layer_digests()]
    return Opened(layout.config(), listings)


def diff_layers(left: Path, right: Path) -> list[Difference]:
    before, after = ({entry.path: entry for entry in read_listing(blob)} for blob in (left, right))
    return list(_diff_listings(before, after))


def _diff_listings(left: Mapping[str, ListedPath], right: Mapping[str, ListedPath]) -> Iterator[Difference]:
    for path in sorted(left.keys() | right.keys()):
        old, new = left.get(path), right.get(path)
        if old is None or new is None:
            before, after = ("there" if side else "missing" for side in (old, new))
            kind = next(side.kind for side in (new, old) if side is not None)
            yield Difference(path, "presence", before, after, kind)
            continue
        for field in fields(ListedPath):
            before, after = getattr(old, field.name), getattr(new, field.name)
            if before != after:
                yield Difference(path, field.name, str(before), str(after), new.kind)


def merged(layers: Iterable[Sequence[ListedPath]]) -> dict[str, ListedPath]:
    """Merge layers as an engine does: upper ones win, and whiteouts remove."""
    merged: dict[str, ListedPath] = {}
    for listing in layers:
        # First all whiteouts: they remove paths of lower layers only, wherever they are in their own.
        for entry in listing:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                _remove(merged, f"{folder}/")
            elif name.startswith(_WHITEOUT):
                gone = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                merged.pop(gone, None)
                _remove(merged, f"{gone}/")
        for entry in listing:
            if entry.path.rpartition("/")[2].startswith(_WHITEOUT):
                continue
            below = merged.get(entry.path)
            if below is not None and below.kind == _FOLDER != entry.kind:
                _remove(merged, f"{entry.path}/")
            merged[entry.path] = entry
    return merged


def _remove(merged: dict[str, ListedPath], prefix: str) -> None:
    for path in [path for path in merged if path.startswith(prefix)]:
        del merged[path]


def _diff_configs(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    for section in sorted(left.keys() | right.keys()):
        before, after = left.get(section), right.get(section)
        if section == "config" and isinstance(before, dict) and isinstance(after, dict):
            for key in sorted(before.keys() | after.keys()):
                old, new = _comparable(key, before.get(key)), _comparable(key, after.get(key))
                if old != new:
                    yield Difference("(config)", key, str(old), str(new))
        elif before != after and section not in ("rootfs", "history"):  # both follow from how layers are cut
            yield Difference("(config)", section, str(before), str(after))


def _comparable(key: str, value: object) -> object:
    """Ignore differences without meaning: the order of variables, and empty versus missing values."""
    if key == "Env" and isinstance(value, list):
        return sorted(value)
    return value or None
