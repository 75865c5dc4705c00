"""Mod layers without whole downloads: only the files that mods read are fetched out of remote wheels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zipfile import BadZipFile, ZipFile

import requests

from imagefactory.build.layers.wheel_excerpt import Excerpt, NoExcerptError
from imagefactory.environment.progress import Say
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Layer, ModLayer
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.indexes import WheelLocation
from imagefactory.store.ranges import RangeFile
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.text import decoded

Locations = Callable[[Sha256], Sequence[WheelLocation]]


def take_excerpts(
    missing: Sequence[Layer], known: KnownLayers, store: Store, locations: Locations, say: Say
) -> None:
    """Store excerpts of the wheels that only mod layers need; a wheel that cannot be trusted in parts is left out."""
    mod_layers = [layer for layer in missing if isinstance(layer, ModLayer)]
    needed_anyway = {
        item.sha256 for layer in missing if not isinstance(layer, ModLayer) for item in layer.inputs
    }
    with requests.Session() as session:
        for layer in mod_layers:
            for distribution, file in layer.settings.wheels.items():
                sha256 = next(item.sha256 for item in layer.inputs if item.name == file)
                if sha256 in needed_anyway or store.input(layer.key, sha256).exists():
                    continue
                record = known.wheel_record(sha256)
                if record is None:
                    continue
                try:
                    excerpt = _open(locations(sha256), record, session)
                    _read_what_mods_read(layer, distribution, excerpt)
                    with writing(store.excerpt(layer.key, sha256)) as target:
                        excerpt.write(target)
                except (NoExcerptError, BadZipFile, OSError, ValueError) as error:
                    say(f"{file} has to be downloaded: {error}")
                    needed_anyway.add(sha256)


def _open(offers: Sequence[WheelLocation], record: Sha256, session: requests.Session) -> Excerpt:
    for offer in offers:
        return Excerpt(ZipFile(offer.local or RangeFile(offer.url, session)), record)
    raise NoExcerptError("no index offers it to be read in places")


def _read_what_mods_read(layer: ModLayer, distribution: str, excerpt: Excerpt) -> None:
    """Apply the mods of a layer once, so that the excerpt holds every file they read when the layer is built."""
    own = [
        (mod, mod.manifest.variants[0])
        for mod in layer.settings.mods
        if mod.manifest.distribution == distribution
    ]

    def read(path: str) -> str | None:
        data = excerpt.read(path)
        return None if data is None else decoded(data, path)

    apply_mods([(mod, variant) for mod, variant in own if variant.source is None], read)
