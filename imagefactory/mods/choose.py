"""Choose the mods of a cell, and explain which ones are already upstream or do not apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.mods import ModNotApplicableError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, buildable, condition_holds, intended_kernels, usable_drafters
from imagefactory.matrix.matrix import Matrix
from images.shipped.mods.apply import in_order, refuse_declared_conflicts
from images.shipped.mods.manifest import Mod, Variant
from images.shipped.mods.requirements import Picked, why_not, with_requirements


@dataclass(frozen=True)
class Chosen:
    """The mods of a cell in order, and notes on why others were left out."""

    mods: tuple[tuple[Mod, Variant], ...]
    notes: tuple[str, ...]


def choose_mods(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod]) -> Chosen:
    """Choose the mods that change a cell's installed files: those listed, or with `auto` those it needs."""
    asked = matrix.models[cell.model].mods
    if asked == "none":
        return Chosen((), ())
    if asked == "auto":
        picked, notes = _pick_needed(matrix, cell, mods)
    else:
        picked, notes = _pick_named(matrix, cell, mods, list(asked))
    ordered = in_order([mod for mod, _ in picked.values()])
    refuse_declared_conflicts(ordered)
    return Chosen(tuple(picked[mod.name] for mod in ordered), tuple(dict.fromkeys(notes)))


def choose_source_mods(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod]) -> Chosen:
    """Choose the mods of a cell that change sources before they are compiled."""
    asked = matrix.models[cell.model].mods
    version = matrix.vllm[cell.vllm].version
    picked: Picked = {}
    for mod in mods.values():
        wanted = _needed(matrix, cell, mod) if asked == "auto" else asked != "none" and mod.name in asked
        variant = mod.variant(version, "source")
        if wanted and variant is not None:
            picked[mod.name] = (mod, variant)
    return Chosen(tuple(picked[mod.name] for mod in in_order([mod for mod, _ in picked.values()])), ())


def _pick_needed(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod]) -> tuple[Picked, list[str]]:
    version = matrix.vllm[cell.vllm].version
    compiled = intended_kernels(matrix, cell) == "compiled"
    picked: Picked = {}
    notes: list[str] = []
    for mod in (mod for mod in mods.values() if _needed(matrix, cell, mod)):
        if mod.variant(version) is None:
            notes.append(why_not(mod, version, compiled=compiled))
            continue
        try:
            picked |= with_requirements(mod, mods, version)
        except ModNotApplicableError as error:
            notes.append(f"{mod.name}: left out. {error.what}")
    return picked, notes


def _pick_named(
    matrix: Matrix, cell: Cell, mods: Mapping[str, Mod], names: list[str]
) -> tuple[Picked, list[str]]:
    version = matrix.vllm[cell.vllm].version
    compiled = intended_kernels(matrix, cell) == "compiled"
    where = f"matrix.yaml, models.{cell.model}.mods"
    picked: Picked = {}
    notes: list[str] = []
    for name in names:
        if name not in mods:
            raise UnknownNameError(
                f"There is no mod {name!r}.",
                where=where,
                why=f"There is no folder mods/{name}.",
                fix=did_you_mean(name, mods).capitalize(),
            )
        mod = mods[name]
        if mod.variant(version) is not None:
            picked |= with_requirements(mod, mods, version)
        elif compiled and mod.variant(version, "source") is not None:
            notes.append(why_not(mod, version, compiled=True))
        else:
            raise ModNotApplicableError(
                f"The mod {name} does not apply to {cell}.",
                where=where,
                why=f"{why_not(mod, version)}.",
                fix="Remove it from the list, or use `mods: auto`, which leaves it out.",
            )
    return picked, notes


def _needed(matrix: Matrix, cell: Cell, mod: Mod) -> bool:
    methods = {drafter.method for drafter in usable_drafters(matrix, cell)}
    return any(
        condition_holds(condition, matrix, cell)
        and (condition.drafter is None or condition.drafter in methods)
        for condition in mod.manifest.needed_when
    )


def source_mods(project: Project, vllm: str, arch: str, without: Sequence[str]) -> list[tuple[Mod, Variant]]:
    """Choose the mods for the sources of a vLLM version on an arch: those of every model that it serves."""
    found: dict[str, tuple[Mod, Variant]] = {}
    for cell in buildable(project.matrix):
        if (cell.vllm, cell.arch) == (vllm, arch):
            chosen = choose_source_mods(project.matrix, cell, project.mods)
            found |= {mod.name: (mod, variant) for mod, variant in chosen.mods if mod.name not in without}
    return [found[mod.name] for mod in in_order([mod for mod, _ in found.values()])]
