"""Applying mods: in a fixed order, exactly, and with every check of every mod true in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from images.shipped.errors import ModCheckError, ModConflictError, ModSyntaxError
from images.shipped.hashing import Sha256, sha256_of
from images.shipped.mods.checks import failing, syntax_fault
from images.shipped.mods.edits import (
    Texts,
    Written,
    apply_spans,
    locate,
    moved,
    refuse_overlaps,
    refuse_trespass,
)
from images.shipped.mods.manifest import Mod, Variant

Reader = Callable[[str], str | None]
"""Returns the text of a file of the untouched tree, None when there is no such file."""


@dataclass(frozen=True)
class Applied:
    """What the tree's files are after a mod, for those that it changed."""

    mod: Mod
    variant: Variant
    files: dict[str, str]
    before: dict[str, Sha256 | None]
    """The hash of each file before this mod; None for one that it added."""

    def record(self) -> dict[str, object]:
        """Describe what was done, for mods.json of the image."""
        entry: dict[str, object] = {
            "name": self.mod.name,
            "versions": self.variant.versions,
            "licence": self.mod.manifest.licence,
            "distribution": self.mod.manifest.distribution,
            "digest": self.mod.digest(self.variant),
            "files": {
                path: {"before": self.before[path], "after": sha256_of(text.encode())}
                for path, text in sorted(self.files.items())
            },
        }
        if self.variant.source is not None:
            entry["source"] = self.variant.source.model_dump(include={"git", "commit", "licence"})
        return entry


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
    mods = [mod for mod, _ in chosen]
    refuse_declared_conflicts(mods)
    variants = {mod.name: variant for mod, variant in chosen}
    texts: dict[str, str | None] = {
        path: read(path)
        for variant in variants.values()
        for path in (*variant.paths, *(check.file for check in variant.checks))
    }
    written: dict[str, list[Written]] = {}
    results: list[Applied] = []
    for level in in_levels(mods):
        located = {mod.name: locate(mod, variants[mod.name], texts) for mod in level}
        spans = [span for found in located.values() for span in found]
        refuse_overlaps(spans)
        for mod in level:
            refuse_trespass(located[mod.name], texts, written, _required_by(mod, mods))
            _refuse_redundant(mod, variants[mod.name], texts)
        base = dict(texts)
        for number, mod in enumerate(level, 1):
            done = {other.name for other in level[:number]}
            variant = variants[mod.name]
            files = {
                path: apply_spans(
                    base[path] or "", [span for span in spans if span.path == path and span.mod in done]
                )
                for path in variant.paths
            }
            _refuse_broken(mod, variant, files)
            results.append(Applied(mod, variant, files, {path: _hash(texts[path]) for path in files}))
            texts |= files
        for path in {span.path for span in spans}:
            written[path] = moved(written.get(path, []), [span for span in spans if span.path == path])
    # Against the final tree: a later mod must not undo an earlier one.
    for result in results:
        _refuse_untrue(result.mod, result.variant, texts)
    return results


def refuse_declared_conflicts(mods: Sequence[Mod]) -> None:
    """Make sure that none of the mods says that it cannot be with another of them."""
    names = {mod.name for mod in mods}
    for mod in mods:
        for index, other in enumerate(mod.manifest.conflicts):
            if other in names:
                raise ModConflictError(
                    f"The mods {mod.name} and {other} cannot be together.",
                    where=mod.where("conflicts", index),
                    why=f"{mod.name} says so.",
                    fix="Leave one of them out.",
                )


def _required_by(mod: Mod, mods: Sequence[Mod]) -> set[str]:
    """Name everything that a mod builds on, itself included."""
    by_name = {other.name: other for other in mods}
    found, waiting = {mod.name}, [mod]
    while waiting:
        new = set(waiting.pop().manifest.requires) & by_name.keys() - found
        found |= new
        waiting += [by_name[name] for name in new]
    return found


def _refuse_redundant(mod: Mod, variant: Variant, texts: Texts) -> None:
    """A mod whose checks all hold without it is upstream, or its checks say nothing about it."""
    if all(failing(check, texts[check.file]) is None for check in variant.checks):
        raise ModCheckError(
            f"The checks of the mod {mod.label(variant)} hold without it.",
            where=mod.where_in(variant, "checks"),
            why="Either this version has the change already, or the checks do not show it.",
            fix="Say `upstreamed_in`, or add a check that is false without the change.",
        )


def _refuse_broken(mod: Mod, variant: Variant, files: dict[str, str]) -> None:
    for path, text in files.items():
        fault = syntax_fault(path, text)
        if fault is not None:
            index = next(index for index, change in enumerate(variant.changes) if path in change.paths)
            raise ModSyntaxError(
                f"The mod {mod.label(variant)} leaves {path} broken.",
                where=mod.where_in(variant, "changes", index),
                why=f"It no longer compiles, {fault}.",
                fix="Correct the inserted text; mind its indentation.",
            )


def _refuse_untrue(mod: Mod, variant: Variant, texts: Texts) -> None:
    for index, check in enumerate(variant.checks):
        fault = failing(check, texts[check.file])
        if fault is not None:
            raise ModCheckError(
                f"A check of the mod {mod.label(variant)} does not hold.",
                where=mod.where_in(variant, "checks", index),
                why=f"{check}: {fault}.",
                fix="Correct the change or the check; the mod is not applied.",
            )


def _hash(text: str | None) -> Sha256 | None:
    return None if text is None else sha256_of(text.encode())
