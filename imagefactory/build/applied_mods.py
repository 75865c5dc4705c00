"""Applying the mods of a build: once, before anything is downloaded, reading only the files that they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import requests

from imagefactory.build.layers.mod_layer import (
    InstalledWheel,
    ModFiles,
    added_by,
    apply_chain,
    mod_entries,
    modules_of,
)
from imagefactory.build.layers.slim_wheel import RecordedSlimming, Slimmer, WheelSlimmer
from imagefactory.build.layers.wheel_excerpt import Excerpt, NoExcerptError
from imagefactory.build.layers.wheel_layer import Environment
from imagefactory.environment.progress import Say
from imagefactory.locks.gpu_libraries import SlimLock
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Input, ModLayer, ModLink, SlimSettings
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Wanted, fetch
from imagefactory.store.indexes import WheelLocation
from imagefactory.store.ranges import RangeFile
from images.shipped.mods.manifest import Mod, Variant


@dataclass(frozen=True)
class WheelSource:
    """Where mods find the wheels that they change."""

    store: Store
    known: KnownLayers
    offers: Callable[[Sha256], Sequence[WheelLocation]]
    wanted: Callable[[Sha256], Wanted]
    slimmed: SlimLock
    say: Say


_Opened = Mapping[Sha256, Path | Excerpt]
_NOT_IN_PARTS = (NoExcerptError, BadZipFile, OSError, ValueError)
"""What reading a remote wheel can raise; errors from requests are OSErrors."""


def apply_mods_of(
    layers: Sequence[ModLayer],
    source: WheelSource,
    find_mod: Callable[[ModLink], tuple[Mod, Variant]],
    compiled: Mapping[Sha256, ModLayer] | None = None,
) -> dict[Sha256, ModFiles]:
    """Return the files of mod layers by key; a chain of mods that several layers share is applied once.

    `compiled` has the keys of layers of bytecode, each with its topmost mod; they get the modules of the whole chain.
    """
    files: dict[Sha256, ModFiles] = {}
    compiled = compiled or {}
    with source.store.scratch() as scratch, requests.Session() as session:
        tops = {layer.key: layer for layer in (*layers, *compiled.values())}
        for top in sorted(tops.values(), key=lambda layer: -len(layer.settings.chain)):
            if top.key in files:
                continue
            chosen = [find_mod(link) for link in top.settings.chain]
            try:
                opened = _open(top, source, session)
                trees = _trees(top, opened, source.slimmed, scratch)
                applied = apply_chain(chosen, trees)
            except _NOT_IN_PARTS as error:
                source.say(f"Mods need {', '.join(top.settings.wheels.values())} as a whole: {error}")
                opened = {
                    item.sha256: fetch(source.wanted(item.sha256), source.store, session, lambda _: None)
                    for item in top.inputs
                }
                trees = _trees(top, opened, source.slimmed, scratch)
                applied = apply_chain(chosen, trees)
            for layer in (layer for layer in layers if _is_below(layer, top)):
                done = applied[: len(layer.settings.chain)]
                unconfirmed = _unconfirmed(layer, opened, source.known)
                files[layer.key] = ModFiles(mod_entries(done, trees), unconfirmed, added_by(done[-1]))
            for key, layer in compiled.items():
                if _is_below(layer, top):
                    done = applied[: len(layer.settings.chain)]
                    unconfirmed = _unconfirmed(layer, opened, source.known)
                    files[key] = ModFiles(modules_of(done, trees), unconfirmed, ())
    return files


def _unconfirmed(layer: ModLayer, opened: _Opened, known: KnownLayers) -> dict[Sha256, Sha256]:
    excerpts = {
        item.sha256: wheel for item in layer.inputs if isinstance(wheel := opened[item.sha256], Excerpt)
    }
    return {sha256: wheel.record for sha256, wheel in excerpts.items() if known.wheel_record(sha256) is None}


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


def _open(layer: ModLayer, source: WheelSource, session: requests.Session) -> _Opened:
    """Open the wheels of a layer: whole if they are here, else on an index."""
    opened: dict[Sha256, Path | Excerpt] = {}
    for item in layer.inputs:
        whole = source.store.whole_download(item.sha256)
        if whole is not None:
            opened[item.sha256] = whole
            continue
        offer = next(iter(source.offers(item.sha256)), None)
        if offer is None:
            raise NoExcerptError("no index offers it")
        archive = ZipFile(offer.local or RangeFile(offer.url, session))
        opened[item.sha256] = Excerpt(archive, source.known.wheel_record(item.sha256))
    return opened


def _trees(layer: ModLayer, opened: _Opened, slimmed: SlimLock, scratch: Path) -> dict[str, InstalledWheel]:
    """Lay out the wheels that a layer's mods change as they are installed, by distribution."""
    settings = layer.settings
    environment = Environment(settings.venv, settings.python)
    by_file = {item.name: item.sha256 for item in layer.inputs}
    trees: dict[str, InstalledWheel] = {}
    for distribution, file in settings.wheels.items():
        wheel = opened[by_file[file]]
        without = settings.without.get(file, ())
        slimmer = _slimmer(Input(name=file, sha256=by_file[file]), settings.slim, slimmed, wheel)
        if isinstance(wheel, Path):
            trees[distribution] = InstalledWheel(wheel, file, environment, without=without, slimmer=slimmer)
            continue
        hollow = scratch / by_file[file]
        with hollow.open("wb") as target:
            wheel.write_hollow_wheel(target)
        trees[distribution] = InstalledWheel(
            hollow, file, environment, without=without, excerpt=wheel, slimmer=slimmer
        )
    return trees


def _slimmer(
    item: Input, settings: SlimSettings | None, slimmed: SlimLock, wheel: Path | Excerpt
) -> Slimmer | None:
    """Return what knows the libraries of a wheel as they are in the image: its record, or the wheel itself."""
    if settings is None:
        return None
    record = slimmed.find(item.sha256, settings.chip, settings.rule)
    if record is not None:
        return RecordedSlimming(record)
    if isinstance(wheel, Path):
        return WheelSlimmer(item, settings)
    raise NoExcerptError("what is taken out of its libraries is not on record")
