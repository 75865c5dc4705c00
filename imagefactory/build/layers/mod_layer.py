"""Mod layers: the files that a mod changes, the updated RECORD, and a note of what was done."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from imagefactory.build.layers.wheel_layer import Environment, wheel_entries
from imagefactory.mods.source_files import needed_git_source, package_files
from imagefactory.oci.entry import Bytes, Content, DeflatedSlice, Entry, EntryKind, ImagePath
from imagefactory.plan.plan import ModSettings
from images.shipped.mods.apply import Applied, apply_mods
from images.shipped.mods.manifest import IMAGE_FILES, Mod, Variant
from images.shipped.mods.text import decoded, record_row

RECORD_OF_MODS = "usr/share/imagefactory/mods.json"


def mod_entries(settings: ModSettings, wheels: Mapping[str, Path]) -> list[Entry]:
    """Apply a chain of mods and list the files that the last one changes.

    The chain is part of the layer's settings, so the plan alone decides what is done. Every mod layer writes RECORD and
    mods.json for all mods so far; a container sees those of the topmost layer.
    """
    chosen = [(mod, mod.manifest.variants[0]) for mod in settings.mods]
    environment = Environment(settings.venv, settings.python)
    trees = {
        distribution: _InstalledWheel(
            distribution, wheels[file], file, environment, settings.without.get(file, ())
        )
        for distribution, file in settings.wheels.items()
    }
    applied: list[Applied] = []
    for distribution, tree in trees.items():
        own = [(mod, variant) for mod, variant in chosen if mod.manifest.distribution == distribution]
        for source in dict.fromkeys(variant.source for _, variant in own):
            group = [(mod, variant) for mod, variant in own if variant.source == source]
            applied += apply_mods(
                group, tree.read if source is None else needed_git_source(*group[0], source).read
            )
    order = [mod.name for mod, _ in chosen]
    applied.sort(key=lambda result: order.index(result.mod.name))
    last = applied[-1]
    tree = trees[last.mod.manifest.distribution]
    files = _brought_along(last.mod, last.variant) | {
        path: text.encode() for path, text in last.files.items()
    }
    entries = [
        Entry(image_path(path, tree.site), EntryKind.FILE, 0o644, Bytes(data)) for path, data in files.items()
    ]
    return [*entries, _record_of_mods(applied), *tree.updated_record(applied)]


def image_path(path: str, site: str) -> ImagePath:
    """Return where a path of a mod lies in the image."""
    if path.startswith(IMAGE_FILES):
        return ImagePath(path.lstrip("/"))
    return ImagePath(f"{site}/{path}")


class _InstalledWheel:
    """A distribution as its wheel layer installs it, for mods to be applied to."""

    def __init__(
        self, distribution: str, wheel: Path, file: str, environment: Environment, without: Sequence[str]
    ) -> None:
        self.distribution = distribution
        self.site = f"{environment.venv}/lib/python{environment.python}/site-packages"
        entries = wheel_entries(wheel, file, environment, without=without)
        self._entries = {entry.path: entry for entry in entries}

    def read(self, path: str) -> str | None:
        """Read a file, by its path below site-packages or in the image."""
        entry = self._entries.get(image_path(path, self.site))
        return None if entry is None or entry.content is None else decoded(read_content(entry.content), path)

    def updated_record(self, applied: Sequence[Applied]) -> list[Entry]:
        """Return RECORD with new hashes for changed files and new rows for added ones."""
        changed = {
            path: text
            for result in applied
            if result.variant.source is None and result.mod.manifest.distribution == self.distribution
            for path, text in result.files.items()
            if not path.startswith(IMAGE_FILES)
        }
        if not changed:
            return []
        [record] = [path for path in self._entries if path.endswith(".dist-info/RECORD")]
        content = self._entries[record].content
        rows = list(csv.reader(io.StringIO(read_content(content).decode() if content is not None else "")))
        *others, itself = rows
        updated = {row[0]: row for row in others} | {
            path: record_row(path, text) for path, text in changed.items()
        }
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [*(updated[path] for path in sorted(updated)), itself]
        )
        return [Entry(record, EntryKind.FILE, 0o644, Bytes(text.getvalue().encode()))]


def _brought_along(mod: Mod, variant: Variant) -> dict[str, bytes]:
    """Read the package that a mod brings along, if any."""
    if variant.source is None:
        return {}
    return package_files(needed_git_source(mod, variant, variant.source).folder, variant.source.package)


def read_content(content: Content) -> bytes:
    """Read a file's content as it will be in the image."""
    if isinstance(content, Bytes):
        return content.data
    with content.file.open("rb") as file:
        file.seek(content.offset)
        if isinstance(content, DeflatedSlice):
            return zlib.decompress(file.read(content.deflated), wbits=-15)
        return file.read(content.size)


def _record_of_mods(applied: Sequence[Applied]) -> Entry:
    """Return mods.json, which tells what was changed, by which mod and under which licence."""
    text = json.dumps({"mods": [result.record() for result in applied]}, indent=2, sort_keys=True) + "\n"
    return Entry(ImagePath(RECORD_OF_MODS), EntryKind.FILE, 0o644, Bytes(text.encode()))
