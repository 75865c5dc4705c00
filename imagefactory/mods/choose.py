"""Choosing mods for a cell: what it needs, what is upstream already, what does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from imagefactory.cells import Cell, condition_holds, usable_drafters
from imagefactory.errors import ModNotApplicableError, UnknownNameError, did_you_mean
from imagefactory.matrix import Matrix
from imagefactory.mods.apply import in_order
from imagefactory.mods.manifest import Mod, Variant


@dataclass(frozen=True)
class Chosen:
    """The mods of a cell in order, and why others that it might want are not among them."""

    mods: tuple[tuple[Mod, Variant], ...]
    notes: tuple[str, ...]


def choose_mods(matrix: Matrix, cell: Cell, mods: Mapping[str, Mod], *, stage: str = "installed") -> Chosen:
    """Pick the mods of a cell: those it names, or with `auto` those that it needs."""
    asked = matrix.models[cell.model].mods
    if asked == "none":
        return Chosen((), ())
    version = matrix.vllm[cell.vllm].version
    if asked == "auto":
        names = [name for name, mod in mods.items() if _needed(matrix, cell, mod)]
    else:
        names = list(asked)
        for name in names:
            if name not in mods:
                raise UnknownNameError(
                    f"There is no mod {name!r}.",
                    where=f"matrix.yaml, models.{cell.model}.mods",
                    why=f"There is no folder mods/{name}.",
                    fix=did_you_mean(name, mods).capitalize(),
                )
    chosen: dict[str, Variant] = {}
    notes: list[str] = []
    for name in names:
        for required in _with_requirements(name, mods):
            mod = mods[required]
            variant = mod.variant(version, stage)
            if variant is not None:
                chosen[required] = variant
                continue
            note = why_not(mod, matrix, cell, stage)
            notes.append(note)
            elsewhere = mod.variant(version, "source" if stage == "installed" else "installed")
            if asked != "auto" and required in asked and elsewhere is None:
                raise ModNotApplicableError(
                    f"The mod {required} does not apply to vLLM {cell.vllm}.",
                    where=f"matrix.yaml, models.{cell.model}.mods",
                    why=f"{note}.",
                    fix="Remove it from the list, or use `mods: auto`, which leaves it out by itself.",
                )
    ordered = in_order([mods[name] for name in chosen])
    return Chosen(tuple((mod, chosen[mod.name]) for mod in ordered), tuple(dict.fromkeys(notes)))


def why_not(mod: Mod, matrix: Matrix, cell: Cell, stage: str) -> str:
    """Say why a mod has no part in a version."""
    version = matrix.vllm[cell.vllm].version
    if mod.is_upstream(version):
        return f"{mod.name}: upstream since {mod.manifest.upstreamed_in}"
    reason = mod.reason_not_needed(version)
    if reason is not None:
        return f"{mod.name}: not needed, {reason}"
    if mod.variant(version, "source") is not None and stage == "installed":
        return f"{mod.name}: changes sources that are compiled; these kernels come from a wheel"
    return f"{mod.name}: has no variant for {version}"


def _needed(matrix: Matrix, cell: Cell, mod: Mod) -> bool:
    methods = {drafter.method for drafter in usable_drafters(matrix, cell)}
    return any(
        condition_holds(condition, matrix, cell)
        and (condition.drafter is None or condition.drafter in methods)
        for condition in mod.manifest.needed_when
    )


def _with_requirements(name: str, mods: Mapping[str, Mod]) -> list[str]:
    found: list[str] = []
    for required in mods[name].manifest.requires:
        found += _with_requirements(required, mods)
    return [*found, name]
