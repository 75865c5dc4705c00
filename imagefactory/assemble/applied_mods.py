"""Applies the mods of a build to the wheels that they change, before any layer is built.

The layer of a mod holds the files that it changes, the updated RECORD, and a note of what was done.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from zipfile import ZipFile

from imagefactory.assemble.inputs import Downloads
from imagefactory.assemble.layers.slim_wheel import Slimmer
from imagefactory.assemble.layers.wheel_layer import wheel_entries
from imagefactory.errors import ModError
from imagefactory.lock.wheel_contents import installed_path
from imagefactory.mods.compatibility import of_another_distribution
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, read_content
from imagefactory.plan.plan import (
    BytecodeLayer,
    Environment,
    Input,
    Layer,
    ModLayer,
    ModLink,
    ModSettings,
    SlimSettings,
)
from imagefactory.project.locks.files import LockedWheel, WheelLock
from imagefactory.project.project import Project
from imagefactory.store.digests import Sha256
from images.shipped.mods.apply import Applied, misplaced, refuse_taken
from images.shipped.mods.apply import apply_mods as apply_group
from images.shipped.mods.manifest import IMAGE_FILES, Mod, Variant
from images.shipped.mods.text import decoded, updated_record


@dataclass
class AppliedMods:
    """What the mods of a build come to."""

    files: dict[Sha256, tuple[Entry, ...]] = field(default_factory=dict)
    """The files of mod layers, and the modules that layers of bytecode compile, by the keys of the layers."""
    added: list[tuple[ModLayer, Applied]] = field(default_factory=list)
    """The layers of mods that add files below site-packages."""


def apply_mods(layers: Iterable[Layer], downloads: Downloads) -> AppliedMods:
    """Apply the mods of layers; one that does not fit raises an error."""
    project, result = downloads.inputs.project, AppliedMods()
    wheel = cache(partial(_installed_wheel, downloads))  # every layer applies its whole chain of mods again
    for layer in layers:
        settings = layer.settings.mods if isinstance(layer, BytecodeLayer) else layer.settings
        if not isinstance(settings, ModSettings):
            continue
        environment = Environment(venv=settings.venv, python=settings.python)
        inputs = {file.name: file for file in layer.inputs}
        trees = {
            distribution: wheel(inputs[name], environment, settings.without.get(name, ()), settings.slim)
            for distribution, name in settings.wheels.items()
        }
        chain = [_find_mod(project, link) for link in settings.chain]
        try:
            applied = apply_chain(chain, trees)
        except ModError as error:
            locked = (wheel for cell in downloads.inputs.cells for wheel in project.wheel_lock(cell).wheels)
            raise of_another_distribution(error, chain, locked) from None
        if isinstance(layer, ModLayer):
            result.files[layer.key] = mod_entries(applied, trees)
            if added_by(applied[-1]):
                result.added.append((layer, applied[-1]))
        else:
            result.files[layer.key] = modules_of(applied, trees)
    return result


def refuse_foreign_files(added: Iterable[tuple[ModLayer, Applied]], downloads: Downloads) -> None:
    """Raise an error if a mod adds a file that another distribution of the same image has."""
    inputs = downloads.inputs
    locks = {inputs.project.wheel_lock_path(cell): inputs.project.wheel_lock(cell) for cell in inputs.cells}
    for layer, applied in added:
        changed = {wheel.sha256 for wheel in layer.inputs}
        for lock in locks.values():
            if changed <= {wheel.sha256 for wheel in lock.wheels}:
                for wheel, paths in _installed(lock, changed, downloads):
                    refuse_taken(applied.mod, applied.variant, added_by(applied), wheel.name, paths)


def _installed(
    lock: WheelLock, changed: Container[Sha256], downloads: Downloads
) -> Iterator[tuple[LockedWheel, list[str]]]:
    """List what the wheels of a lock that no mod changes install below site-packages."""
    unchanged = [wheel for wheel in lock.wheels if wheel.sha256 not in changed]
    files = downloads.get(map(downloads.inputs.wheel, unchanged))
    site = f"lib/python{lock.python}/site-packages/"
    for wheel in unchanged:
        with ZipFile(files[wheel.sha256]) as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
        paths = [installed_path(name, distribution=wheel.name, python=lock.python) for name in members]
        yield wheel, [path.removeprefix(site) for path in paths if path.startswith(site)]


def _find_mod(project: Project, link: ModLink) -> tuple[Mod, Variant]:
    """Find a mod in the checkout: unlike the plan's copy, it knows its lines, which errors name."""
    mod = project.mods[link.manifest["name"]]
    [variant] = [variant for variant in mod.manifest.variants if mod.data(variant) == link.model_dump()]
    return mod, variant


