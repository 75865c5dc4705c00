"""Loads mods from their folders; errors name the mod, the file and the line."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from images.shipped.errors import FactoryError, ModError, did_you_mean
from images.shipped.mods.manifest import (
    MANIFEST,
    STAGES,
    Check,
    Edit,
    Manifest,
    Mod,
    NewFile,
    NotNeeded,
    Patch,
    Settings,
    Stage,
    Variant,
)
from images.shipped.values import Condition
from images.shipped.yamlfile import YamlFile, read_yaml

_PARTS: dict[str, type[BaseModel]] = {
    "variants": Variant,
    "an edit": Edit,
    "a diff": Patch,
    "a new file": NewFile,
    "checks": Check,
    "upstream_checks": Check,
    "not_needed": NotNeeded,
    "needed_when": Condition,
    "settings": Settings,
}
"""The models of mod.yaml's parts, by the last known name in a path."""


def load_mods(root: Path) -> dict[str, Mod]:
    """Load every mod in a folder."""
    folders = sorted(
        path for path in (root.iterdir() if root.is_dir() else ()) if path.is_dir() and path.name[0] not in "._"
    )
    return {mod.name: mod for mod in map(load_mod, folders)}


def load_mod(folder: Path) -> Mod:
    if not (folder / MANIFEST).is_file():
        raise ModError(
            "bad-mod",
            f"The folder mods/{folder.name} has no {MANIFEST}.",
            where=f"mods/{folder.name}",
            why="Every folder in mods/ is a mod and needs that file.",
            fix="Write it (`./inv mods.new` creates an example), or move the folder elsewhere.",
        )
    source = read_yaml(folder / MANIFEST, f"mods/{folder.name}/{MANIFEST}")
    try:
        manifest = Manifest.model_validate(source.data)
    except ValidationError as error:
        raise _explain(folder.name, source, error.errors(include_url=False)) from None
    mod = Mod(manifest, _read_files(folder, manifest, source), source)
    if manifest.name != folder.name:
        raise ModError(
            "bad-mod",
            f"The mod in mods/{folder.name} is named {manifest.name}.",
            where=source.location(("name",)),
            why="A mod has the name of its folder.",
            fix="Rename the folder or the mod.",
        )
    for stage in STAGES:
        _refuse_wrong_ranges(mod, stage)
    return mod


_PATHS = {"path": "bad-mod-path", "forbidden path": "forbidden-path", "taken path": "taken-path"}
"""The types of validation errors about paths."""


def _explain(name: str, source: YamlFile, details: list[ErrorDetails]) -> FactoryError:
    """Convert the first validation error, in the order of the file, into a FactoryError."""
    # A typo is two errors, an unknown key and a missing one; the first is more helpful.
    mistyped = {detail["loc"][:-1] for detail in details if detail["type"] == "extra_forbidden"}
    details = [item for item in details if item["type"] != "missing" or item["loc"][:-1] not in mistyped]
    first = min(details, key=lambda detail: source.location(detail["loc"]).line or 0)
    where = source.location(first["loc"])
    path = [str(part) for part in first["loc"]]
    at = ".".join(part for part in path if " " not in part) or MANIFEST
    help_ = "docs/schemas/mod.schema.json describes every key, mods/README.md shows an example."
    if first["type"] == "extra_forbidden":
        owner = next((_PARTS[part] for part in reversed(path[:-1]) if part in _PARTS), Manifest)
        known = [field.alias or key for key, field in owner.model_fields.items()]
        return ModError(
            "unknown-key",
            f"Unknown key {path[-1]!r} in the mod {name}.",
            where=where,
            why=f"{at} is not a key of mods.",
            fix=did_you_mean(path[-1], known),
        )
    failure = "bad-mod"
    what, why, fix = f"{at} of the mod {name} is wrong.", f"{at}: {first['msg']}.", f"Correct it; {help_}"
    if path[-1:] == ["licence"]:
        failure, what = "bad-licence", f"The mod {name} has no valid licence."
        why += " Images list the licences of everything in them."
        fix = "Write an SPDX expression, such as `licence: Apache-2.0`."
    elif first["type"] in _PATHS:
        failure, what = _PATHS[first["type"]], f"The mod {name} names a path that is not allowed."
        fix = "The mod's author: name a file in a package of its distribution."
        if failure == "forbidden-path":
            fix += " Whoever reviews it: no mod needs such a path, so ask what it is for."
    elif first["type"] == "specifier":
        failure, what = "bad-mod-versions", f"The mod {name} has an invalid version range."
        fix = 'Write a PEP 440 range, such as ">=0.20,<0.24".'
    return ModError(failure, what, where=where, why=why, fix=fix)


