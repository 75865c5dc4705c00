"""The model of mod.yaml: what a mod changes, in which versions, and when it retires."""

import ast
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, get_args

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

from images.shipped.errors import ModError
from images.shipped.hashing import Sha256, checksum
from images.shipped.mods.settings import refuse_settings
from images.shipped.values import Condition, Distribution, Name, ServerName, Specifier, VersionText
from images.shipped.yamlfile import YamlFile

MANIFEST = "mod.yaml"
IMAGE_FILES = "/usr/share/imagefactory/mods/"  # the folder for files that belong to no distribution
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser and compiler raise, the last two if a text is nested too deeply."""

Licence = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+-]*( (AND|OR|WITH) [A-Za-z0-9.+-]+)*$")]
"""An SPDX expression, for the image's label."""

_LONGEST = 255  # bytes that file systems allow for a name
_RUN_BY_PYTHON = frozenset({"sitecustomize", "usercustomize"})
"""Modules that every Python process imports by itself."""


def path_fault(path: str) -> str | None:
    """Return why a mod may not bring a file to a path; None if it may, as far as the path alone can tell."""
    parts = path.split("/")
    faults = {
        "is outside the distribution": not {"", ".", ".."}.isdisjoint(parts) or "\\" in path,
        "has characters that cannot be printed": not path.isprintable(),
        "has a name that is too long": any(len(part.encode(errors="replace")) > _LONGEST for part in parts),
        "would delete files of other layers": any(part.startswith(".wh.") for part in parts),
        "would run whenever Python starts": path.endswith(".pth") or parts[0].partition(".")[0] in _RUN_BY_PYTHON,
        "would run in place of a source": "__pycache__" in parts or path.endswith((".so", ".pyc")),
        "is written by the factory": path.endswith(".dist-info/RECORD"),
    }
    return next((fault for fault, found in faults.items() if found), None)


def folders_above(path: str) -> list[str]:
    """List the folders above a path of a mod, outermost first."""
    root = IMAGE_FILES if path.startswith(IMAGE_FILES) else ""
    parts = path.removeprefix(root).split("/")
    return [root + "/".join(parts[:count]) for count in range(1, len(parts))]


def _relative(path: str) -> str:
    fault = path_fault(path)
    if fault is not None:
        raise PydanticCustomError("forbidden path", "{path} {fault}", {"path": repr(path), "fault": fault})
    return path


def _inside(path: str) -> str:
    """Refuse a path outside the distribution and the folder for other files."""
    _relative(path.removeprefix(IMAGE_FILES))
    return path


def _expression(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except UNPARSABLE:
        raise PydanticCustomError("expression", "{text} is not Python", {"text": repr(text[:60])}) from None


ChangedPath = Annotated[str, AfterValidator(_inside)]
OwnPath = Annotated[str, AfterValidator(_relative)]  # a file next to mod.yaml
Expression = Annotated[str, AfterValidator(_expression)]
Stage = Literal["installed", "source"]
STAGES: tuple[Stage, ...] = ("installed", "source")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Edit(_Model):
    """An edit at an anchor, a text that occurs exactly once in a file."""

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


class Patch(_Model):
    """A unified diff that must fit exactly, at its line numbers."""

    patch: OwnPath
    files: Annotated[list[ChangedPath], Field(min_length=1)]
    """The files that the diff touches; it must touch no others."""


class NewFile(_Model):
    """A new file."""

    add: ChangedPath
    source: OwnPath  # the file with its content


_KINDS = {"edit": "an edit", "patch": "a diff", "add": "a new file"}  # the kind of a change, by its first key


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


def changed_paths(change: Edit | Patch | NewFile) -> list[str]:
    if isinstance(change, Patch):
        return change.files
    return [change.edit if isinstance(change, Edit) else change.add]


class Check(_Model):
    """A statement about a file of the patched tree, checked without importing it."""

    file: ChangedPath
    contains: str | None = None
    lacks: str | None = None
    class_: Annotated[str | None, Field(alias="class")] = None
    base: Expression | None = None
    function: str | None = None
    """A function, or Class.method, that `contains`, `lacks` or `returns` refers to."""
    returns: Expression | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        statements = (self.contains, self.lacks, self.base, self.returns)
        if sum(statement is not None for statement in statements) != 1:
            raise PydanticCustomError("check", "give exactly one of `contains`, `lacks`, `base` and `returns`")
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


class Variant(_Model):
    """The changes of a mod for a range of versions."""

    versions: Specifier
    stage: Stage = "installed"  # whether it changes the installed package or the sources before compilation
    changes: Annotated[list[Change], Field(min_length=1)]
    checks: Annotated[list[Check], Field(min_length=1)]
    """At least one fails without the changes; if none does, the mod is upstream."""

    @model_validator(mode="after")
    def _paths_fit(self) -> Self:
        paths = set(self.paths)
        for path in self.paths:
            if not paths.isdisjoint(folders_above(path)):
                raise PydanticCustomError("taken path", "{path} is below another file", {"path": repr(path)})
            top, below, _ = path.partition("/")
            outside = below and not top.isidentifier() and not path.startswith(IMAGE_FILES)
            if self.stage == "installed" and outside:
                raise PydanticCustomError("path", "{path} is outside the distribution's packages", {"path": repr(path)})
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for change in self.changes for path in changed_paths(change)))

    @property
    def own_files(self) -> Iterator[str]:
        for change in self.changes:
            if isinstance(change, Patch):
                yield change.patch
            elif isinstance(change, NewFile):
                yield change.source


