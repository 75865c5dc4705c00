"""Takes out of a wheel's libraries the GPU code that a chip cannot load, and records what it took out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Protocol

from imagefactory.gpu_code.fatbins import NotUnderstoodError
from imagefactory.gpu_code.slimming import blank, survey
from imagefactory.locks.gpu_libraries import SlimmedLibrary, SlimmedWheel, UntouchedLibrary
from imagefactory.oci.entry import Blanked, DeflatedSlice, RawSlice
from imagefactory.oci.gzip import pieces_of
from imagefactory.plan.plan import Input, SlimSettings
from imagefactory.store.digests import Sha256

NOTE: Final = "imagefactory-slim.json"
"""The file in a wheel's dist-info folder that lists its slimmed libraries."""
_LIBRARIES: Final = ("*.so", "*.so.*")
_LEAST: Final = 64 * 1024
"""Smaller files are not worth a search."""


class Slimmer(Protocol):
    """Knows what becomes of the libraries of one wheel."""

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> RawSlice | DeflatedSlice | Blanked:
        """Return a file of the wheel as it goes into an image."""

    @property
    def note(self) -> bytes | None:
        """A file for the image that says what was taken out, if anything."""


@dataclass(frozen=True)
class RecordedSlimming:
    """Takes hashes from a record; the content of libraries is neither read nor known."""

    record: SlimmedWheel

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> RawSlice | DeflatedSlice | Blanked:
        """Return a file of the wheel, a library with its hash alone."""
        slimmed = next((library for library in self.record.libraries if library.path == path), None)
        return content if slimmed is None else Blanked(content, (), slimmed.sha256)

    @property
    def note(self) -> bytes | None:
        """The record as a file for the image."""
        return _note(self.record)


@dataclass
class WheelSlimmer:
    """Slims the libraries of one wheel; hashes that are on record (`known`, by path) need not be computed."""

    wheel: Input
    settings: SlimSettings
    known: Mapping[str, Sha256]
    libraries: list[SlimmedLibrary] = field(default_factory=list)
    untouched: list[UntouchedLibrary] = field(default_factory=list)

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> RawSlice | DeflatedSlice | Blanked:
        """Return a file of the wheel as it goes into an image."""
        if content.size < _LEAST or not any(fnmatchcase(path, pattern) for pattern in _LIBRARIES):
            return content
        try:
            found = survey(pieces_of(content, path, check=False), self._chip)
        except NotUnderstoodError as error:
            self.untouched.append(UntouchedLibrary(path=path, why=str(error)))
            return content
        if not found.blanks:
            return content
        sha256 = self.known.get(path) or _hash(content, path, found.blanks)
        self.libraries.append(
            SlimmedLibrary(
                path=path,
                published=content.sha256 or Sha256(""),
                sha256=sha256,
                kept=dict(found.kept),
                blanked=dict(found.blanked),
            )
        )
        return Blanked(content, found.blanks, sha256)

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

    @property
    def note(self) -> bytes | None:
        """The record as a file for the image."""
        return _note(self.record)

    @property
    def _chip(self) -> tuple[int, int]:
        major, _, minor = self.settings.chip.partition(".")
        return int(major), int(minor)


def _note(record: SlimmedWheel | None) -> bytes | None:
    if record is None:
        return None
    return json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True).encode() + b"\n"


class SlimmedLayer:
    """The wheels of a layer that were slimmed, and the records of earlier times."""

    def __init__(self, known: Sequence[SlimmedWheel]) -> None:
        self._known = known
        self._slimmers: list[WheelSlimmer] = []

    def slimmer(self, wheel: Input, settings: SlimSettings | None) -> WheelSlimmer | None:
        """Return what slims a wheel, if it is to be slimmed at all."""
        if settings is None:
            return None
        wanted = (wheel.sha256, settings.chip, settings.rule)
        known = next((one for one in self._known if (one.sha256, one.chip, one.rule) == wanted), None)
        hashes = {library.path: library.sha256 for library in known.libraries} if known else {}
        self._slimmers.append(WheelSlimmer(wheel, settings, hashes))
        return self._slimmers[-1]

    @property
    def records(self) -> list[SlimmedWheel]:
        """What was taken out of the wheels, once their entries are listed."""
        return [record for slimmer in self._slimmers if (record := slimmer.record) is not None]


def _hash(content: RawSlice | DeflatedSlice, path: str, blanks: tuple[tuple[int, int], ...]) -> Sha256:
    digest = hashlib.sha256()
    for piece in blank(pieces_of(content, path), blanks):
        digest.update(piece)
    return Sha256(digest.hexdigest())
