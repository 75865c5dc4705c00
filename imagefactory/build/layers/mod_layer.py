"""Mod layers: the files that a mod changes, the updated RECORD, and a note of what was done."""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.build.layers.slim_wheel import Slimmer
from imagefactory.build.layers.wheel_excerpt import Excerpt, record_sha256
from imagefactory.build.layers.wheel_layer import Environment, wheel_entries
from imagefactory.errors.mods import ModForbiddenPathError, ModTakenPathError
from imagefactory.errors.store import DigestMismatchError
from imagefactory.mods.source_files import needed_git_source, package_files
from imagefactory.oci.entry import Bytes, Content, DeflatedSlice, Entry, EntryKind, ImagePath, Slimmed
from imagefactory.store.digests import Sha256
from images.shipped.mods.apply import Applied, apply_mods, misplaced, refuse_taken
from images.shipped.mods.manifest import IMAGE_FILES, GitSource, Mod, Variant, path_fault
from images.shipped.mods.text import decoded, record_row

RECORD_OF_MODS = "usr/share/imagefactory/mods.json"


@dataclass(frozen=True)
class ModFiles:
    """The files of a mod's layer."""

    entries: tuple[Entry, ...]
    unconfirmed: Mapping[Sha256, Sha256]
    """The hash of the RECORD that was read from each wheel whose RECORD was not known."""
    added: tuple[str, ...]
    """The files below site-packages that the wheel of the mod's distribution does not have."""

    def confirmed_by(self, wheels: Mapping[Sha256, Path]) -> tuple[Entry, ...]:
        """Return the files, after comparing what was read in parts with the whole wheels."""
        for sha256, record in self.unconfirmed.items():
            if record_sha256(wheels[sha256]) != record:
                raise DigestMismatchError(
                    "A package index served parts of a wheel that are not in the wheel.",
                    where=wheels[sha256],
                    why="Mods were applied to files read by range request; the downloaded wheel has other files.",
                    fix="Build again: the wheel is here now and mods will be applied to it. Check the index or proxy.",
                )
        return self.entries


class InstalledWheel:
    """A distribution as its wheel layer installs it, for mods to be applied to."""

    def __init__(
        self,
        wheel: Path,
        file: str,
        environment: Environment,
        *,
        without: Sequence[str] = (),
        excerpt: Excerpt | None = None,
        slimmer: Slimmer | None = None,
    ) -> None:
        """Read the wheel's directory; with an `excerpt`, the wheel is hollow and the excerpt has the content.

        `slimmer` knows the libraries as they are in the image.
        """
        self.site = f"{environment.venv}/lib/python{environment.python}/site-packages"
        self._entries = {
            entry.path: entry
            for entry in wheel_entries(wheel, file, environment, without=without, slimmer=slimmer)
        }
        self._excerpt = excerpt

    @property
    def paths(self) -> list[str]:
        """Everything that the distribution installs below site-packages."""
        below = f"{self.site}/"
        return [path.removeprefix(below) for path in self._entries if path.startswith(below)]

    def read(self, path: str) -> str | None:
        """Read a file, by its path below site-packages or in the image."""
        entry = self._entries.get(image_path(path, self.site))
        if entry is None or entry.content is None:
            return None
        data = self._excerpt.read(path) if self._excerpt else read_content(entry.content)
        return None if data is None else decoded(data, path)

    def updated_record(self, changed: Mapping[str, str]) -> Entry:
        """Return RECORD with new hashes for changed files and new rows for added ones."""
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
        return _file(record, text.getvalue().encode())


def apply_chain(chosen: Sequence[tuple[Mod, Variant]], trees: Mapping[str, InstalledWheel]) -> list[Applied]:
    """Apply a chain of mods, each to its distribution, and return what each of them changed."""
    applied: list[Applied] = []
    groups: dict[tuple[str, GitSource | None], list[tuple[Mod, Variant]]] = {}
    for mod, variant in chosen:
        groups.setdefault((mod.manifest.distribution, variant.source), []).append((mod, variant))
    for (distribution, source), group in groups.items():
        read = trees[distribution].read if source is None else needed_git_source(*group[0], source).read
        applied += apply_mods(group, read)
    _refuse_unsafe(applied, trees)
    order = [mod.name for mod, _ in chosen]
    return sorted(applied, key=lambda result: order.index(result.mod.name))


