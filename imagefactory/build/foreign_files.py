"""Compares what mods add with what all other wheels of an image install."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import requests

from imagefactory.build.applied_mods import WheelSource
from imagefactory.build.layers.mod_layer import ModFiles
from imagefactory.locks.files import LockedWheel, WheelLock
from imagefactory.plan.plan import ModLayer, ModLink
from imagefactory.resolve.wheel_contents import wheel_contents
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import fetch
from imagefactory.store.indexes import WheelLocation
from images.shipped.mods.apply import refuse_taken
from images.shipped.mods.manifest import Mod, Variant

_PARALLEL = 16


class OtherWheels:
    """Knows what locked wheels install, from the wheels that are here, else from their directories on an index."""

    def __init__(self, source: WheelSource) -> None:
        self._source = source

    def refuse_foreign_files(
        self,
        layers: Iterable[ModLayer],
        files: Mapping[Sha256, ModFiles],
        locks: Iterable[WheelLock],
        find_mod: Callable[[ModLink], tuple[Mod, Variant]],
    ) -> None:
        """Raise ModTakenPathError if a mod adds a file that another distribution of the same image has."""
        adding = [layer for layer in layers if files[layer.key].added]
        for lock in locks if adding else ():
            here = {wheel.sha256 for wheel in lock.wheels}
            for layer in adding:
                changed = {item.sha256 for item in layer.inputs}
                if changed <= here:
                    mod, variant = find_mod(layer.settings.chain[-1])
                    others = [wheel for wheel in lock.wheels if wheel.sha256 not in changed]
                    for wheel, paths in self._installed(others, lock.python):
                        refuse_taken(mod, variant, files[layer.key].added, wheel.name, paths)

    def _installed(
        self, wheels: Iterable[LockedWheel], python: str
    ) -> Iterable[tuple[LockedWheel, list[str]]]:
        """Return what wheels install below site-packages."""
        site = f"lib/python{python}/site-packages/"

        with requests.Session() as session, ThreadPoolExecutor(_PARALLEL) as pool:

            def paths_of(wheel: LockedWheel) -> tuple[LockedWheel, list[str]]:
                location = self._location(wheel, session)
                found = wheel_contents(
                    location, wheel.sha256, python=python, store=self._source.store, session=session
                )
                return wheel, [path.removeprefix(site) for path in found.paths if path.startswith(site)]

            return list(pool.map(paths_of, wheels))

    def _location(self, wheel: LockedWheel, session: requests.Session) -> WheelLocation:
        source = self._source
        path = source.store.download(wheel.sha256)
        offer = None if path.exists() else next(iter(source.offers(wheel.sha256)), None)
        if offer is not None:
            return offer
        path = fetch(source.wanted(wheel.sha256), source.store, session, lambda _: None)
        return WheelLocation(file=wheel.file, url=path.absolute().as_uri(), sha256=wheel.sha256)
