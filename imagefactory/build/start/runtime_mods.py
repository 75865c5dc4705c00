"""Lets a container apply mods when it starts: what is mounted for that, and what is set."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.mods.choose import find_mod
from images.shipped.mods.manifest import IMAGE_FILES, NewFile
from images.shipped.mods.requirements import Picked, with_requirements

PLACE = "/mods"
"""Where containers look for mods."""


@dataclass(frozen=True)
class RuntimeMods:
    """What a container needs to apply mods when it starts."""

    mounts: Mapping[str, str] = field(default_factory=dict)
    """Folders and files of the host, with their places in the container."""
    settings: Mapping[str, str] = field(default_factory=dict)

    def over(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of the mods and of the user, whose own win."""
        extra = " ".join(filter(None, (part.get("EXTRA_ARGS", "") for part in (self.settings, given))))
        return {**self.settings, **given, **({"EXTRA_ARGS": extra} if extra else {})}


def runtime_mods(project: Project, cell: Cell, names: Sequence[str], known: Sequence[str]) -> RuntimeMods:
    """Prepare mods for a container; raise an error if one is not for the cell's version. `known` are its settings."""
    version = project.matrix.versions[cell.version].version
    picked: Picked = {}
    for name in names:
        picked |= with_requirements(find_mod(project.mods, name, "the --mod option"), project.mods, version)
    applied: list[str] = []
    mounts: dict[str, str] = {}
    settings: dict[str, str] = {}
    extra: list[str] = []
    folder = project.root / "mods"
    for mod, variant in picked.values():
        beside = [
            change
            for change in variant.changes
            if isinstance(change, NewFile) and change.add.startswith(IMAGE_FILES)
        ]
        if len(beside) == len(variant.changes):
            # A server's options are checked before mods are applied, and may name these files.
            mounts |= {str(folder / mod.name / change.source): change.add for change in beside}
        else:
            applied.append(mod.name)
        settings |= mod.manifest.settings.env
        for flag, value in mod.manifest.settings.flags.items():
            if flag.upper() in known:
                settings[flag.upper()] = value
            else:
                extra += [f"--{flag.replace('_', '-')}", value]
    if applied:
        mounts[str(folder)] = PLACE
        settings["MODS"] = ",".join(applied)
    if extra:
        settings["EXTRA_ARGS"] = shlex.join(extra)
    return RuntimeMods(mounts, settings)
