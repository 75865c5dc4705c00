"""Imports a mod: tries a source on the versions of the matrix, drafts a mod, and checks it before it stays."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from imagefactory.errors import ModError, UsageError
from imagefactory.importing.attempts import Attempt, read_diffs, try_diffs
from imagefactory.importing.draft import Draft, draft, group_attempts
from imagefactory.importing.scripts import Ran, Run, ScriptRun, judge
from imagefactory.importing.sources import Source
from imagefactory.mods.authoring import NO_REASON, manifest_text, new_folder, printable
from imagefactory.mods.compatibility import check_mods, refuse_broken, refuse_unknown_version, releases
from imagefactory.mods.exact_edits import blocks
from imagefactory.mods.source_files import ReleaseSource, Trees
from imagefactory.project.project import Project
from imagefactory.project.server_versions import VLLM
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import sha256_of
from imagefactory.store.progress import Say
from images.shipped.mods.diffs import split_lines
from images.shipped.mods.manifest import MANIFEST

_LARGEST = 64 * 1024**2  # the largest wheel, besides vLLM's, that a script may change


@dataclass(frozen=True)
class Imported:
    """A mod that was written, and how it came about."""

    manifest: Path
    draft: Draft


@dataclass(frozen=True)
class Importer:
    """Tries sources on the versions of a checkout's matrix."""

    project: Project
    run_script: Run  # in a container
    say: Say
    env: Mapping[str, str]

    @cached_property
    def trees(self) -> Trees:
        return Trees(self.project)

    def run(self, source: Source, versions: Sequence[str] = (), why: str = "") -> Imported:
        folder = new_folder(self.project, source.name)
        if why and (not why.startswith("https://") or not why.isprintable()):
            raise UsageError(
                "bad-option",
                f"--why cannot be {printable(why)}.",
                where="the --why option",
                why="It becomes a link in mod.yaml, which begins with https://.",
                fix="Name the address of an issue or a pull request.",
            )
        for name in versions:
            refuse_unknown_version(self.project.matrix, name)
        attempts = self._attempts(source, versions)
        refuse_fruitless(source, attempts)
        groups = group_attempts(source.name, attempts, self.trees)
        refuse_fruitless(source, [attempt for group in groups for attempt in group.attempts])
        link = why or source.problem or source.link or NO_REASON
        made = draft(source, groups, self.project.matrix, self.trees, link)
        return Imported(self._write(folder, source, made), made)

    def _attempts(self, source: Source, versions: Sequence[str]) -> list[Attempt]:
        """Try a source on every release of vLLM in the matrix, oldest first, or on some of them."""
        stack = read_diffs(source.texts) if source.kind == "diffs" else []
        attempts: list[Attempt] = []
        vllm = self.project.matrix.vllm
        names = (name for name in releases(self.project.matrix) if name in vllm)
        for name in sorted(names, key=lambda name: vllm[name].version):
            if versions and name not in versions:
                attempts.append(Attempt(name, "untried"))
                continue
            distributions = self._distributions(source, name)
            if source.kind == "script":
                attempt = judge(name, self._run_script(source, distributions), distributions)
            else:
                attempt = try_diffs(name, stack, distributions)
            self.say(f"{name}: {attempt.outcome}{f', {attempt.why}' if attempt.why else ''}")
            attempts.append(attempt)
        return without_old_copies(source, attempts)

    def _distributions(self, source: Source, name: str) -> list[ReleaseSource]:
        """Return the distributions that a source can change: vLLM, and those whose folders it names."""
        names = [VLLM]
        for wheel in {wheel.name: wheel for wheel in self.trees.wheels(name)}.values():
            package = wheel.name.replace("-", "_").removesuffix("_python")
            if wheel.name != VLLM and wheel.size <= _LARGEST and package in source.words:
                names.append(wheel.name)
        return [self.trees.release(distribution, name) for distribution in names]

    def _run_script(self, source: Source, distributions: list[ReleaseSource]) -> Ran:
        place = self.project.root / "build" / "imports"
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            wheels = [release.archive() for release in distributions]
            return self.run_script(ScriptRun(source.name, source.files, wheels, self.env), Path(scratch))

    def _write(self, folder: Path, source: Source, made: Draft) -> Path:
        """Write a mod and check it on the versions that it was tried on; leave nothing behind if it fails."""
        tried = [attempt.version for attempt in made.attempts if attempt.outcome != "untried"]
        try:
            for name, text in made.files.items():
                write_text(folder / name, text)
            write_text(folder / MANIFEST, manifest_text(made.manifest, provenance(source, made)))
            refuse_broken(check_mods(Project(self.project.root, self.project.store), [source.name], tried))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder / MANIFEST


