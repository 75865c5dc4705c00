"""Rebases a mod onto a version that it does not fit: from the nearest older one that it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from functools import partial
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from imagefactory.errors import FactoryError, ModError
from imagefactory.mods.authoring import with_not_needed, with_variant
from imagefactory.mods.choose import find_mod
from imagefactory.mods.compatibility import check_mods, refuse_unknown_version, releases
from imagefactory.mods.exact_edits import Block, blocks, exact_edits, propose
from imagefactory.mods.source_files import FolderSource, Trees
from imagefactory.project.project import Project
from imagefactory.project.server_versions import server_name
from imagefactory.store.atomic import write_text
from images.shipped.mods.apply import Applied, Reader
from images.shipped.mods.checks import failing, syntax_fault
from images.shipped.mods.diffs import split_lines
from images.shipped.mods.manifest import MANIFEST, Change, Check, Mod, NewFile, NotNeeded, Variant

Tree = tuple[str, Reader]
"""A version, and what reads its files."""
Outcome = Literal["fits", "rebased", "upstream", "conflict"]


@dataclass(frozen=True)
class Rebase:
    """What came of rebasing a mod onto a version."""

    mod: str
    version: str
    outcome: Outcome
    base: str = ""
    """The version that it was rebased from."""
    variant: Variant | None = None
    conflicts: tuple[tuple[str, MergeConflict], ...] = ()
    """The places where it conflicts, with their files."""
    why: str = ""

    def describe(self) -> str:
        """Say in Markdown what came of it."""
        command = f"`./inv mods.update {self.mod} --vllm {self.version}`"
        said = {
            "rebased": f"{command} rebases it from {self.base} exactly.",
            "upstream": f"{self.version} has all its changes: set `upstreamed_in` if the checks agree.",
            "fits": "It fits.",
        }
        if self.outcome in said:
            return said[self.outcome]
        places = [f"It cannot be rebased from {self.base} exactly{f': {self.why}' if self.why else ''}."]
        for path, conflict in self.conflicts:
            places.append(
                f"\n{path}, line {conflict.line} of {self.base}:\n\n```diff\n"
                f"{_marked('-', conflict.old)}{_marked('+', conflict.ours)}```\n\n"
                f"{self.version} has there:\n\n```python\n{conflict.theirs}```"
            )
        return "\n".join(places)


def rebase(project: Project, name: str, version: str, *, folder: FolderSource | None = None) -> Rebase:
    """Try to rebase a mod onto a version of the matrix, or onto a tree in its place; nothing is written."""
    mod = find_mod(project.mods, name)
    refuse_unknown_version(project.matrix, version)
    [result] = check_mods(project, [name], [version], folder=folder)
    if result.holds and result.status != "not needed":  # what an import could not do may still be a rebase
        return Rebase(name, version, "fits", why=str(result))
    base = _base(project, mod, version)
    if base is None:
        return Rebase(name, version, "conflict", "no version", why="it fits no older version of the matrix")
    variant = mod.variant(project.matrix.versions[base].version)
    if variant is None or variant.source is not None:
        why = "only changes of installed files can be rebased"
        return Rebase(name, version, "conflict", base, why=why)
    trees = Trees(project)
    applied = next(one for one in trees.apply(mod, variant, base) if one.mod is mod)
    old, new = trees.tree(mod, variant, base), Trees(project, folder).tree(mod, variant, version)
    return _merged(mod, variant, applied, (base, old.read), (version, new.read))


def _merged(mod: Mod, variant: Variant, applied: Applied, old: Tree, new: Tree) -> Rebase:
    (base, read_old), (version, read_new) = old, new
    conflict = partial(Rebase, mod.name, version, "conflict", base)
    changes: list[Change] = []
    conflicts: list[tuple[str, MergeConflict]] = []
    texts: dict[str, tuple[str | None, str]] = {}
    for path, ours in applied.files.items():
        before, theirs = read_old(path), read_new(path)
        if before is None or theirs is None:
            if before is None and theirs is None:
                new_files = (change for change in variant.changes if isinstance(change, NewFile))
                changes += [change for change in new_files if change.add == path]
                texts[path] = (None, ours)
            elif theirs != ours:
                return conflict(why=f"{version} {'removed' if theirs is None else 'brought'} {path}")
            continue
        merged = merge(before, ours, theirs)
        conflicts += [(path, one) for one in merged.conflicts]
        fault = syntax_fault(path, merged.text)
        if fault is not None:
            return conflict(why=f"{path} would not compile: {fault}")
        if merged.carried:
            changes += exact_edits(path, theirs, merged.text)
            texts[path] = (theirs, merged.text)
    if conflicts:
        return conflict(conflicts=tuple(conflicts))
    if not changes:
        return Rebase(mod.name, version, "upstream", base)
    checks = _checks(variant, texts)
    if not checks:
        return conflict(why="no check can tell what is left of it")
    ranged = Variant(versions=">=0", changes=changes, checks=checks)
    return Rebase(mod.name, version, "rebased", base, ranged)


def _checks(variant: Variant, texts: dict[str, tuple[str | None, str]]) -> list[Check]:
    """Keep the checks that hold after the rebase; propose others for files without one that needs the change."""
    of_texts = (check for check in variant.checks if check.file in texts)
    kept = [check for check in of_texts if failing(check, texts[check.file][1]) is None]
    found = list(kept)
    for path, (before, after) in texts.items():
        if not any(check.file == path and failing(check, before) is not None for check in kept):
            found += propose(path, before, after)
    return found


def write(project: Project, done: Rebase, *, folder: FolderSource | None = None) -> None:
    """Add the rebased variant to mod.yaml, if the mod then fits; else leave the file as it was."""
    mod = find_mod(project.mods, done.mod)
    if done.variant is None:
        raise conflict_error(done)
    version = project.matrix.versions[done.version].version
    claimed = mod.variant(version)
    file = project.root / "mods" / done.mod / MANIFEST
    before = file.read_text("utf-8")
    narrowed, versions = None, _from(project, mod, version)
    if claimed is not None:
        upper = [str(item) for item in SpecifierSet(claimed.versions) if item.operator in ("<", "<=", "!=")]
        lower = [str(item) for item in SpecifierSet(claimed.versions) if item.operator not in ("<", "<=")]
        narrowed = (claimed, ",".join([*sorted(lower), f"<{version}"]))
        versions = ",".join([f">={version}", *sorted(upper)])
    spared = [entry for entry in mod.manifest.not_needed if _covers(entry, version)]
    if spared:
        versions, left = _spared(project, mod, spared[0], version)
    variant = done.variant.model_copy(update={"versions": versions})
    text = with_variant(before, mod, variant, narrowed)
    write_text(file, with_not_needed(before, text, mod, spared[0], left) if spared else text)
    fits = False
    try:
        fresh = Project(project.root, project.store)
        [result] = check_mods(fresh, [done.mod], [done.version], folder=folder)
        fits = result.status == "applies"
    finally:
        if not fits:
            write_text(file, before)
    if not fits:
        raise ModError(
            "not-rebasable",
            f"The rebased {done.mod} does not fit {done.version}.",
            where=f"mods/{done.mod}/{MANIFEST}",
            why=f"{result.status}: {result.detail}",
            fix="Write the variant by hand; mod.yaml is as it was.",
        )


def conflict_error(done: Rebase) -> ModError:
    """Return the error for a mod that cannot be rebased."""
    places = ", ".join(f"{path}:{conflict.line}" for path, conflict in done.conflicts)
    return ModError(
        "not-rebasable",
        f"The mod {done.mod} cannot be rebased onto {done.version} exactly.",
        where=places or f"mods/{done.mod}/{MANIFEST}",
        why=done.why or f"{done.version} changed the same lines as the mod, since {done.base}.",
        fix="Write a variant by hand, or set `upstreamed_in` or `not_needed`.",
    )


def advice(project: Project, name: str, version: str, folder: FolderSource) -> str:
    """Say what an update would come to, or why that is not known."""
    try:
        return rebase(project, name, version, folder=folder).describe()
    except FactoryError as error:
        return f"Whether `./inv mods.update {name}` can rebase it is not known: {error.what}"


def outdated(project: Project, name: str) -> Sequence[str]:
    """List the releases of a mod's server for which its claims do not hold."""
    return [result.version for result in check_mods(project, [name]) if not result.holds]


