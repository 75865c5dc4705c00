"""Comparing images: path by path for people, blob by blob for proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from imagefactory.content import Digest
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import Listed, cached_listing
from imagefactory.store import Store

_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_FOLDER = "directory"


@dataclass(frozen=True)
class Difference:
    """Something that two images do not have in common."""

    path: str
    field: str
    left: str
    right: str


def diff_images(left: Layout, right: Layout, store: Store) -> list[Difference]:
    """Compare what containers of two images see, and what the images say about themselves."""
    files = diff_listings(_merged(left, store), _merged(right, store))
    return [*_diff_configs(left, right), *files]


def diff_layers(left: Path, right: Path, store: Store, digests: tuple[Digest, Digest]) -> list[Difference]:
    """Compare two layers entry by entry."""
    one, other = (
        {entry.path: entry for entry in cached_listing(blob, digest, store)}
        for blob, digest in zip((left, right), digests, strict=True)
    )
    return list(diff_listings(one, other))


def diff_listings(left: Mapping[str, Listed], right: Mapping[str, Listed]) -> Iterator[Difference]:
    """Name every path and field that differs, in the order of the paths."""
    for path in sorted(left.keys() | right.keys()):
        one, other = left.get(path), right.get(path)
        if one is None or other is None:
            yield Difference(path, "presence", "there" if one else "missing", "there" if other else "missing")
            continue
        for field in fields(Listed):
            before, after = getattr(one, field.name), getattr(other, field.name)
            if before != after:
                yield Difference(path, field.name, str(before), str(after))


def _merged(layout: Layout, store: Store) -> dict[str, Listed]:
    """Stack the layers as an engine does: upper ones win, whiteouts remove."""
    merged: dict[str, Listed] = {}
    for digest in layout.layer_digests():
        listing = cached_listing(layout.blob(digest), digest, store)
        for entry in listing:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                _remove(merged, f"{folder}/")
            elif name.startswith(_WHITEOUT):
                gone = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
                merged.pop(gone, None)
                _remove(merged, f"{gone}/")
        for entry in _without_whiteouts(listing):
            below = merged.get(entry.path)
            if below is not None and below.kind == _FOLDER != entry.kind:
                _remove(merged, f"{entry.path}/")
            merged[entry.path] = entry
    return merged


def _without_whiteouts(listing: Iterable[Listed]) -> Iterator[Listed]:
    return (entry for entry in listing if not entry.path.rpartition("/")[2].startswith(_WHITEOUT))


def _remove(merged: dict[str, Listed], prefix: str) -> None:
    for path in [path for path in merged if path.startswith(prefix)]:
        del merged[path]


def _diff_configs(left: Layout, right: Layout) -> Iterator[Difference]:
    one, other = left.config(), right.config()
    for section in sorted(one.keys() | other.keys()):
        before, after = one.get(section), other.get(section)
        if section == "config" and isinstance(before, dict) and isinstance(after, dict):
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    yield Difference("(config)", key, str(before.get(key)), str(after.get(key)))
        elif before != after and section not in ("rootfs", "history"):
            yield Difference("(config)", section, str(before), str(after))
