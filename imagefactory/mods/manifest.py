"""mod.yaml as a checked value: what a mod changes, in which versions, and when it retires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from imagefactory.content import Sha256, checksum
from imagefactory.errors import ModManifestError, did_you_mean
from imagefactory.matrix import Condition, Distribution, HubRepo, Name, Specifier, VersionText
from imagefactory.yamlfile import YamlFile, read_yaml

MANIFEST = "mod.yaml"
IMAGE_FILES = "/usr/share/imagefactory/"
"""Where a mod may put files that belong to no distribution."""

Licence = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]*( (AND|OR|WITH) [A-Za-z0-9.+-]+)*$")
]
"""An SPDX expression: the image's label is made of it."""


def _inside(path: str) -> str:
    """Refuse a path that leaves the distribution, or the one folder for other files."""
    below = path.removeprefix(IMAGE_FILES)
    parts = below.split("/")
    if below.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or "\\" in path:
        raise PydanticCustomError("path", "{path} is outside of the distribution", {"path": repr(path)})
    return path


ChangedPath = Annotated[str, AfterValidator(_inside)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Edit(_Model):
    """A change at a text that occurs exactly once."""

    edit: ChangedPath
    anchor: Annotated[str, Field(min_length=1)]
    before: str | None = None
    after: str | None = None
    replace: str | None = None

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if sum(text is not None for text in (self.before, self.after, self.replace)) != 1:
            raise PydanticCustomError("edit", "give exactly one of `before`, `after` and `replace`")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches."""
        return (self.edit,)


class Patch(_Model):
    """A unified diff that must fit line by line; `offset` says how far it may be from its line numbers."""

    patch: ChangedPath
    """The diff's file, next to mod.yaml."""
    files: Annotated[list[ChangedPath], Field(min_length=1)]
    """What the diff touches; a diff that touches something else is refused."""
    offset: Annotated[int, Field(ge=0, le=1000)] = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches."""
        return tuple(self.files)


class NewFile(_Model):
    """A file that is not there yet."""

    add: ChangedPath
    source: ChangedPath
    """The file's content, next to mod.yaml."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches."""
        return (self.add,)


Change = Edit | Patch | NewFile


class Check(_Model):
    """A statement about a file of the patched tree that can be checked without importing anything."""

    file: ChangedPath
    contains: str | None = None
    lacks: str | None = None
    class_: Annotated[str | None, Field(alias="class")] = None
    base: str | None = None
    function: str | None = None
    """A function, or Class.method; `contains`, `lacks` and `returns` then speak of its body."""
    returns: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.base is not None and self.class_ is None:
            raise PydanticCustomError("check", "`base` needs `class`")
        if self.returns is not None and self.function is None:
            raise PydanticCustomError("check", "`returns` needs `function`")
        if all(value is None for value in (self.contains, self.lacks, self.base, self.returns)):
            raise PydanticCustomError("check", "give one of `contains`, `lacks`, `base` and `returns`")
        return self

    def __str__(self) -> str:
        subject = self.function or self.class_
        place = f"{self.file}: {subject}" if subject else self.file
        if self.base is not None:
            return f"{place} has base {self.base}"
        if self.returns is not None:
            return f"{place} returns {self.returns}"
        verb, text = ("contains", self.contains) if self.contains is not None else ("lacks", self.lacks)
        return f"{place} {verb} {text!r}"


class GitSource(_Model):
    """A distribution that is on no index, at one commit."""

    git: HubRepo
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
    licence: Licence
    package: str
    """The folder of the repository that is the Python package."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """The hash of that folder at that commit, so that a copy from anywhere can be trusted."""


class Variant(_Model):
    """The form of a mod for a range of versions."""

    versions: Specifier
    stage: Literal["installed", "source"] = "installed"
    """Whether it changes the installed package, or the sources before they are compiled."""
    source: GitSource | None = None
    """Another distribution that this form brings along and changes, instead of vLLM."""
    changes: Annotated[list[Change], Field(min_length=1)]
    checks: list[Check] = []
    note: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that is touched, in order and each once."""
        return tuple(dict.fromkeys(path for change in self.changes for path in change.paths))


class NotNeeded(_Model):
    """Versions that do without the mod although it is not upstream there."""

    versions: Specifier
    reason: Annotated[str, Field(min_length=10)]


class Settings(_Model):
    """What an image with the mod sets in addition."""

    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str] = {}
    flags: dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")], str] = {}
    """Flags of `vllm serve`, written as in matrix.yaml's `serve`."""


