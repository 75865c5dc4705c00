"""Choose the mods of a cell, and explain why others are left out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from imagefactory.errors import ModError, did_you_mean, unknown_name
from imagefactory.project.cells import (
    Cell,
    buildable,
    condition_holds,
    intended_kernels,
    matches,
    usable_drafters,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from images.shipped.mods.manifest import STAGES, Mod, Variant

NO_MODEL = "no-model-yet"  # the model in `needed_when` of a mod until somebody names one


@dataclass(frozen=True)
class Chosen:
    """The mods of a cell in order, and notes on why others were left out."""

    mods: tuple[tuple[Mod, Variant], ...]
    notes: tuple[str, ...]


def choose_mods(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod]) -> Chosen:
    """Choose the mods that change a cell's installed files: those listed, or with `auto` those it needs."""
    automatic = matrix.models[cell.model].mods == "auto"
    version = matrix.versions[cell.version].version
    compiled = intended_kernels(matrix, cell) != "upstream"
    chosen: list[tuple[Mod, Variant]] = []
    notes: list[str] = []
    for mod in _mods_for(matrix, cell, mods):
        variant = mod.variant(version)
        if variant is not None:
            chosen.append((mod, variant))
        elif automatic or (compiled and mod.variant(version, "source") is not None):
            notes.append(mod.why_not(version, compiled=compiled))
        else:
            raise ModError(
                "not-applicable",
                f"The mod {mod.name} does not apply to {cell}.",
                where=_list_of_mods(cell),
                why=f"{mod.why_not(version)}.",
                fix="Remove it from the list, or use `mods: auto`, which leaves it out.",
            )
    return Chosen(_ordered(chosen), tuple(dict.fromkeys(notes)))


def source_mods(project: Project, vllm: str, arch: str, without: Sequence[str] = ()) -> list[tuple[Mod, Variant]]:
    """Choose the mods for the sources of a vLLM version on an arch: those of every model that it serves."""
    matrix, chosen = project.matrix, dict[str, tuple[Mod, Variant]]()
    for cell in buildable(matrix, vllm, arch):
        for mod in _mods_for(matrix, cell, project.mods):
            variant = mod.variant(matrix.versions[vllm].version, "source")
            if variant is not None and mod.name not in without:
                chosen[mod.name] = mod, variant
    return list(_ordered(chosen.values()))


def reached(matrix: Matrix, mods: Mapping[str, Mod]) -> set[str]:
    names: set[str] = set()
    for cell in buildable(matrix):
        version = matrix.versions[cell.version].version
        of_cell = _mods_for(matrix, cell, mods)
        names |= {mod.name for mod in of_cell if any(mod.variant(version, stage) for stage in STAGES)}
    return names


def unknown_names(mods: Iterable[Mod], matrix: Matrix) -> Iterator[ModError]:
    """Yield an error for each model, version or arch that a mod is for, and that the matrix does not have."""
    defined = {"model": [*matrix.models], "version": [*matrix.versions], "arch": [*matrix.archs]}
    for mod, (key, names) in product(mods, defined.items()):
        for index, condition in enumerate(mod.manifest.needed_when):
            pattern = getattr(condition, key)
            if pattern in (None, NO_MODEL) or any(matches(pattern, name) for name in names):
                continue
            yield ModError(
                "bad-mod",
                f"The mod {mod.name} is for the {key} {pattern!r}, which does not exist.",
                where=mod.where("needed_when", index),
                why=f"No {key} of matrix.yaml has that name, so no image would get the mod.",
                fix=did_you_mean(pattern, names).capitalize(),
            )


def find_mod(mods: Mapping[str, Mod], name: str, where: str = "mods/") -> Mod:
    if name not in mods:
        raise unknown_name("mod", name, mods, where, why=f"There is no folder mods/{name}.")
    return mods[name]


def _mods_for(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod]) -> list[Mod]:
    choice = matrix.models[cell.model].mods
    if choice == "none":
        return []
    automatic = choice == "auto"
    listed = list(mods.values()) if automatic else [find_mod(mods, name, _list_of_mods(cell)) for name in choice]
    of_server = [mod for mod in listed if mod.manifest.of_server == cell.server]
    return [mod for mod in of_server if not automatic or _needed(matrix, cell, mod)]


def _list_of_mods(cell: Cell) -> str:
    return f"matrix.yaml, models.{cell.model}.mods"


def _needed(matrix: Matrix, cell: Cell, mod: Mod) -> bool:
    methods = {None, *(drafter.method for drafter in usable_drafters(matrix, cell))}
    conditions = mod.manifest.needed_when
    return any(condition.drafter in methods and condition_holds(condition, matrix, cell) for condition in conditions)


def _ordered(chosen: Iterable[tuple[Mod, Variant]]) -> tuple[tuple[Mod, Variant], ...]:
    # By name: neither the order of a list nor that of folders changes an image.
    return tuple(sorted(chosen, key=lambda pair: pair[0].name))
