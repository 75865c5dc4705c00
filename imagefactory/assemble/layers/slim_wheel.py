"""Takes out of a wheel's libraries the GPU code that a chip cannot load, and records what it took out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Protocol

from imagefactory.errors import TrustError
from imagefactory.gpu_code.fatbins import NotUnderstoodError
from imagefactory.gpu_code.slimming import Chip, Tally, chip_of, slim
from imagefactory.oci.entry import Content, DeflatedSlice, RawSlice
from imagefactory.plan.plan import Input, SlimSettings
from imagefactory.project.locks.kernels import SlimmedLibrary, SlimmedWheel, UntouchedLibrary
from imagefactory.store.digests import Sha256

NOTE: Final = "imagefactory-slim.json"
"""The file in a wheel's dist-info folder that lists its slimmed libraries."""
_LIBRARIES: Final = ("*.so", "*.so.*")
_Key = tuple[Sha256, str, int]
"""A wheel, a chip, and a version of the rule."""
_LEAST: Final = 64 * 1024
"""Smaller files are not worth a search."""


@dataclass(frozen=True, slots=True)
class Slimmed:
    """A library without the GPU code that a chip cannot load."""

    source: Content
    chip: Chip
    sha256: Sha256
    """Of the result."""

    @property
    def size(self) -> int:
        """The number of bytes, which slimming does not change."""
        return self.source.size

    def blocks(self, name: str, *, check: bool = True) -> Iterator[bytes]:
        """Yield the bytes of the slimmed library, checked at the end."""
        slimmed = hashlib.sha256()
        try:
            for data in slim(self.source.blocks(name, check=check), self.chip):
                if check:
                    slimmed.update(data)
                yield data
        except NotUnderstoodError as error:
            raise _wrong(name, f"It cannot be slimmed: {error}.") from None
        if check and slimmed.hexdigest() != self.sha256:
            raise _wrong(name, f"The slimmed file has the sha256 {slimmed.hexdigest()}, not {self.sha256}.")


class Slimmer(Protocol):
    """Knows what becomes of the libraries of one wheel."""

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> Content:
        """Return a file of the wheel as it goes into an image."""

    @property
    def record(self) -> SlimmedWheel | None:
        """What is taken out, or None if nothing is and everything was understood."""


@dataclass(frozen=True)
class RecordedSlimming:
    """Slims what the record of a wheel says, and reads no library to find out."""

    record: SlimmedWheel | None

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> Content:
        """Return a file of the wheel, a library with its hash on record."""
        libraries = self.record.libraries if self.record else ()
        found = next((library for library in libraries if library.path == path), None)
        if self.record is None or found is None:
            return content
        return Slimmed(content, chip_of(self.record.chip), found.sha256)


@dataclass
class WheelSlimmer:
    """Finds out what can be slimmed in one wheel, by reading its libraries."""

    wheel: Input
    settings: SlimSettings
    libraries: list[SlimmedLibrary] = field(default_factory=list)
    untouched: list[UntouchedLibrary] = field(default_factory=list)

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> Content:
        """Return a file of the wheel as it goes into an image."""
        if content.size < _LEAST or not any(fnmatchcase(path, pattern) for pattern in _LIBRARIES):
            return content
        chip, tally, digest = chip_of(self.settings.chip), Tally(), hashlib.sha256()
        try:
            for piece in slim(content.blocks(path), chip, tally):
                digest.update(piece)
        except NotUnderstoodError as error:
            self.untouched.append(UntouchedLibrary(path=path, why=str(error)))
            return content
        if not tally.blanked:
            return content
        library = SlimmedLibrary(
            path=path,
            published=content.sha256 or _published(content, path),
            sha256=Sha256(digest.hexdigest()),
            kept=dict(sorted(tally.kept.items())),
            blanked=dict(sorted(tally.blanked.items())),
        )
        self.libraries.append(library)
        return Slimmed(content, chip, library.sha256)

    @property
    def record(self) -> SlimmedWheel | None:
        """What was taken out, or None if nothing was and everything was understood."""
        if not self.libraries and not self.untouched:
            return None
        return SlimmedWheel(
            file=self.wheel.name,
            sha256=self.wheel.sha256,
            chip=self.settings.chip,
            rule=self.settings.rule,
            libraries=tuple(sorted(self.libraries, key=lambda library: library.path)),
            untouched=tuple(sorted(self.untouched, key=lambda library: library.path)),
        )


def note_of(slimmer: Slimmer) -> bytes | None:
    """Return a file for the image that says what was taken out of a wheel, if anything."""
    if slimmer.record is None:
        return None
    return json.dumps(slimmer.record.model_dump(mode="json"), indent=1, sort_keys=True).encode() + b"\n"


class SlimmedLayer:
    """The wheels of a layer that are slimmed.

    If the layer's digest is known, records of earlier times are believed: the digest proves them. Otherwise, libraries
    are read, and compared with the record.
    """

    def __init__(self, known: Sequence[SlimmedWheel], *, believed: bool) -> None:
        self._known = {(one.sha256, one.chip, one.rule): one for one in known}
        self._believed = believed
        self._slimmers: dict[_Key, Slimmer] = {}

    def slimmer(self, wheel: Input, settings: SlimSettings | None) -> Slimmer | None:
        """Return what slims a wheel, if it is to be slimmed at all."""
        if settings is None:
            return None
        key = (wheel.sha256, settings.chip, settings.rule)
        believed = RecordedSlimming(self._known.get(key)) if self._believed else None
        self._slimmers[key] = believed or WheelSlimmer(wheel, settings)
        return self._slimmers[key]

    @property
    def records(self) -> list[SlimmedWheel]:
        """What is taken out of the wheels, once their entries are listed; raise an error if the record differs."""
        for key, slimmer in self._slimmers.items():
            found, before = _by_path(slimmer.record), _by_path(self._known.get(key, slimmer.record))
            wrong = [path for path in sorted({*found, *before}) if found.get(path) != before.get(path)]
            if wrong:
                raise _wrong(wrong[0], "What was found in it is not what is on record.")
        return [record for slimmer in self._slimmers.values() if (record := slimmer.record) is not None]


def _published(content: RawSlice | DeflatedSlice, path: str) -> Sha256:
    """Hash a library whose hash its wheel does not tell."""
    digest = hashlib.sha256()
    for piece in content.blocks(path):
        digest.update(piece)
    return Sha256(digest.hexdigest())


def _by_path(record: SlimmedWheel | None) -> dict[str, SlimmedLibrary | UntouchedLibrary]:
    if record is None:
        return {}
    libraries: list[SlimmedLibrary | UntouchedLibrary] = [*record.libraries, *record.untouched]
    return {library.path: library for library in libraries}


def _wrong(name: str, why: str) -> TrustError:
    return TrustError(
        "wrong-slimming",
        f"{name} does not come out as recorded.",
        where="locks/slim.toml",
        why=why,
        fix="Restore the file from git, or delete it and build again: builds write it.",
    )