class Manifest(_Model):
    """Everything in mod.yaml."""

    name: Name
    summary: Annotated[str, Field(min_length=10, max_length=120)]
    why: Annotated[str, StringConstraints(pattern=r"^https://")]
    licence: Licence
    distribution: Distribution
    needed_when: Annotated[list[Condition], Field(min_length=1)]
    """A model with `mods: auto` gets the mod when one of these holds."""
    upstreamed_in: VersionText | None = None
    upstream_checks: list[Check] = []
    """What makes a version recognisable as having it; by default the checks of the newest variant."""
    not_needed: list[NotNeeded] = []
    requires: list[Name] = []
    conflicts: list[Name] = []
    settings: Settings = Settings()
    variants: Annotated[list[Variant], Field(min_length=1)]

    @model_validator(mode="after")
    def _ranges_do_not_overlap(self) -> Self:
        for index, one in enumerate(self.variants):
            for other in self.variants[index + 1 :]:
                if one.stage == other.stage and one.versions == other.versions:
                    raise PydanticCustomError(
                        "variants", "two variants are for {versions}", {"versions": one.versions}
                    )
        return self


class Mod:
    """A mod: its manifest and the files next to it, from a folder or from a plan that carries both."""

    def __init__(
        self, manifest: Manifest, files: Mapping[str, bytes], source: YamlFile | None = None
    ) -> None:
        self.manifest = manifest
        self._files = files
        self._source = source

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """Make a mod from what `data` gave."""
        files = data["files"]
        if not isinstance(files, dict):
            raise TypeError(files)
        return cls(
            Manifest.model_validate(data["manifest"]), {name: text.encode() for name, text in files.items()}
        )

    def data(self) -> dict[str, object]:
        """Give everything that decides what the mod does, as plain values; prose does not count."""
        manifest = self.manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        manifest |= {"summary": "(not part of a plan)", "needed_when": [{"model": "*"}]}
        manifest.pop("not_needed", None)
        return {
            "manifest": manifest,
            "files": {name: data.decode() for name, data in sorted(self._files.items())},
        }

    @property
    def name(self) -> str:
        """The mod's name, which is its folder's."""
        return self.manifest.name

    def variants(self, version: Version, stage: str = "installed") -> list[Variant]:
        """List the forms for a version; a valid mod has at most one."""
        return [
            variant
            for variant in self.manifest.variants
            if variant.stage == stage and SpecifierSet(variant.versions).contains(version, prereleases=True)
        ]

    def variant(self, version: Version, stage: str = "installed") -> Variant | None:
        """Give the form of the mod for a version, if it has one."""
        found = self.variants(version, stage)
        return found[0] if found else None

    def is_upstream(self, version: Version) -> bool:
        """Say whether the mod claims that a version has the change already."""
        since = self.manifest.upstreamed_in
        return since is not None and version >= Version(since)

    def reason_not_needed(self, version: Version) -> str | None:
        """Say why a version does without the mod, if the mod says so."""
        for entry in self.manifest.not_needed:
            if SpecifierSet(entry.versions).contains(version, prereleases=True):
                return entry.reason
        return None

    def read(self, name: str) -> bytes:
        """Read a file that lies next to mod.yaml."""
        return self._files[name]

    def where(self, *path: str | int) -> str:
        """Say where something stands, for error messages."""
        location = self._source.location(path) if self._source is not None else MANIFEST
        return f"mods/{self.name}/{location}"

    def digest(self) -> Sha256:
        """Hash everything that decides what the mod does."""
        return checksum(self.data())


