"""Finds mods that apply alone and not together, among those that some image gets together."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from imagefactory.errors import MOD_FILE_MISSING, MOD_MISFITS, ModError
from imagefactory.mods.choose import choose_mods, source_mods
from imagefactory.mods.source_files import Trees
from imagefactory.project.cells import Cell, buildable, first_of_release
from imagefactory.project.project import Project
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.manifest import Mod, Variant

FIX = "Merge them into one mod, or let `needed_when` of one of them leave these images out."
_Choice = tuple[Mod, Variant]
_Pair = tuple[str, str, str, str]  # the version, the stage, and the names of two mods


@dataclass(frozen=True)
class Conflict:
    """Two mods that the images of some cells cannot have together."""

    mods: tuple[str, str]
    version: str
    cells: tuple[Cell, ...]
    fault: str

    def __str__(self) -> str:
        more = f" and {len(self.cells) - 1} more" if len(self.cells) > 1 else ""
        return f"{self.fault} Both are for {self.cells[0]}{more}."


def find_conflicts(
    project: Project, trees: Trees, versions: Collection[str], names: Collection[str] = ()
) -> list[Conflict]:
    """Try every two mods that a cell of these versions has and that share a file; `names` limits it to some mods.

    Pairs, not whole sets: many cells have the same pair, and the message can name both.
    """
    matrix = project.matrix
    of_sources = cache(lambda version, arch: source_mods(project, version, arch))
    together: dict[_Pair, tuple[_Choice, _Choice]] = {}
    cells: dict[_Pair, list[Cell]] = {}
    for cell in buildable(matrix):
        for version in {cell.version, first_of_release(matrix, cell.version)}.intersection(versions):
            for chosen in (_installed(project, cell), of_sources(cell.version, cell.arch)):
                for one, other in combinations(chosen, 2):
                    key: _Pair = version, one[1].stage, one[0].name, other[0].name
                    if _share_a_file(one, other) and (not names or not {*key[2:]}.isdisjoint(names)):
                        together[key] = one, other
                        cells.setdefault(key, []).append(cell)
    conflicts: list[Conflict] = []
    for key, pair in together.items():
        version, _, first, second = key
        fault = _misfit(trees, version, *pair)
        # One that does not fit on its own is no fault of the other.
        if fault is not None and all(_misfit(trees, version, alone) is None for alone in pair):
            words = f"The mods {first} and {second} do not fit together: " if fault.name != "mod-conflict" else ""
            text = f"{words}{fault.what} ({fault.where}) {fault.why}"
            conflicts.append(Conflict((first, second), version, tuple(cells[key]), text))
    return conflicts


def _installed(project: Project, cell: Cell) -> tuple[_Choice, ...]:
    try:
        return choose_mods(project.matrix, cell, project.mods).mods
    except ModError:  # its list has a mod that does not apply: planning the cell says so
        return ()


def _share_a_file(*pair: _Choice) -> bool:
    (one, first), (other, second) = pair
    files = ({*variant.paths, *(check.file for check in variant.checks)} for variant in (first, second))
    return one.manifest.distribution == other.manifest.distribution and bool(set.intersection(*files))


def _misfit(trees: Trees, version: str, *chosen: _Choice) -> ModError | None:
    try:
        apply_mods(chosen, trees.tree(*chosen[0], version).read)
    except ModError as error:
        if error.name not in {*MOD_MISFITS, MOD_FILE_MISSING}:
            raise
        return error
    return None
