"""Selects cells by target: `MODEL[@VERSION][/ARCH[/MACHINE]]` with globs in every part, or `all`."""

from __future__ import annotations

import platform as host
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from imagefactory.errors import UsageError, unknown_name
from imagefactory.project.cells import Cell, all_combinations, default_version, reason_excluded
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import TITLES, server_name

EVERYTHING = "all"
SYNTAX = "MODEL[@VERSION][/ARCH[/MACHINE]], for example gemma4-31b, gemma4-31b@0.28.0/b200, 'qwen*' or all"
VersionOf = Callable[[str, str, str], str]
"""Returns a version for a model, an arch and a platform."""
_MACHINES = {"aarch64": "arm64", "arm64": "arm64", "x86_64": "amd64", "amd64": "amd64"}


def host_machine() -> str:
    return _MACHINES.get(host.machine().lower(), "amd64")


@dataclass(frozen=True)
class Selector:
    """The four parts of a target; None where the user left one out."""

    text: str
    model: str
    version: str | None = None
    arch: str | None = None
    machine: str | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        if text == EVERYTHING:
            return cls(text, "*", "*", "*", "*")
        model_and_version, *rest = text.split("/")
        model, _, version = model_and_version.partition("@")
        arch, machine = (*rest, None, None)[:2]
        too_many = len(rest) > 2 or model_and_version.count("@") > 1  # noqa: PLR2004 - ARCH and MACHINE
        if too_many or not model or "" in rest or ("@" in model_and_version and not version):
            raise UsageError(
                "unknown-name",
                f"{text!r} is not a target.",
                where="the --target option",
                why="A part is empty, or there are too many.",
                fix=f"Write {SYNTAX}.",
            )
        return cls(text, model, version or None, arch, machine)


def default_target(matrix: Matrix) -> str:
    """Return what a command acts on when no target is named: the first model of the matrix."""
    return next(iter(matrix.models))


def select(matrix: Matrix, targets: Sequence[str], version_of: VersionOf | None = None) -> list[Cell]:
    """Return the cells that targets name, each once and in the order of the matrix; none means the default target.

    A target without a version means the default one, or what `version_of` returns.
    """
    selectors = [Selector.parse(target) for target in targets or [default_target(matrix)]]
    chosen = {cell for selector in selectors for cell in _cells_of(matrix, selector, version_of)}
    return [cell for cell in all_combinations(matrix) if cell in chosen]


def select_one(matrix: Matrix, target: str, version_of: VersionOf | None = None) -> Cell:
    """Return the one cell that a target names; an empty target means the default one."""
    cells = select(matrix, [target] if target else [], version_of)
    if len(cells) > 1:
        names = [str(cell) for cell in cells]
        raise UsageError(
            "unknown-name",
            f"The target matches {len(cells)} images; this command needs exactly one.",
            where=f"the target {target!r}",
            why=f"It matches {', '.join(names[:3])}{' and more' if names[3:] else ''}.",
            fix=f"Name one image in full, for example {names[0]}.",
        )
    return cells[0]


def _cells_of(matrix: Matrix, selector: Selector, version_of: VersionOf | None) -> list[Cell]:
    cells: list[Cell] = []
    excluded: list[tuple[Cell, str]] = []
    for model in _matching(selector.text, "model", selector.model, matrix.models):
        arch = selector.arch or matrix.models[model].arch or matrix.defaults.arch
        default = default_version(matrix, model)
        for arch_name in _matching(selector.text, "arch", arch, matrix.archs):
            for platform in _platforms(matrix, selector, arch_name):
                pattern = selector.version or (version_of(model, arch_name, platform) if version_of else default)
                what = f"{TITLES[server_name(pattern)]} version"
                for version in _matching(selector.text, what, pattern, matrix.versions):
                    cell = Cell(model, version, arch_name, platform)
                    reason = reason_excluded(matrix, cell)
                    if reason is None:
                        cells.append(cell)
                    else:
                        excluded.append((cell, reason))
    if cells:
        return cells
    name, what = "unknown-name", f"No arch of {selector.text!r} has the machine {selector.machine!r}."
    why, fix = "The archs it names run on other processors", "`./inv targets` lists all platforms."
    if excluded:
        cell, why = excluded[0]
        name, what = "excluded", f"{cell} cannot be built."
        fix = f"`./inv targets --target '{cell.model}@*/*'` lists what can be built."
    raise UsageError(name, what, where=f"the target {selector.text!r}", why=f"{why}.", fix=fix)


def _platforms(matrix: Matrix, selector: Selector, arch: str) -> list[str]:
    """Return the platforms asked for, else this computer's own, else the first."""
    by_machine = {platform.removeprefix("linux/"): str(platform) for platform in matrix.archs[arch].platforms}
    if selector.machine is None:
        return [by_machine[host_machine()]] if host_machine() in by_machine else list(by_machine.values())[:1]
    if selector.machine == "*" or "*" in (selector.arch or ""):
        return [platform for name, platform in by_machine.items() if fnmatchcase(name, selector.machine)]
    return [by_machine[name] for name in _matching(selector.text, "machine", selector.machine, by_machine)]


def _matching(target: str, what: str, pattern: str, choices: Iterable[str]) -> list[str]:
    names = list(choices)
    matching = [name for name in names if fnmatchcase(name, pattern)]
    if not matching:
        why, hint = f"matrix.yaml has no {what} of that name.", " `./inv targets` lists all."
        raise unknown_name(what, pattern, names, f"the target {target!r}", why=why, hint=hint)
    return matching
