"""Compares images path by path, and layers entry by entry."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol

from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import ListedPath, cached_listing, read_listing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest

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


class ReadWatcher(Protocol):
    """Receives the progress of reading layers."""

    def blobs(self, labels: Mapping[Digest, str]) -> None:
        """Announce the layers to read; replaces an earlier list."""

    def state(self, key: Digest, state: Literal["reading", "read"], done: int, total: int) -> None:
        """Report the progress of a layer."""


PathsOf = Callable[[Digest], Collection[str] | None]
"""Returns the paths of a layer, without those of folders that only hold others; None if they are not known."""


def diff_images(left: Opened, right: Opened) -> list[Difference]:
    files = _diff_listings(merged(left.layers), merged(right.layers))
    return [*_diff_configs(left.config, right.config), *files]


def open_layout(layout: Layout, store: Store, watch: ReadWatcher) -> Opened:
    reader = _Reader([layout], store, watch)
    listings = reader.read(layout.layer_digests())
    return Opened(layout.config(), [listings[digest] for digest in layout.layer_digests()])


def diff_layouts(
    left: Layout, right: Layout, store: Store, watch: ReadWatcher, paths_of: PathsOf = lambda _: None
) -> list[Difference]:
    """Compare two layouts; of the layers that both have, read only those that decide about a path of the others."""
    if left.manifest_digest() == right.manifest_digest():
        return []
    stacks = [side.layer_digests() for side in (left, right)]
    shared = [digest for digest in stacks[0] if digest in stacks[1]]
    reader = _Reader([left, right], store, watch)
    listings = reader.read([digest for stack in stacks for digest in stack if digest not in shared])
    deletes = any(_is_whiteout(entry.path) for listing in listings.values() for entry in listing)
    if deletes or shared != [digest for digest in stacks[1] if digest in stacks[0]]:
        listings |= reader.read(shared)
    else:
        undecided = _undecided(stacks, listings)
        listings |= reader.read([digest for digest in shared if _decides(paths_of(digest), undecided)])
    # A path that only unread layers have is the same on both sides.
    opened = (
        Opened(side.config(), [listings.get(digest, ()) for digest in stack])
        for side, stack in zip((left, right), stacks, strict=True)
    )
    return diff_images(*opened)


class _Reader:
    """Reads layers in parallel, and reports which."""

    def __init__(self, layouts: Sequence[Layout], store: Store, watch: ReadWatcher) -> None:
        self._places = {digest: layout.blob(digest) for layout in layouts for digest in layout.layer_digests()}
        self._labels = {digest: label for layout in layouts for digest, label in layout.labels().items()}
        self._store, self._watch = store, watch

    def read(self, digests: Collection[Digest]) -> dict[Digest, Sequence[ListedPath]]:
        if not digests:
            return {}
        self._watch.blobs({digest: self._labels[digest] for digest in digests})
        with ThreadPoolExecutor(os.cpu_count()) as threads:  # hashing and inflating release the interpreter
            return dict(zip(digests, threads.map(self._read, digests), strict=True))

    def _read(self, digest: Digest) -> Sequence[ListedPath]:
        size = self._places[digest].stat().st_size
        self._watch.state(digest, "reading", 0, size)
        listing = cached_listing(self._places[digest], digest, self._store)
        self._watch.state(digest, "read", size, size)
        return listing


def _undecided(stacks: Sequence[Sequence[Digest]], listings: Mapping[Digest, Sequence[ListedPath]]) -> set[str]:
    """Return the paths that unread layers may decide about.

    If both sides have the same entry above the same number of unread layers, these change nothing.
    """
    tops: list[dict[str, tuple[int, ListedPath]]] = []
    for stack in stacks:
        top: dict[str, tuple[int, ListedPath]] = {}
        below = 0
        for digest in stack:
            top |= {entry.path: (below, entry) for entry in listings.get(digest, ())}
            below += digest not in listings
        tops.append(top)
    left, right = tops
    return {path for path in left.keys() | right.keys() if left.get(path) != right.get(path)}


def _decides(paths: Collection[str] | None, undecided: set[str]) -> bool:
    """Whether a layer with these paths has an undecided one, as a file or folder, or a file in place of its folder."""
    if paths is None:
        return bool(undecided)
    folders = _folders(paths)
    return not undecided.isdisjoint({*paths, *folders}) or not _folders(undecided).isdisjoint({*paths} - folders)


def _folders(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        for folder in map(str, PurePosixPath(path).parents):
            if folder in folders:
                break
            folders.add(folder)
    return folders


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
            if _is_whiteout(entry.path):
                continue
            below = merged.get(entry.path)
            if below is not None and below.kind == _FOLDER != entry.kind:
                _remove(merged, f"{entry.path}/")
            merged[entry.path] = entry
    return merged


def _is_whiteout(path: str) -> bool:
    return path.rpartition("/")[2].startswith(_WHITEOUT)


def _remove(merged: dict[str, ListedPath], prefix: str) -> None:
    for path in [path for path in merged if path.startswith(prefix)]:
        del merged[path]


def _diff_configs(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Difference]:
    for section in sorted(left.keys() | right.keys()):
        before, after = left.get(section), right.get(section)
        if section == "config" and isinstance(before, dict) and isinstance(after, dict):
            for key in sorted(before.keys() | after.keys()):
                old, new = _named(key, before.get(key)), _named(key, after.get(key))
                for name in sorted(old.keys() | new.keys()):
                    if old.get(name) != new.get(name):
                        yield Difference("(config)", name, str(old.get(name)), str(new.get(name)))
        elif before != after and section not in ("rootfs", "history"):  # both follow from how layers are cut
            yield Difference("(config)", section, str(before), str(after))


def _named(key: str, value: object) -> dict[str, object]:
    """Return the parts of a value: variables and labels each by name, in any order; missing and empty are the same."""
    if key == "Env" and isinstance(value, list):
        value = dict(str(variable).partition("=")[::2] for variable in value)
    if key in {"Env", "Labels"} and isinstance(value, dict):
        return {f"{key} {name}": part for name, part in value.items()}
    return {key: value} if value else {}
