"""Mod layers: the files that a mod changes, the updated RECORD, and a note of what was done."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from imagefactory.assemble.layers.slim_wheel import Slimmer
from imagefactory.assemble.layers.wheel_layer import Environment, wheel_entries
from imagefactory.mods.source_files import needed_git_source, package_files
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, read_content
from images.shipped.mods.apply import Applied, apply_mods, misplaced, refuse_taken
from images.shipped.mods.manifest import IMAGE_FILES, GitSource, Mod, Variant, path_fault
from images.shipped.mods.text import decoded, record_row

RECORD_OF_MODS = "usr/share/imagefactory/mods.json"


class InstalledWheel:
    """A distribution as its wheel layer installs it, for mods to be applied to."""

    def __init__(
        self,
        wheel: Path,
        file: str,
        environment: Environment,
        without: Sequence[str] = (),
        slimmer: Slimmer | None = None,
    ) -> None:
        """Read the wheel's directory; `slimmer` knows the libraries as they are in the image."""
        self.site = f"{environment.venv}/lib/python{environment.python}/site-packages"
        self._entries = {
            entry.path: entry
            for entry in wheel_entries(wheel, file, environment, without=without, slimmer=slimmer)
        }

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
        return decoded(read_content(entry.content, path), path)

    def updated_record(self, changed: Mapping[str, str]) -> Entry:
        """Return RECORD with new hashes for changed files and new rows for added ones."""
        [record] = [path for path in self._entries if path.endswith(".dist-info/RECORD")]
        content = self._entries[record].content
        rows = list(csv.reader(io.StringIO(read_content(content, record).decode())))
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
                raise misplaced(mod, variant, repr(path), f"The path {fault}.", "forbidden-path")
        distribution = mod.manifest.distribution
        refuse_taken(mod, variant, added, distribution, trees[distribution].paths)
        for path in result.added:
            if adders.setdefault(path, mod.name) != mod.name:
                raise misplaced(mod, variant, path, f"The mod {adders[path]} adds it, too.", "taken-path")


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


def _record_of_mods(applied: Sequence[Applied]) -> Entry:
    """Return mods.json, which tells what was changed, by which mod and under which licence."""
    text = json.dumps({"mods": [result.record() for result in applied]}, indent=2, sort_keys=True) + "\n"
    return _file(ImagePath(RECORD_OF_MODS), text.encode())


def _file(path: ImagePath, data: bytes) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, Bytes(data))
