"""Every failure a user can meet, one class and one exit code each.

A message has four parts: what happened, where, why, and what to do next. Programming mistakes are not
in here; they stay ordinary exceptions with a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place a user can open: a file, and the line in it where that is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class FactoryError(Exception):
    """A failure with a remedy. Subclasses set `exit_code`; nothing raises this class itself."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, *, where: Location | Path | str, why: str, fix: str) -> None:
        super().__init__(what)
        # What another program said may be nothing; the rest is ours to write.
        why = why.strip() or "No reason is known."
        for part, text in {"what": what, "where": str(where), "fix": fix}.items():
            if not text.strip():
                raise ValueError(f"{type(self).__name__} without its part {part!r}")
        self.what = what
        self.where = str(where)
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword arguments need help to travel from a worker process to its parent.
        return partial(type(self), where=self.where, why=self.why, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        return f"{self.what}\n  where: {self.where}\n  why:   {self.why}\n  next:  {self.fix}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known names are nearest to a mistyped one, or list them all when none is near."""
    names = sorted(known)
    near = get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known: {', '.join(names)}" if names else "none is known"


# --- matrix.yaml and targets: 10-19 -------------------------------------------------------------


class YamlSyntaxError(FactoryError):
    """The file is not YAML, or uses a part of YAML that we do not accept."""

    exit_code = 10


class MatrixError(FactoryError):
    """matrix.yaml is YAML, but a key or a value in it is wrong."""

    exit_code = 11


class DuplicateKeyError(FactoryError):
    """A key stands twice in one mapping; YAML would silently keep the last."""

    exit_code = 12


class UnknownNameError(FactoryError):
    """A target, arch, model or version that the matrix does not have."""

    exit_code = 13


class ExcludedCellError(FactoryError):
    """The target names a combination that a rule of the matrix excludes."""

    exit_code = 14


class SpecifierError(FactoryError):
    """A version or version range that PEP 440 does not allow."""

    exit_code = 15


# --- locks: 20-34 -------------------------------------------------------------------------------


class LockMissingError(FactoryError):
    """The cell has no lock yet."""

    exit_code = 20


class LockEditedError(FactoryError):
    """The lock's content does not match its own checksum: somebody edited it by hand."""

    exit_code = 21


class LockDriftError(FactoryError):
    """matrix.yaml changed after the lock was made."""

    exit_code = 22


class LockFormatError(FactoryError):
    """The lock is not readable, or was written by another version of the factory."""

    exit_code = 23


class ResolutionError(FactoryError):
    """No set of packages satisfies what the matrix asks for."""

    exit_code = 24


class WheelMissingError(FactoryError):
    """No configured index has this wheel, or none of its files fits the platform."""

    exit_code = 25


class IndexUnreachableError(FactoryError):
    """The package index does not answer."""

    exit_code = 26


class SignatureError(FactoryError):
    """The Debian archive's signature does not verify."""

    exit_code = 27


class MirrorError(FactoryError):
    """No Debian mirror is known, or it does not answer, or it answers wrongly."""

    exit_code = 28


class PathConflictError(FactoryError):
    """Two packages own the same path with different content, and the matrix does not say who wins."""

    exit_code = 29


class IncompatibleWheelError(FactoryError):
    """A locked wheel cannot run on the base: wrong Python, wrong platform, or a newer glibc."""

    exit_code = 30


class DebianPackageError(FactoryError):
    """A Debian package or its dependency does not exist in the suites of the base."""

    exit_code = 31


class ModelHubError(FactoryError):
    """The model hub does not answer, or does not know the model."""

    exit_code = 32


class CompileNeededError(FactoryError):
    """The cell's kernels exist as source only."""

    exit_code = 33


# --- plan: 35-39 --------------------------------------------------------------------------------


class TooManyLayersError(FactoryError):
    """The plan needs more layers than a container engine can stack."""

    exit_code = 35


# --- store and downloads: 40-49 -----------------------------------------------------------------


class DownloadError(FactoryError):
    """A locked file could not be fetched from anywhere."""

    exit_code = 40


class DigestMismatchError(FactoryError):
    """A file's bytes are not the ones that the lock or the manifest names."""

    exit_code = 41


class DiskFullError(FactoryError):
    """There is no room left for what has to be written."""

    exit_code = 42


class OutputError(FactoryError):
    """The place that was named for an image cannot be written to, or holds something else."""

    exit_code = 43


# --- the Debian base: 50-59 ----------------------------------------------------------------------


class DebFormatError(FactoryError):
    """A .deb cannot be read: it is damaged, or made in a way we do not know."""

    exit_code = 50


class UnsafePathError(FactoryError):
    """A package holds something that may not go into an image: a path that escapes, a device, a whiteout."""

    exit_code = 51


class UnknownAlternativeError(FactoryError):
    """A package registers an alternative that the base's table does not have."""

    exit_code = 52


class UndeclaredMetadataError(FactoryError):
    """A package asks for an owner or a directory mode that the base's tables do not have."""

    exit_code = 53


# --- layers and images: 60-69 --------------------------------------------------------------------


class DuplicatePathError(FactoryError):
    """Two things of one layer want the same path."""

    exit_code = 60


class DamagedFileError(FactoryError):
    """A package's content is not what its own directory says."""

    exit_code = 61


class BadWheelError(FactoryError):
    """A wheel breaks a rule of its format, or tries to write outside of its environment."""

    exit_code = 62


class NotReproducibleError(FactoryError):
    """A layer came out differently from what was recorded for the same inputs."""

    exit_code = 63


class ImageMissingError(FactoryError):
    """The image has not been built yet."""

    exit_code = 64


class EngineError(FactoryError):
    """The container engine is missing, or refuses."""

    exit_code = 65


class VerificationError(FactoryError):
    """An image is not what a rebuild gives."""

    exit_code = 66


class PathNotFoundError(FactoryError):
    """Nothing in the image owns this path."""

    exit_code = 67


class StoreBusyError(FactoryError):
    """A build is using what was to be removed."""

    exit_code = 68


class WorkerLostError(FactoryError):
    """A process that built a layer was killed from outside, mostly because memory ran out."""

    exit_code = 69


# --- mods: 80-94 ---------------------------------------------------------------------------------


class ModManifestError(FactoryError):
    """A mod.yaml is wrong: a value, a reference, a file that it names."""

    exit_code = 80


class AnchorError(FactoryError):
    """An anchor occurs not once, but never or several times."""

    exit_code = 81


class PatchError(FactoryError):
    """A diff does not fit where it says, or touches what it does not declare."""

    exit_code = 82


class ModFileError(FactoryError):
    """A file that a mod changes is missing, or one that it adds is there already."""

    exit_code = 83


class ModCheckError(FactoryError):
    """A statement of a mod does not hold in the patched tree, or holds without the mod."""

    exit_code = 84


class ModConflictError(FactoryError):
    """Two mods touch the same lines, or say that they cannot be together."""

    exit_code = 85


class ModNotApplicableError(FactoryError):
    """A mod that was named does not apply to this version."""

    exit_code = 86


class ModClaimError(FactoryError):
    """A mod claims a version for which it does not hold."""

    exit_code = 87


class SourceMissingError(FactoryError):
    """The sources that a mod changes are out of reach."""

    exit_code = 88


class ModKeyError(FactoryError):
    """A mod.yaml has a key that mods do not know."""

    exit_code = 89


class ModPathError(FactoryError):
    """A mod names a path outside of the distribution that it changes."""

    exit_code = 90


class ModLicenceError(FactoryError):
    """A mod does not say its licence, or not in a form that an image can carry."""

    exit_code = 91


class ModVersionsError(FactoryError):
    """A version range of a mod is none, matches nothing, or says the same versions twice."""

    exit_code = 92


class ModCycleError(FactoryError):
    """Mods require each other in a circle."""

    exit_code = 93


class ModSyntaxError(FactoryError):
    """An edit leaves a file that does not compile."""

    exit_code = 94


# --- serving: 70-79 -----------------------------------------------------------------------------


class SettingRefusedError(FactoryError):
    """A setting for a container is unknown, or the image's serve program would refuse it."""

    exit_code = 70


class UnpinnedImageError(FactoryError):
    """A line, file or recipe that others run must name its image by digest."""

    exit_code = 71


class KeyFileUnusableError(FactoryError):
    """The API key cannot be handed to a container by file."""

    exit_code = 72


# --- compiling and auditing: 95-99 ---------------------------------------------------------------


class AuditError(FactoryError):
    """A library cannot be looked into, or there is nothing to judge it by."""

    exit_code = 95


class AuditFailedError(FactoryError):
    """A library holds no code that runs on the arch."""

    exit_code = 96


# --- the Docker engine: 100-104 ------------------------------------------------------------------


class EngineTooOldError(FactoryError):
    """The container engine or its command lacks something that the build needs."""

    exit_code = 100


class BuilderMissingError(FactoryError):
    """The builder that was named does not exist, or does not start."""

    exit_code = 101


class ForeignPlatformError(FactoryError):
    """The image is for another kind of machine, and the engine cannot run its programs."""

    exit_code = 102


class ImageBuildError(FactoryError):
    """A step of a Docker build failed."""

    exit_code = 103