def added_by(applied: Applied) -> tuple[str, ...]:
    """List the files below site-packages that a mod adds or brings along."""
    brought = _brought_along(applied.mod, applied.variant)
    added = (path for path in applied.added if not path.startswith(IMAGE_FILES))
    return tuple(dict.fromkeys([*brought, *added]))


def _refuse_unsafe(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> None:
    """Refuse files that a mod brings along under bad names, over those of its distribution, or of another mod."""
    adders: dict[str, str] = {}
    for result in applied:
        mod, variant = result.mod, result.variant
        added = added_by(result)
        for path in added:
            fault = path_fault(path)
            if fault is not None:
                raise misplaced(mod, variant, repr(path), f"The path {fault}.", ModForbiddenPathError)
        distribution = mod.manifest.distribution
        refuse_taken(mod, variant, added, distribution, trees[distribution].paths)
        for path in result.added:
            if adders.setdefault(path, mod.name) != mod.name:
                raise misplaced(
                    mod, variant, path, f"The mod {adders[path]} adds it, too.", ModTakenPathError
                )


def mod_entries(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> tuple[Entry, ...]:
    """List the files of the last mod's layer.

    Every mod layer has RECORD and mods.json for all mods so far; a container sees those of the topmost layer.
    """
    last = applied[-1]
    distribution = last.mod.manifest.distribution
    tree = trees[distribution]
    files = _brought_along(last.mod, last.variant) | {
        path: text.encode() for path, text in last.files.items()
    }
    changed = {
        path: text
        for result in applied
        if result.variant.source is None and result.mod.manifest.distribution == distribution
        for path, text in result.files.items()
        if not path.startswith(IMAGE_FILES)
    }
    return (
        *(_file(image_path(path, tree.site), data) for path, data in files.items()),
        _record_of_mods(applied),
        *([tree.updated_record(changed)] if changed else []),
    )


def modules_of(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> tuple[Entry, ...]:
    """List the Python files below site-packages that mods change or add, as the last of them leaves each."""
    found: dict[ImagePath, Entry] = {}
    for result in applied:
        changed = {path: text.encode() for path, text in result.files.items()}
        for path, data in (_brought_along(result.mod, result.variant) | changed).items():
            if path.endswith(".py") and not path.startswith(IMAGE_FILES):
                place = image_path(path, trees[result.mod.manifest.distribution].site)
                found[place] = _file(place, data)
    return tuple(found.values())


def image_path(path: str, site: str) -> ImagePath:
    """Return where a path of a mod lies in the image."""
    if path.startswith(IMAGE_FILES):
        return ImagePath(path.lstrip("/"))
    return ImagePath(f"{site}/{path}")


def _brought_along(mod: Mod, variant: Variant) -> dict[str, bytes]:
    """Read the package that a mod brings along, if any."""
    if variant.source is None:
        return {}
    return package_files(needed_git_source(mod, variant, variant.source).folder, variant.source.package)


def read_content(content: Content) -> bytes:
    """Read a file's content as it will be in the image."""
    if isinstance(content, Bytes):
        return content.data
    if isinstance(content, Slimmed):
        raise TypeError("mods do not change libraries")
    with content.file.open("rb") as file:
        file.seek(content.offset)
        if isinstance(content, DeflatedSlice):
            return zlib.decompress(file.read(content.deflated), wbits=-15)
        return file.read(content.size)


def _record_of_mods(applied: Sequence[Applied]) -> Entry:
    """Return mods.json, which tells what was changed, by which mod and under which licence."""
    text = json.dumps({"mods": [result.record() for result in applied]}, indent=2, sort_keys=True) + "\n"
    return _file(ImagePath(RECORD_OF_MODS), text.encode())


def _file(path: ImagePath, data: bytes) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, Bytes(data))
