"""Mod layers: the files that a mod leaves changed, the RECORD that says so, and a note of what was done."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagefactory.content import sha256_of
from imagefactory.errors import SourceMissingError
from imagefactory.layers.wheels import Environment, wheel_entries
from imagefactory.mods.apply import Applied, apply_mods
from imagefactory.mods.manifest import IMAGE_FILES, GitSource, Mod
from imagefactory.mods.sources import FolderSource, git_source, package_files, source_variable
from imagefactory.oci.entry import Bytes, Content, DeflatedSlice, Entry, ImagePath, Kind

RECORD_OF_MODS = "usr/share/imagefactory/mods.json"


def mod_entries(
    settings: Mapping[str, Any], wheels: Mapping[str, Path], environment: Environment
) -> list[Entry]:
    """List the files of the last mod of a chain, after all of them were applied.

    The chain stands in the layer's settings, so a plan alone says what is done. RECORD and mods.json are written by
    every mod layer for all mods so far; the uppermost one is what a container sees.
    """
    chosen = [
        (mod := Mod.from_data(link), mod.manifest.variants[link["variant"]]) for link in settings["chain"]
    ]
    trees = {
        distribution: _InstalledWheel(
            distribution, wheels[file], file, environment, settings["without"].get(file, ())
        )
        for distribution, file in settings["wheels"].items()
    }
    applied: list[Applied] = []
    for distribution, tree in trees.items():
        own = [(mod, variant) for mod, variant in chosen if mod.manifest.distribution == distribution]
        for source in dict.fromkeys(variant.source for _, variant in own):
            group = [(mod, variant) for mod, variant in own if variant.source == source]
            applied += apply_mods(group, tree.read if source is None else _checkout(source).read)
    order = [mod.name for mod, _ in chosen]
    applied.sort(key=lambda result: order.index(result.mod.name))
    last = applied[-1]
    tree = trees[last.mod.manifest.distribution]
    files = {path: text.encode() for path, text in last.files.items()}
    if last.variant.source is not None:
        files = package_files(_checkout(last.variant.source).folder, last.variant.source.package) | files
    entries = [
        Entry(image_path(path, tree.site), Kind.FILE, 0o644, Bytes(data)) for path, data in files.items()
    ]
    return [*entries, _record_of_mods(applied), *tree.updated_record(applied)]


def image_path(path: str, site: str) -> ImagePath:
    """Say where a path of a mod lies in the image."""
    if path.startswith(IMAGE_FILES):
        return ImagePath(path.lstrip("/"))
    return ImagePath(f"{site}/{path}")


class _InstalledWheel:
    """A distribution as its wheel layer installs it: what mods are applied to."""

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
        return None if entry is None or entry.content is None else read_content(entry.content).decode()

    def updated_record(self, applied: Sequence[Applied]) -> list[Entry]:
        """Write RECORD anew: changed files with their new hash, added ones as new rows."""
        changed = {
            path: text.encode()
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
        updated = {row[0]: row for row in others}
        for path, data in changed.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            updated[path] = [path, f"sha256={digest}", str(len(data))]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [*(updated[path] for path in sorted(updated)), itself]
        )
        return [Entry(record, Kind.FILE, 0o644, Bytes(text.getvalue().encode()))]


def _checkout(source: GitSource) -> FolderSource:
    """Find the sources that a mod brings along, and make sure that they are the ones it means."""
    tree = git_source(source.git)
    if tree is None:
        raise SourceMissingError(
            f"The sources of {source.git} are not on this machine.",
            where=f"commit {source.commit}",
            why="A mod brings them along, and they are on no package index.",
            fix=f"Check that commit out and set {source_variable(source.git)} to the folder.",
        )
    tree.verify(source)
    return tree


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
    """Note in the image what was changed, by which mod, under which licence."""
    data = [
        {
            "name": result.mod.name,
            "versions": result.variant.versions,
            "licence": result.mod.manifest.licence,
            "distribution": result.variant.source.git
            if result.variant.source
            else result.mod.manifest.distribution,
            "files": {
                path: {"before": result.before[path], "after": sha256_of(text.encode())}
                for path, text in sorted(result.files.items())
            },
        }
        for result in applied
    ]
    text = json.dumps({"mods": data}, indent=2, sort_keys=True) + "\n"
    return Entry(ImagePath(RECORD_OF_MODS), Kind.FILE, 0o644, Bytes(text.encode()))