def _installed_wheel(
    downloads: Downloads, wheel: Input, environment: Environment, without: Sequence[str], slim: SlimSettings | None
) -> InstalledWheel:
    [path] = downloads.get([downloads.inputs.locate(wheel)]).values()
    slimmer = None
    if slim is not None:
        record = downloads.inputs.project.slim_lock.find(wheel.sha256, slim.chip, slim.rule)
        slimmer = Slimmer(wheel, slim, record, believed=record is not None)
    return InstalledWheel(path, wheel.name, environment, without, slimmer)


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
        self.site = environment.site
        self._entries = {
            entry.path: entry for entry in wheel_entries(wheel, file, environment, without=without, slimmer=slimmer)
        }

    @property
    def paths(self) -> list[str]:
        below = f"{self.site}/"
        return [path.removeprefix(below) for path in self._entries if path.startswith(below)]

    def read(self, path: str) -> str | None:
        entry = self._entries.get(image_path(path, self.site))
        if entry is None or entry.content is None:
            return None
        return decoded(read_content(entry.content, path), path)

    def updated_record(self, changed: Mapping[str, str]) -> Entry:
        """Return RECORD with new hashes for changed files and new rows for added ones."""
        [record] = [path for path in self._entries if path.endswith(".dist-info/RECORD")]
        text = read_content(self._entries[record].content, record).decode()
        return _file(record, updated_record(text, changed))


def apply_chain(chosen: Sequence[tuple[Mod, Variant]], trees: Mapping[str, InstalledWheel]) -> list[Applied]:
    """Apply a chain of mods, each to its distribution, and return what each of them changed."""
    applied: list[Applied] = []
    groups: dict[str, list[tuple[Mod, Variant]]] = {}
    for mod, variant in chosen:
        groups.setdefault(mod.manifest.distribution, []).append((mod, variant))
    for distribution, group in groups.items():
        applied += apply_group(group, trees[distribution].read)
    _refuse_unsafe(applied, trees)
    # In the order of the chain again: the last is the mod whose layer this is.
    order = [mod.name for mod, _ in chosen]
    return sorted(applied, key=lambda result: order.index(result.mod.name))


def added_by(applied: Applied) -> tuple[str, ...]:
    return tuple(path for path in applied.added if not path.startswith(IMAGE_FILES))


def _refuse_unsafe(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> None:
    """Refuse files that a mod adds over those of its distribution, or of another mod."""
    adders: dict[str, str] = {}
    for result in applied:
        mod, variant = result.mod, result.variant
        distribution = mod.manifest.distribution
        refuse_taken(mod, variant, added_by(result), distribution, trees[distribution].paths)
        for path in result.added:
            if adders.setdefault(path, mod.name) != mod.name:
                raise misplaced(mod, variant, path, f"The mod {adders[path]} adds it, too.", "taken-path")


def mod_entries(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> tuple[Entry, ...]:
    """List the files of the last mod's layer.

    Every mod layer has RECORD and mods.json (what was changed, by which mod and under which licence) for all mods so
    far; a container sees those of the topmost layer.
    """
    last = applied[-1]
    distribution = last.mod.manifest.distribution
    tree = trees[distribution]
    changed = {
        path: text
        for result in applied
        if result.mod.manifest.distribution == distribution
        for path, text in result.files.items()
        if not path.startswith(IMAGE_FILES)
    }
    note = json.dumps({"mods": [result.record() for result in applied]}, indent=2, sort_keys=True) + "\n"
    return (
        *(_file(image_path(path, tree.site), text.encode()) for path, text in last.files.items()),
        _file(ImagePath(RECORD_OF_MODS), note.encode()),
        *([tree.updated_record(changed)] if changed else []),
    )


def modules_of(applied: Sequence[Applied], trees: Mapping[str, InstalledWheel]) -> tuple[Entry, ...]:
    """List the Python files below site-packages that mods change or add, as the last of them leaves each."""
    modules: dict[ImagePath, Entry] = {}
    for result in applied:
        for path, text in result.files.items():
            if path.endswith(".py") and not path.startswith(IMAGE_FILES):
                place = image_path(path, trees[result.mod.manifest.distribution].site)
                modules[place] = _file(place, text.encode())
    return tuple(modules.values())


def image_path(path: str, site: str) -> ImagePath:
    if path.startswith(IMAGE_FILES):
        return ImagePath(path.lstrip("/"))
    return ImagePath(f"{site}/{path}")


def _file(path: ImagePath, data: bytes) -> Entry:
    return Entry(path, EntryKind.FILE, 0o644, Bytes(data))
