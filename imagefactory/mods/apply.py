"""Applying mods: in a fixed order, exactly, and with every check of every mod true in the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from imagefactory.content import Sha256
from imagefactory.errors import ModCheckError, ModConflictError
from imagefactory.mods.edits import Span, apply_spans, locate, refuse_overlaps
from imagefactory.mods.facts import failing, syntax_fault
from imagefactory.mods.manifest import Mod, Variant

Reader = Callable[[str], str | None]
"""Gives the text of a file of the untouched tree, None when there is no such file."""


@dataclass(frozen=True)
class Applied:
    """What the tree's files are after a mod, for those that it changed."""

    mod: Mod
    variant: Variant
    files: dict[str, str]
    before: dict[str, Sha256 | None]
    """The hash of each file before this mod; None for one that it added."""


def in_levels(mods: Sequence[Mod]) -> list[list[Mod]]:
    """Group mods: first those that require nothing, then those that require only these, and so on; by name within."""
    by_name = {mod.name: mod for mod in mods}
    sorter = TopologicalSorter(
        {
            name: [other for other in mod.manifest.requires if other in by_name]
            for name, mod in by_name.items()
        }
    )
    sorter.prepare()
    levels: list[list[Mod]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        levels.append([by_name[name] for name in ready])
        sorter.done(*ready)
    return levels


def in_order(mods: Sequence[Mod]) -> list[Mod]:
    """Put mods in the one order in which they are applied."""
    return [mod for level in in_levels(mods) for mod in level]


def apply_mods(chosen: Sequence[tuple[Mod, Variant]], read: Reader) -> list[Applied]:
    """Apply mods to a tree; say what each of them leaves behind, in order.

    The mods of a level are all located in the same text, so their order cannot matter; those of the next level are
    located in what this one leaves.
    """
    _refuse_declared_conflicts([mod for mod, _ in chosen])
    variants = {mod.name: variant for mod, variant in chosen}
    texts = {path: read(path) for variant in variants.values() for path in variant.paths}
    results: list[Applied] = []
    for level in in_levels([mod for mod, _ in chosen]):
        base = dict(texts)
        located = {mod.name: list(_locate_all(mod, variants[mod.name], base)) for mod in level}
        refuse_overlaps(span for spans in located.values() for span in spans)
        done: list[Span] = []
        for mod in level:
            variant = variants[mod.name]
            done += located[mod.name]
            before = {path: _hash(texts[path]) for path in variant.paths}
            files = {
                path: apply_spans(base[path] or "", [span for span in done if span.path == path])
                for path in variant.paths
            }
            _refuse_broken(mod, files)
            texts |= files
            results.append(Applied(mod, variant, files, before))
    _check_all(results, read)
    return results


def _locate_all(mod: Mod, variant: Variant, texts: dict[str, str | None]) -> Iterator[Span]:
    number = mod.manifest.variants.index(variant)
    for index, change in enumerate(variant.changes):
        yield from locate(mod, change, mod.where("variants", number, "changes", index), texts)


def _refuse_declared_conflicts(mods: Sequence[Mod]) -> None:
    names = {mod.name for mod in mods}
    for mod in mods:
        for other in mod.manifest.conflicts:
            if other in names:
                raise ModConflictError(
                    f"The mods {mod.name} and {other} cannot be together.",
                    where=mod.where("conflicts"),
                    why=f"{mod.name} says so.",
                    fix="Leave one of them out.",
                )


def _refuse_broken(mod: Mod, files: dict[str, str]) -> None:
    for path, text in files.items():
        fault = syntax_fault(path, text)
        if fault is not None:
            raise ModCheckError(
                f"The mod {mod.name} leaves {path} broken.",
                where=mod.where("variants"),
                why=f"It no longer compiles, {fault}.",
                fix="Correct the inserted text; mind its indentation.",
            )


def _check_all(results: Sequence[Applied], read: Reader) -> None:
    """Check every mod against the final tree: a later mod must not undo an earlier one."""
    final: dict[str, str] = {}
    for result in results:
        final |= result.files
    for result in results:
        for index, check in enumerate(result.variant.checks):
            text = final.get(check.file)
            fault = failing(check, text if text is not None else read(check.file))
            if fault is not None:
                variant = result.mod.manifest.variants.index(result.variant)
                raise ModCheckError(
                    f"A check of the mod {result.mod.name} does not hold.",
                    where=result.mod.where("variants", variant, "checks", index),
                    why=f"{check}: {fault}.",
                    fix="Correct the change or the check; the mod is not applied.",
                )


def _hash(text: str | None) -> Sha256 | None:
    return None if text is None else Sha256(hashlib.sha256(text.encode()).hexdigest())
