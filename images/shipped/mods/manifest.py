"""mod.yaml as a checked value: what a mod changes, in which versions, and when it retires."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from images.shipped.conditions import Condition
from images.shipped.hashing import Sha256, checksum
from images.shipped.values import Distribution, HubRepo, Name, Specifier, VersionText
from images.shipped.yamlfile import YamlFile

MANIFEST = "mod.yaml"
IMAGE_FILES = "/usr/share/imagefactory/mods/"
"""Where a mod may put files that belong to no distribution."""

Licence = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]*( (AND|OR|WITH) [A-Za-z0-9.+-]+)*$")
]
"""An SPDX expression: the image's label is made of it."""


def _relative(path: str) -> str:
    """Refuse a path that leaves the folder it is meant for, or that has two spellings."""
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\\" in path:
        raise PydanticCustomError("path", "{path} is outside of the distribution", {"path": repr(path)})
    return path


def _inside(path: str) -> str:
    """Refuse a path that leaves the distribution, or the one folder for other files."""
    _relative(path.removeprefix(IMAGE_FILES))
    if path.endswith(".dist-info/RECORD"):
        raise PydanticCustomError("path", "{path} is written by the factory", {"path": repr(path)})
    return path


def _expression(text: str) -> str:
    """Write a Python expression the way checks compare it."""
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except SyntaxError:
        raise PydanticCustomError("expression", "{text} is not Python", {"text": repr(text)}) from None


ChangedPath = Annotated[str, AfterValidator(_inside)]
OwnPath = Annotated[str, AfterValidator(_relative)]
"""A file next to mod.yaml."""
Expression = Annotated[str, AfterValidator(_expression)]


Stage = Literal["installed", "source"]
STAGES: tuple[Stage, ...] = ("installed", "source")


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

    patch: OwnPath
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
    source: OwnPath
    """What the new file holds."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files it touches."""
        return (self.add,)


_KINDS = {"edit": "an edit", "patch": "a diff", "add": "a new file"}
"""The key by which a change is recognised, and what it then is."""


def _kind_of(change: object) -> str | None:
    has = change.__contains__ if isinstance(change, dict) else lambda key: hasattr(change, key)
    return next((kind for key, kind in _KINDS.items() if has(key)), None)


Change = Annotated[
    Annotated[Edit, Tag("an edit")] | Annotated[Patch, Tag("a diff")] | Annotated[NewFile, Tag("a new file")],
    Discriminator(
        _kind_of,
        custom_error_type="change",
        custom_error_message="a change has the key `edit` (with `anchor`), `patch` (with `files`) "
        "or `add` (with `source`)",
    ),
]


class Check(_Model):
    """One statement about a file of the patched tree that can be checked without importing anything."""

    file: ChangedPath
    contains: str | None = None
    lacks: str | None = None
    class_: Annotated[str | None, Field(alias="class")] = None
    base: Expression | None = None
    function: str | None = None
    """A function, or Class.method; `contains`, `lacks` and `returns` then speak of its body."""
    returns: Expression | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        statements = (self.contains, self.lacks, self.base, self.returns)
        if sum(statement is not None for statement in statements) != 1:
            raise PydanticCustomError(
                "check", "give exactly one of `contains`, `lacks`, `base` and `returns`"
            )
        if self.class_ is not None and self.function is not None:
            raise PydanticCustomError("check", "give `class` or `function`; a method is `Class.method`")
        if self.base is not None and self.class_ is None:
            raise PydanticCustomError("check", "`base` needs `class`")
        if self.returns is not None and self.function is None:
            raise PydanticCustomError("check", "`returns` needs `function`")
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
    package: OwnPath
    """The folder of the repository that is the Python package."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """The hash of that folder at that commit, so that a copy from anywhere can be trusted."""


class Variant(_Model):
    """The form of a mod for a range of versions."""

    versions: Specifier
    stage: Stage = "installed"
    """Whether it changes the installed package, or the sources before they are compiled."""
    source: GitSource | None = None
    """Another distribution that this form brings along and changes, instead of vLLM."""
    changes: Annotated[list[Change], Field(min_length=1)]
    checks: Annotated[list[Check], Field(min_length=1)]
    """At least one of them is false without the changes: that is how a mod is found to be upstream."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that is touched, in order and each once."""
        return tuple(dict.fromkeys(path for change in self.changes for path in change.paths))

    @property
    def own_files(self) -> Iterator[str]:
        """The files next to mod.yaml that it needs."""
        for change in self.changes:
            if isinstance(change, Patch):
                yield change.patch
            elif isinstance(change, NewFile):
                yield change.source


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
        """Make a mod, with its one variant, from what `data` gave."""
        files = data["files"]
        if not isinstance(files, dict):
            raise TypeError(files)
        return cls(
            Manifest.model_validate(data["manifest"]), {name: text.encode() for name, text in files.items()}
        )

    def data(self, variant: Variant) -> dict[str, object]:
        """Return everything that decides what a variant does to files, as plain values; prose does not count."""
        decisive = Manifest(
            name=self.name,
            summary="(not part of a plan)",
            why="https://not-part-of-a-plan",
            licence=self.manifest.licence,
            distribution=self.manifest.distribution,
            needed_when=[Condition(model="*")],
            requires=self.manifest.requires,
            conflicts=self.manifest.conflicts,
            variants=[variant],
        )
        return {
            "manifest": decisive.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            "files": {name: self._files[name].decode() for name in sorted(variant.own_files)},
        }

    @property
    def name(self) -> str:
        """The mod's name, which is its folder's."""
        return self.manifest.name

    def variant(self, version: Version, stage: Stage = "installed") -> Variant | None:
        """Return the form of the mod for a version, if it has one; ranges do not overlap."""
        return next(
            (
                variant
                for variant in self.manifest.variants
                if variant.stage == stage
                and SpecifierSet(variant.versions).contains(version, prereleases=True)
            ),
            None,
        )

    def is_upstream(self, version: Version) -> bool:
        """Return whether the mod claims that a version has the change already."""
        since = self.manifest.upstreamed_in
        return since is not None and version >= Version(since)

    def reason_not_needed(self, version: Version) -> str | None:
        """Explain why a version does without the mod, if the mod says so."""
        for entry in self.manifest.not_needed:
            if SpecifierSet(entry.versions).contains(version, prereleases=True):
                return entry.reason
        return None

    def read(self, name: str) -> bytes:
        """Read a file that lies next to mod.yaml."""
        return self._files[name]

    def where(self, *path: str | int) -> str:
        """Return where something stands, for error messages."""
        return (
            str(self._source.location(path)) if self._source is not None else f"mods/{self.name}/{MANIFEST}"
        )

    def where_in(self, variant: Variant, *path: str | int) -> str:
        """Return where something of a variant stands."""
        return self.where("variants", self.manifest.variants.index(variant), *path)

    def label(self, variant: Variant) -> str:
        """Name the mod and the form of it, for error messages."""
        return f"{self.name} ({variant.versions})"

    def digest(self, variant: Variant) -> Sha256:
        """Hash everything that decides what a variant does to files."""
        return checksum(self.data(variant))
