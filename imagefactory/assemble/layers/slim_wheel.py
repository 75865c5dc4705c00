"""Takes out of a wheel's libraries the GPU code that a chip cannot load, and records what it took out."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from imagefactory.errors import TrustError
from imagefactory.gpu_code.fatbins import NotUnderstoodError
from imagefactory.gpu_code.slimming import Chip, Tally, chip_of, slim
from imagefactory.oci.entry import Content, DeflatedSlice, RawSlice
from imagefactory.plan.plan import Input, SlimSettings
from imagefactory.project.locks.kernels import SlimmedLibrary, SlimmedWheel, UntouchedLibrary
from imagefactory.store.digests import Sha256

NOTE: Final = "imagefactory-slim.json"  # the file in dist-info that lists a wheel's slimmed libraries
_LIBRARIES: Final = ("*.so", "*.so.*")
_LEAST: Final = 64 * 1024  # smaller files are not worth a search


@dataclass(frozen=True, slots=True)
class Slimmed:
    """A library without the GPU code that a chip cannot load."""

    source: Content
    chip: Chip
    sha256: Sha256  # of the result

    @property
    def size(self) -> int:
        return self.source.size

    def blocks(self, name: str, *, check: bool = True) -> Iterator[bytes]:
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


@dataclass
class Slimmer:
    """Takes GPU code out of the libraries of one wheel.

    If the layer's digest is known, the record of an earlier time is believed: the digest proves it. Else libraries
    are read, and what is found is compared with the record.
    """

    wheel: Input
    settings: SlimSettings
    known: SlimmedWheel | None = None
    believed: bool = False
    libraries: list[SlimmedLibrary] = field(default_factory=list)
    untouched: list[UntouchedLibrary] = field(default_factory=list)

    def slim(self, path: str, content: RawSlice | DeflatedSlice) -> Content:
        chip = chip_of(self.settings.chip)
        if self.believed:
            libraries = self.known.libraries if self.known else ()
            recorded = next((library for library in libraries if library.path == path), None)
            return Slimmed(content, chip, recorded.sha256) if recorded else content
        if content.size < _LEAST or not any(fnmatchcase(path, pattern) for pattern in _LIBRARIES):
            return content
        tally, digest = Tally(), hashlib.sha256()
        try:
            for piece in slim(content.blocks(path), chip, tally):
                digest.update(piece)
        except NotUnderstoodError as error:
            self.untouched.append(UntouchedLibrary(path=path, why=str(error)))
            return content
        if not tally.blanked:
            return content
        assert content.sha256 is not None  # noqa: S101 - it is in the RECORD of every wheel
        library = SlimmedLibrary(
            path=path,
            published=content.sha256,
            sha256=Sha256(digest.hexdigest()),
            kept=dict(sorted(tally.kept.items())),
            blanked=dict(sorted(tally.blanked.items())),
        )
        self.libraries.append(library)
        return Slimmed(content, chip, library.sha256)

    @property
    def record(self) -> SlimmedWheel | None:
        """What was taken out, or None if nothing was and everything was understood; an error if the record differs."""
        if self.believed:
            return self.known
        record = None
        if self.libraries or self.untouched:
            record = SlimmedWheel(
                file=self.wheel.name,
                sha256=self.wheel.sha256,
                chip=self.settings.chip,
                rule=self.settings.rule,
                libraries=tuple(sorted(self.libraries, key=lambda library: library.path)),
                untouched=tuple(sorted(self.untouched, key=lambda library: library.path)),
            )
        now, before = _by_path(record), _by_path(self.known or record)
        wrong = [path for path in sorted({*now, *before}) if now.get(path) != before.get(path)]
        if wrong:
            raise _wrong(wrong[0], "What was found in it is not what is on record.")
        return record

    @property
    def note(self) -> bytes | None:
        """A file for the image that says what was taken out of the wheel, if anything."""
        record = self.record
        if record is None:
            return None
        return json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True).encode() + b"\n"


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
