"""Finds the wheels of the factory's own environment for another machine and Python, by the hashes of its lock."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from imagefactory.environment.setup import LockedSet
from imagefactory.errors import NetworkError
from imagefactory.lock.wheel_locks import tag_ranks
from imagefactory.lock.wheelhouse.keep import MACHINES
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, file_sha256
from imagefactory.store.downloads import Downloader, Wanted
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes, WheelLocation

GLIBC: Final = "2.31"  # of Debian 11 and Ubuntu 20.04, the oldest that are supported
_LARGEST: Final = 512 * 1024 * 1024  # bytes of a wheel; the lock does not say how large each is
_PIN = re.compile(r"^([a-z0-9-]+==[^\\\n]+)\\?\n((?:    [^\n]*\n)*)", re.MULTILINE)


_Offer = tuple[str, Sha256, str]  # name, hash, URL


@dataclass(frozen=True)
class _Pin:
    requirement: Requirement
    hashes: frozenset[str]

    def applies(self, python: str, platform: str) -> bool:
        """Return whether some patch release of a Python on a platform needs it."""
        fixed = {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": MACHINES[platform][0],
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_version": python,
            "sys_platform": "linux",
        }
        marker = self.requirement.marker
        here = {name: str(value) for name, value in default_environment().items()}
        versions = (f"{python}.{patch}" for patch in range(50))
        return marker is None or any(marker.evaluate(here | fixed | {"python_full_version": full}) for full in versions)


def environment_wheels(
    root: Path, sets: Iterable[str], pythons: Sequence[str], platform: str, store: Store
) -> dict[str, Path]:
    """Download the wheels of locked sets for a platform and some Pythons; return them by their file names."""
    text = "".join(LockedSet.of(root, name).text() for name in sets)
    pins = {
        match[1]: _Pin(Requirement(match[1]), frozenset(re.findall(r"sha256:([0-9a-f]{64})", match[2])))
        for match in _PIN.finditer(text)
    }
    indexes = Indexes(IndexConfig.from_environment())
    chosen = {
        file: (sha256, url)
        for python in pythons
        for tags in [tag_ranks(python, GLIBC, platform)]
        for pin in pins.values()
        if pin.applies(python, platform)
        for file, sha256, url in [_choose(pin, indexes.files(pin.requirement.name), tags, python)]
    }
    with Downloader(store) as downloader:
        arriving = {
            file: downloader.submit(Wanted(file, sha256, _LARGEST, partial(list, (url,))), lambda _: None)
            for file, (sha256, url) in chosen.items()
        }
        return {file: future.result() for file, future in sorted(arriving.items())}


def _choose(pin: _Pin, offered: Iterable[WheelLocation], tags: dict[Tag, int], python: str) -> _Offer:
    if fitting := list(_fitting(pin, offered, tags)):
        return min(fitting)[1:]
    raise NetworkError(
        "no-environment-wheel",
        f"No index has the locked wheel of {pin.requirement.name} for the other machine.",
        where=str(pin.requirement),
        why=f"No file with a locked hash runs with Python {python} and glibc {GLIBC}.",
        fix="Check the configured index (`./inv doctor`), or name another --python.",
    )


def _fitting(
    pin: _Pin, offered: Iterable[WheelLocation], tags: dict[Tag, int]
) -> Iterator[tuple[int, str, Sha256, str]]:
    for location in offered:
        # A folder gives no hashes.
        sha256 = Sha256(location.sha256 or (file_sha256(location.local) if location.local else ""))
        if sha256 in pin.hashes:
            ranks = [tags[tag] for tag in parse_wheel_filename(location.file)[3] if tag in tags]
            if ranks:
                yield min(ranks), location.file, sha256, location.url