def _base(project: Project, mod: Mod, version: str) -> str | None:
    """Return the newest older release that a mod fits."""
    known = project.matrix.versions
    own = (name for name in releases(project.matrix) if server_name(name) == server_name(version))
    older = [name for name in own if known[name].version < known[version].version]
    for name in sorted(older, key=lambda name: known[name].version, reverse=True):
        if mod.variant(known[name].version) is not None:
            [result] = check_mods(project, [mod.name], [name])
            if result.status == "applies":
                return name
    return None


def _from(project: Project, mod: Mod, version: Version) -> str:
    """Return the range of a version that a mod says nothing about: up to the next that it does."""
    for one in _versions(project, mod):
        if one > version and (mod.variant(one) or mod.is_upstream(one) or mod.reason_not_needed(one)):
            return f">={version},<{one}"
    return f">={version}"


def _spared(project: Project, mod: Mod, entry: NotNeeded, version: Version) -> tuple[str, list[str]]:
    """Return the range of one version out of those that need no mod, and the ranges that are left of these."""
    inside = [one for one in _versions(project, mod) if _covers(entry, one)]
    parts = sorted(map(str, SpecifierSet(entry.versions)))
    upper = [part for part in parts if part.startswith("<")]
    lower = [part for part in parts if not part.startswith("<")]
    after = next((one for one in inside if one > version), None)
    left = [",".join([*lower, f"<{version}"])] if inside[0] < version else []
    if after is None:
        return ",".join([f">={version}", *upper]), left
    return f">={version},<{after}", [*left, ",".join([f">={after}", *upper])]