class NotNeeded(_Model):
    """Versions that do not need the mod although it is not upstream."""

    versions: Specifier
    reason: Annotated[str, Field(min_length=10)]


class Settings(_Model):
    """Settings that an image with the mod adds."""

    env: dict[Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$")], str] = {}
    flags: dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")], str] = {}
    """Flags of `vllm serve`, written as below `serve` in matrix.yaml."""

    @model_validator(mode="after")
    def _may_be_set(self) -> Self:
        refuse_settings(self.env | self.flags, IMAGE_FILES)
        return self


class Manifest(_Model):
    """The content of mod.yaml."""

    name: Name
    summary: Annotated[str, Field(min_length=10, max_length=120)]
    why: Annotated[str, StringConstraints(pattern=r"^https://")]
    licence: Licence
    distribution: Distribution
    server: ServerName | None = None
    """The server whose versions the mod names, where the distribution does not tell: by default vLLM."""
    needed_when: Annotated[list[Condition], Field(min_length=1)]
    """A model with `mods: auto` gets the mod if one of these matches."""
    upstreamed_in: VersionText | None = None
    upstream_checks: list[Check] = []
    """Checks that pass in a version with the change; by default those of the newest variant."""
    not_needed: list[NotNeeded] = []
    settings: Settings = Settings()
    variants: Annotated[list[Variant], Field(min_length=1)]

    @property
    def of_server(self) -> str:
        """The server whose images the mod is for; its versions are those that the mod names."""
        servers = get_args(ServerName)
        return self.server or (self.distribution if self.distribution in servers else servers[0])


def _covers(entry: Variant | NotNeeded, version: Version) -> bool:
    return SpecifierSet(entry.versions).contains(version, prereleases=True)


class Mod:
    """A mod with the files next to its mod.yaml, from a folder or from a plan."""

    def __init__(self, manifest: Manifest, files: Mapping[str, bytes], source: YamlFile | None = None) -> None:
        self.manifest = manifest
        self._files = files
        self._source = source

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Create a mod with one variant from the result of `data`."""
        files = {name: text.encode() for name, text in data["files"].items()}
        return cls(Manifest.model_validate(data["manifest"]), files)

    def data(self, variant: Variant) -> dict[str, object]:
        """Return everything that determines the effect of a variant, without prose, as plain values."""
        decisive = Manifest(
            name=self.name,
            summary="(not part of a plan)",
            why="https://not-part-of-a-plan",
            licence=self.manifest.licence,
            distribution=self.manifest.distribution,
            needed_when=[Condition(model="*")],
            variants=[variant],
        )
        return {
            "manifest": decisive.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            "files": {name: self._files[name].decode() for name in sorted(variant.own_files)},
        }

    @property
    def name(self) -> str:
        return self.manifest.name

    def variant(self, version: Version, stage: Stage = "installed") -> Variant | None:
        """Return the variant for a version, if there is one; ranges do not overlap."""
        staged = (variant for variant in self.manifest.variants if variant.stage == stage)
        return next((variant for variant in staged if _covers(variant, version)), None)

    def needed_variant(self, version: Version) -> Variant:
        """Return the variant for the installed files of a version; raise an error if there is none."""
        variant = self.variant(version)
        if variant is None:
            raise ModError(
                "not-applicable",
                f"The mod {self.name} does not apply to vLLM {version}.",
                where=self.where("variants"),
                why=f"{self.why_not(version)}.",
                fix="Leave it out; `./inv mods.check` lists the versions it applies to.",
            )
        return variant

    def why_not(self, version: Version, *, compiled: bool = False) -> str:
        """Explain why the mod does not change the installed files of a version."""
        if self.is_upstream(version):
            return f"{self.name}: upstream since {self.manifest.upstreamed_in}"
        reason = self.reason_not_needed(version)
        if reason is not None:
            return f"{self.name}: not needed, {reason}"
        if self.variant(version, "source") is None:
            return f"{self.name}: has no variant for {version}"
        if compiled:
            return f"{self.name}: is applied to the sources, before they are compiled"
        return f"{self.name}: changes sources that are compiled; these kernels come from a wheel"

    def is_upstream(self, version: Version) -> bool:
        since = self.manifest.upstreamed_in
        return since is not None and version >= Version(since)

    def reason_not_needed(self, version: Version) -> str | None:
        """Return why a version does not need the mod; None if the mod gives no reason."""
        entries = self.manifest.not_needed
        return next((entry.reason for entry in entries if _covers(entry, version)), None)

    def read(self, name: str) -> bytes:
        return self._files[name]

    def where(self, *path: str | int) -> str:
        return str(self._source.location(path)) if self._source else f"mods/{self.name}/{MANIFEST}"

    def where_in(self, variant: Variant, *path: str | int) -> str:
        return self.where("variants", self.manifest.variants.index(variant), *path)

    def label(self, variant: Variant) -> str:
        return f"{self.name} ({variant.versions})"

    def digest(self, variant: Variant) -> Sha256:
        return checksum(self.data(variant))