def _read_files(folder: Path, manifest: Manifest, source: YamlFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for index, variant in enumerate(manifest.variants):
        for name in variant.own_files:
            path = (folder / name).resolve()
            try:
                if not path.is_relative_to(folder.resolve()):
                    raise ValueError("it is a link to another folder")  # noqa: TRY301
                if not path.is_file():
                    raise ValueError("there is no such file")  # noqa: TRY301
                files[name] = path.read_bytes()
                files[name].decode()  # raises UnicodeDecodeError, a ValueError
            except (OSError, ValueError) as error:
                raise ModError(
                    "bad-mod",
                    f"The mod {manifest.name} names an unusable file: {name}.",
                    where=source.location(("variants", index, "changes")),
                    why=f"It must be a text file in the mod's folder ({error}).",
                    fix="Add the file, or correct its name in mod.yaml.",
                ) from None
    return files


def _claims(mod: Mod, stage: Stage) -> Iterator[tuple[str, str, str]]:
    """Yield the statements of a mod about versions: the statement, the versions and the location."""
    for index, variant in enumerate(mod.manifest.variants):
        if variant.stage == stage:
            yield "a variant", variant.versions, mod.where("variants", index, "versions")
    for index, entry in enumerate(mod.manifest.not_needed):
        yield "not needed", entry.versions, mod.where("not_needed", index, "versions")
    if mod.manifest.upstreamed_in is not None:
        yield "upstream", f">={mod.manifest.upstreamed_in}", mod.where("upstreamed_in")


def _refuse_wrong_ranges(mod: Mod, stage: Stage) -> None:
    claims = list(_claims(mod, stage))
    for index, (says, versions, where) in enumerate(claims):
        empty, every = common_version(versions) is None, not versions.strip()
        if empty or every:
            raise ModError(
                "bad-mod-versions",
                f"A range of the mod {mod.name} matches {'every' if every else 'no'} version.",
                where=where,
                why="No change fits all past and future releases." if every else f"No version lies in {versions!r}.",
                fix='Write a range, such as ">=0.20,<0.24".',
            )
        for also, others, _ in claims[index + 1 :]:
            both = common_version(versions, others)
            if both is not None:
                raise ModError(
                    "bad-mod-versions",
                    f"The mod {mod.name} makes two statements about {both}.",
                    where=where,
                    why=f"It is {says} for {versions!r} and {also} for {others!r}.",
                    fix="Let no version be in two of the ranges.",
                )


_FAR = 999_999


def common_version(*ranges: str) -> Version | None:
    """Return a version that lies in all ranges; None if there is none.

    A range begins and ends at the versions that it names or, for `==1.2.*` and `~=1.2.3`, at the next number of one of
    their parts. So it is enough to try these and their neighbours.
    """
    sets = [SpecifierSet(text) for text in ranges]
    found = (
        version
        for version in sorted(_probes(sets))
        if all(specifiers.contains(version, prereleases=True) for specifiers in sets)
    )
    return next(found, None)


def _probes(sets: Iterable[SpecifierSet]) -> set[Version]:
    probes = {Version("0"), Version(f"{_FAR}")}
    for specifier in (specifier for specifiers in sets for specifier in specifiers):
        try:
            named = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` accepts any text
            continue
        probes.add(named)
        for release in _turning_points(named.release):
            text = ".".join(map(str, release))
            probes |= {Version(text), Version(f"{text}.dev0"), Version(f"{text}.0.0.1")}
    return probes


def _turning_points(release: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield a release, the next one for each of its parts, and the one right before each of those."""
    ends = [release, *((*release[:part], release[part] + 1) for part in range(len(release)))]
    for end in ends:
        yield end
        part = max((index for index, number in enumerate(end) if number), default=None)
        if part is not None:
            yield (*end[:part], end[part] - 1, _FAR)