def _versions(project: Project, mod: Mod) -> list[Version]:
    """Return the versions of a mod's server, oldest first."""
    known = project.matrix.versions.items()
    return sorted({one.version for name, one in known if server_name(name) == mod.manifest.of_server})


def _covers(entry: NotNeeded, version: Version) -> bool:
    return SpecifierSet(entry.versions).contains(version, prereleases=True)


def _marked(sign: str, text: str) -> str:
    return "".join(f"{sign}{line}\n" for line in text.splitlines())


_CONTEXT = 1
"""How many lines around a change have to be as they were."""


@dataclass(frozen=True)
class MergeConflict:
    """A place where a change and the newer text disagree."""

    line: int
    """In the text that the change was made for."""
    old: str
    """The lines there, with their neighbours."""
    ours: str
    """What the mod makes of them."""
    theirs: str
    """What the newer text has there."""


@dataclass(frozen=True)
class Merged:
    """The newer text with the changes; those that it has already are not counted."""

    text: str
    carried: int
    conflicts: tuple[MergeConflict, ...]


def merge(base: str, ours: str, theirs: str) -> Merged:
    """Make the changes from `base` to `ours` in `theirs`."""
    old, new, target = split_lines(base), split_lines(ours), split_lines(theirs)
    kept = [
        run for run in SequenceMatcher(None, old, target, autojunk=False).get_matching_blocks() if run.size
    ]
    edits: list[tuple[int, int, list[str]]] = []
    conflicts: list[MergeConflict] = []
    for block in blocks(old, new):
        wanted = new[block.new_start : block.new_end]
        start, end = max(block.start - _CONTEXT, 0), min(block.end + _CONTEXT, len(old))
        run = next((run for run in kept if run.a <= start and end <= run.a + run.size), None)
        if run is not None:
            shift = run.b - run.a
            edits.append((block.start + shift, block.end + shift, wanted))
            continue
        place = _between(kept, block, len(target))
        found = target[place[0] : place[1]]
        if _has(found, wanted) or (not wanted and not _has(found, old[block.start : block.end])):
            continue
        made = "".join([*old[start : block.start], *wanted, *old[block.end : end]])
        conflicts.append(MergeConflict(block.start + 1, "".join(old[start:end]), made, "".join(found)))
    for start, end, wanted in reversed(edits):
        target[start:end] = wanted
    return Merged("".join(target), len(edits), tuple(conflicts))


def _between(kept: list[Match], block: Block, length: int) -> tuple[int, int]:
    """Return the lines of the newer text around a block: from the last line that is kept to the next one."""
    above = [run for run in kept if run.a < block.start]
    below = [run for run in kept if run.a + run.size > block.end]
    start = above[-1].b + min(above[-1].size, block.start - above[-1].a) - 1 if above else 0
    end = below[0].b + max(block.end - below[0].a, 0) + 1 if below else length
    return max(start, 0), max(min(end, length), start)


def _has(lines: list[str], wanted: list[str]) -> bool:
    stripped = [line.strip() for line in lines]
    looked = [line.strip() for line in wanted]
    return any(stripped[at : at + len(looked)] == looked for at in range(len(stripped) - len(looked) + 1))