def without_old_copies(source: Source, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Let a whole file that replaces vLLM's count only where it changes least: elsewhere it takes out what is newer."""
    copies = {data.decode("utf-8", "replace") for data in source.files.values()}
    sizes = [_copied(attempt, copies) for attempt in attempts]
    least = min((size for size in sizes if size), default=0)
    judged: list[Attempt] = []
    for attempt, size in zip(attempts, sizes, strict=True):
        if size > least:
            why = f"it puts a whole file in the place of vLLM's own, made for another version ({size} lines differ)"
            judged.append(Attempt(attempt.version, "fails", why))
        elif size:
            note = f"it replaces whole files of vLLM; on {attempt.version}, {size} lines differ: see `./inv mods.diff`"
            judged.append(replace(attempt, notes=(*attempt.notes, note)))
        else:
            judged.append(attempt)
    return judged


def _copied(attempt: Attempt, copies: set[str]) -> int:
    """Count the lines that differ in files which were overwritten by a file of the source."""
    total = 0
    for change in attempt.files.values():
        if change.before is not None and change.after in copies:
            differing = blocks(split_lines(change.before), split_lines(change.after))
            total += sum(block.end - block.start + block.new_end - block.new_start for block in differing)
    return total


def refuse_fruitless(source: Source, attempts: Sequence[Attempt]) -> None:
    if any(attempt.outcome == "changes" for attempt in attempts):
        return
    tried = [attempt for attempt in attempts if attempt.outcome != "untried"]
    reasons: dict[str, list[str]] = {}
    for attempt in tried:
        nothing = f"it changes nothing{f' and says: {attempt.why}' if attempt.why else ''}"
        reasons.setdefault(attempt.why if attempt.outcome == "fails" else nothing, []).append(attempt.version)
    why = "; ".join(f"on {', '.join(versions)}: {reason.rstrip('.')}" for reason, versions in reasons.items())
    if source.kind == "script":
        fix = (
            "If it lacks a network or a program here, run it by hand in a git tree of the packages, and import what "
            "`git diff` prints: `./inv mods.import FILE.diff`."
        )
    elif any(attempt.outcome == "fails" for attempt in tried):
        fix = "Port it to one of these versions first, or write what it means as a mod: `./inv mods.new`."
    else:
        fix = "Every version has it already: there is nothing to import."
    raise ModError("not-importable", f"{source.name} cannot become a mod.", where=source.shown, why=f"{why}.", fix=fix)


def provenance(source: Source, made: Draft) -> list[str]:
    """Return the comments that say where a mod comes from, and what is left to do."""
    lines = [f"Imported by `./inv mods.import` from {source.shown}."]
    lines += [f"  {name}: sha256 {sha256_of(data)}" for name, data in list(source.files.items())[:20]]
    lines += [f"Note: {note}." for note in made.notes]
    todo = ["summary", "needed_when (which models get it)", "the checks", "licence"]
    todo += ["why (no issue or pull request was named)"] if made.manifest.why == NO_REASON else []
    return [*lines, f"Review before merging: {', '.join(todo)}."]
