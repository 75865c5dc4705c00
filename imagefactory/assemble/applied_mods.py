"""Applies the mods of a build to the wheels that they change, before any layer is built."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from zipfile import ZipFile

from imagefactory.assemble.inputs import Downloads
from imagefactory.assemble.layers.mod_layer import (
    InstalledWheel,
    added_by,
    apply_chain,
    mod_entries,
    modules_of,
)
from imagefactory.assemble.layers.slim_wheel import Slimmer
from imagefactory.assemble.layers.wheel_layer import Environment
from imagefactory.lock.wheel_contents import installed_path
from imagefactory.oci.entry import Entry
from imagefactory.plan.plan import BytecodeLayer, Input, Layer, ModLayer, ModLink
from imagefactory.project.locks.files import LockedWheel, WheelLock
from imagefactory.project.project import Project
from imagefactory.store.digests import Sha256
from images.shipped.mods.apply import Applied, refuse_taken
from images.shipped.mods.manifest import Mod, Variant


@dataclass(frozen=True)
class AddedFiles:
    """The files below site-packages that a mod adds to an image."""

    layer: ModLayer
    applied: Applied
    paths: tuple[str, ...]


@dataclass
class AppliedMods:
    """What the mods of a build come to."""

    files: dict[Sha256, tuple[Entry, ...]] = field(default_factory=dict)
    """The files of mod layers, and the modules that layers of bytecode compile, by the keys of the layers."""
    added: list[AddedFiles] = field(default_factory=list)


def apply_mods(layers: Iterable[Layer], downloads: Downloads) -> AppliedMods:
    """Apply the mods of layers; one that does not fit raises an error. A chain that layers share is applied once."""
    layers = list(layers)
    project, result = downloads.inputs.project, AppliedMods()
    mods = [layer for layer in layers if isinstance(layer, ModLayer)]
    compiled = [
        (layer.key, mod) for layer in layers if isinstance(layer, BytecodeLayer) and (mod := _mods_of(layer))
    ]
    left = [*mods, *(mod for _, mod in compiled)]
    while left:
        top = max(left, key=lambda layer: len(layer.settings.chain))
        left = [layer for layer in left if not _is_below(layer, top)]
        trees = _trees(top, downloads)
        applied = apply_chain([_find_mod(project, link) for link in top.settings.chain], trees)
        for layer in (layer for layer in mods if _is_below(layer, top)):
            chain = applied[: len(layer.settings.chain)]
            result.files[layer.key] = mod_entries(chain, trees)
            if paths := added_by(chain[-1]):
                result.added.append(AddedFiles(layer, chain[-1], paths))
        for key, mod in compiled:
            if _is_below(mod, top):
                result.files[key] = modules_of(applied[: len(mod.settings.chain)], trees)
    return result


def refuse_foreign_files(added: Iterable[AddedFiles], downloads: Downloads) -> None:
    """Raise ModTakenPathError if a mod adds a file that another distribution of the same image has."""
    inputs = downloads.inputs
    locks = {inputs.project.wheel_lock_path(cell): inputs.project.wheel_lock(cell) for cell in inputs.cells}
    for one in added:
        changed = {item.sha256 for item in one.layer.inputs}
        for lock in locks.values():
            if changed <= {wheel.sha256 for wheel in lock.wheels}:
                for wheel, paths in _installed(lock, changed, downloads):
                    refuse_taken(one.applied.mod, one.applied.variant, one.paths, wheel.name, paths)


def _installed(
    lock: WheelLock, changed: Container[Sha256], downloads: Downloads
) -> Iterator[tuple[LockedWheel, list[str]]]:
    """List what the wheels of a lock that no mod changes install below site-packages."""
    others = [wheel for wheel in lock.wheels if wheel.sha256 not in changed]
    files = downloads.get(map(downloads.inputs.wheel, others))
    site = f"lib/python{lock.python}/site-packages/"
    for wheel in others:
        with ZipFile(files[wheel.sha256]) as archive:
            members = [info.filename for info in archive.infolist() if not info.is_dir()]
        paths = [installed_path(name, distribution=wheel.name, python=lock.python) for name in members]
        yield wheel, [path.removeprefix(site) for path in paths if path.startswith(site)]


def _mods_of(layer: BytecodeLayer) -> ModLayer | None:
    """Return the topmost mod whose modules a layer compiles."""
    mods = layer.settings.mods
    if mods is None:
        return None
    return ModLayer.of("mod", layer.name, (i for i in layer.inputs if i.name in mods.wheels.values()), mods)


def _find_mod(project: Project, link: ModLink) -> tuple[Mod, Variant]:
    """Find a mod in the checkout: unlike the plan's copy, it knows its lines, which errors name."""
    mod = project.mods[link.manifest["name"]]
    [variant] = [one for one in mod.manifest.variants if mod.data(one) == link.model_dump()]
    return mod, variant


def _is_below(layer: ModLayer, top: ModLayer) -> bool:
    """Whether a layer is `top`, or one of the layers that its chain of mods builds on."""
    mine, its = layer.settings, top.settings
    return (
        its.chain[: len(mine.chain)] == mine.chain
        and mine.wheels.items() <= its.wheels.items()
        and set(layer.inputs) <= set(top.inputs)
        and (mine.python, mine.venv, mine.slim) == (its.python, its.venv, its.slim)
        and all(its.without.get(file) == paths for file, paths in mine.without.items())
    )


def _trees(layer: ModLayer, downloads: Downloads) -> dict[str, InstalledWheel]:
    """Lay out the wheels that a layer's mods change as they are installed, by distribution."""
    settings, slimmed = layer.settings, downloads.inputs.project.slim_lock
    wheels = downloads.get(map(downloads.inputs.locate, layer.inputs))
    environment = Environment(settings.venv, settings.python)
    by_file = {item.name: item.sha256 for item in layer.inputs}
    trees: dict[str, InstalledWheel] = {}
    for distribution, file in settings.wheels.items():
        slimmer = None
        if settings.slim is not None:
            record = slimmed.find(by_file[file], settings.slim.chip, settings.slim.rule)
            item = Input(name=file, sha256=by_file[file])
            slimmer = Slimmer(item, settings.slim, record, believed=record is not None)
        trees[distribution] = InstalledWheel(
            wheels[by_file[file]], file, environment, settings.without.get(file, ()), slimmer
        )
    return trees
