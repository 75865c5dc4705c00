"""Mods at start-up: applied inside a running container, by the same code and with the same strictness.

    python -m imagefactory.mods.runtime --folder /mods --name eagle3-marker

changes the installed files before the server starts. A mod that does not apply stops the start and leaves every file
as it was; one that is applied already (a restarted container, or an image that was built with it) is left alone.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from pathlib import Path

from packaging.version import Version

from imagefactory.errors import (
    FactoryError,
    ModFileError,
    ModNotApplicableError,
    UnknownNameError,
    did_you_mean,
)
from imagefactory.mods.apply import Applied, apply_mods
from imagefactory.mods.manifest import IMAGE_FILES, Mod, Variant, load_mods

RECORD_OF_MODS = Path("/usr/share/imagefactory/mods.json")


def apply_installed(folder: Path, names: Sequence[str], *, site: Path, record: Path) -> list[str]:
    """Apply mods of a folder to what is installed; say of each what became of it."""
    mods = load_mods(folder)
    done = {entry["name"]: entry for entry in _read_record(record)["mods"]}
    chosen: list[tuple[Mod, Variant]] = []
    said: list[str] = []
    for name in names:
        if name not in mods:
            raise UnknownNameError(
                f"There is no mod {name!r}.",
                where=folder,
                why="MODS names it, but the folder does not have it.",
                fix=did_you_mean(name, mods).capitalize(),
            )
        mod = mods[name]
        if name in done and _still_there(done[name], site):
            said.append(f"{name}: applied already")
            continue
        chosen.append((mod, _variant(mod)))
    applied = apply_mods(chosen, lambda path: _read(site, path))
    for result in applied:
        for path, text in result.files.items():
            _write(_located(site, path), text.encode())
        _update_record(result, site)
        said.append(f"{result.mod.name}: applied ({result.variant.versions}), {len(result.files)} files")
    if applied:
        entries = [*done.values(), *(_entry(result) for result in applied)]
        _write(record, (json.dumps({"mods": entries}, indent=2, sort_keys=True) + "\n").encode())
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program; the exit code is the error's."""
    parser = argparse.ArgumentParser(prog="imagefactory.mods.runtime", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the mods' folders are")
    parser.add_argument(
        "--name", action="append", default=[], help="a mod to apply; may be given several times"
    )
    options = parser.parse_args(arguments)
    try:
        site = Path(sysconfig.get_paths()["purelib"])
        for line in apply_installed(options.folder, options.name, site=site, record=RECORD_OF_MODS):
            sys.stderr.write(f"mods: {line}\n")
    except FactoryError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _variant(mod: Mod) -> Variant:
    release = Version(Version(installed_version(mod.manifest.distribution)).public)
    variant = mod.variant(release)
    if variant is not None and variant.source is None:
        return variant
    if mod.is_upstream(release):
        why = f"It is upstream since {mod.manifest.upstreamed_in}."
    elif variant is not None:
        why = "It brings other sources along, which only a build can do."
    else:
        why = f"It has no variant for {mod.manifest.distribution} {release}."
    raise ModNotApplicableError(
        f"The mod {mod.name} does not apply here.",
        where=mod.where("variants"),
        why=mod.reason_not_needed(release) or why,
        fix="Remove it from MODS.",
    )


def _located(site: Path, path: str) -> Path:
    return Path(path) if path.startswith(IMAGE_FILES) else site / path


def _read(site: Path, path: str) -> str | None:
    file = _located(site, path)
    return file.read_text("utf-8") if file.is_file() else None


def _write(path: Path, data: bytes) -> None:
    """Replace a file in one step, and remove bytecode that was made from the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".mod-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except PermissionError:
        raise ModFileError(
            f"{path} cannot be changed.",
            where=path,
            why="The container does not run as root, or its file system is read-only.",
            fix="Run it as root and writable, or use an image that was built with the mod.",
        ) from None
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        stale.unlink(missing_ok=True)


def _update_record(result: Applied, site: Path) -> None:
    name = result.mod.manifest.distribution.replace("-", "_")
    for record in site.glob(f"{name}-*.dist-info/RECORD"):
        rows = {row[0]: row for row in csv.reader(io.StringIO(record.read_text("utf-8"))) if row}
        for path, text in result.files.items():
            if not path.startswith(IMAGE_FILES):
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
                rows[path] = [path, f"sha256={digest}", str(len(text.encode()))]
        rewritten = io.StringIO()
        csv.writer(rewritten, lineterminator="\n").writerows(rows.values())
        _write(record, rewritten.getvalue().encode())


def _read_record(record: Path) -> dict[str, list[dict[str, object]]]:
    data: dict[str, list[dict[str, object]]] = (
        json.loads(record.read_text("utf-8")) if record.exists() else {"mods": []}
    )
    return data


def _still_there(entry: dict[str, object], site: Path) -> bool:
    files = entry["files"]
    if not isinstance(files, dict):
        return False
    return all(
        (text := _read(site, path)) is not None
        and hashlib.sha256(text.encode()).hexdigest() == hashes["after"]
        for path, hashes in files.items()
    )


def _entry(result: Applied) -> dict[str, object]:
    return {
        "name": result.mod.name,
        "versions": result.variant.versions,
        "licence": result.mod.manifest.licence,
        "distribution": result.mod.manifest.distribution,
        "files": {
            path: {"before": result.before[path], "after": hashlib.sha256(text.encode()).hexdigest()}
            for path, text in sorted(result.files.items())
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