def load_mods(root: Path) -> dict[str, Mod]:
    """Read every mod of a folder, and check how they refer to each other."""
    folders = sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))
    mods = {mod.name: mod for mod in map(load_mod, folders)}
    for mod in mods.values():
        for key, names in (("requires", mod.manifest.requires), ("conflicts", mod.manifest.conflicts)):
            for name in names:
                if name not in mods:
                    raise ModManifestError(
                        f"The mod {mod.name} {key} {name}, which does not exist.",
                        where=mod.where(key),
                        why=f"There is no folder mods/{name}.",
                        fix=did_you_mean(name, mods).capitalize(),
                    )
    _refuse_cycles(mods)
    return mods


def load_mod(folder: Path) -> Mod:
    """Read and check one mod."""
    source = read_yaml(folder / MANIFEST)
    label = f"mods/{folder.name}/"
    try:
        manifest = Manifest.model_validate(source.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A change that is none of the three kinds gives errors for each; the nearest kind has the fewest.
        first = min(
            details, key=lambda detail: (source.location(detail["loc"]).line or 0, len(detail["loc"]))
        )
        at = ".".join(str(part) for part in first["loc"])
        unknown = first["type"] == "extra_forbidden"
        raise ModManifestError(
            f"Unknown key {first['loc'][-1]!r}." if unknown else f"{at} is wrong.",
            where=f"{label}{source.location(first['loc'])}",
            why=first["msg"],
            fix="Correct it; schemas/mod.schema.json describes every key, mods/README.md shows an example.",
        ) from None
    if manifest.name != folder.name:
        raise ModManifestError(
            f"The mod in mods/{folder.name} calls itself {manifest.name}.",
            where=f"{label}{source.location(('name',))}",
            why="A mod's name is its folder's name.",
            fix="Rename the folder or the mod.",
        )
    mod = Mod(manifest, _read_files(folder, manifest, f"{label}{source.location(('variants',))}"), source)
    for index, variant in enumerate(manifest.variants):
        if SpecifierSet(variant.versions).contains("0.0.0", prereleases=True) and not variant.versions:
            raise ModManifestError(
                f"A variant of the mod {manifest.name} is for every version.",
                where=mod.where("variants", index),
                why="A change that fits all past and future releases does not exist.",
                fix='Give it a range, such as ">=0.20,<0.24".',
            )
    return mod


def _read_files(folder: Path, manifest: Manifest, where: str) -> dict[str, bytes]:
    names = {
        name for variant in manifest.variants for change in variant.changes for name in _files_of(change)
    }
    files: dict[str, bytes] = {}
    for name in sorted(names):
        try:
            files[name] = (folder / name).read_bytes()
        except OSError:
            raise ModManifestError(
                f"The mod {manifest.name} names a file that it does not have: {name}.",
                where=where,
                why="The file is not in the mod's folder.",
                fix="Add the file, or correct its name in mod.yaml.",
            ) from None
    return files


def _files_of(change: Change) -> Iterator[str]:
    if isinstance(change, Patch):
        yield change.patch
    elif isinstance(change, NewFile):
        yield change.source


def _refuse_cycles(mods: dict[str, Mod]) -> None:
    for mod in mods.values():
        path = [mod.name]
        trail = _find_cycle(mods, mod.name, path)
        if trail:
            raise ModManifestError(
                f"Mods require each other in a circle: {' -> '.join(trail)}.",
                where=mod.where("requires"),
                why="None of them could be applied first.",
                fix="Remove one of the `requires`.",
            )


def _find_cycle(mods: dict[str, Mod], name: str, path: list[str]) -> list[str] | None:
    for required in mods[name].manifest.requires:
        if required == path[0]:
            return [*path, required]
        if required in path:
            continue
        found = _find_cycle(mods, required, [*path, required])
        if found:
            return found
    return None
