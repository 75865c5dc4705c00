"""Drafts a mod from what came of trying it on every version: variants, ranges, checks and provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import ValidationError

from imagefactory.errors import FactoryError
from imagefactory.importing.attempts import Attempt
from imagefactory.importing.sources import Source
from imagefactory.mods.choose import NO_MODEL
from imagefactory.mods.exact_edits import exact_edits, propose
from imagefactory.mods.source_files import Trees
from imagefactory.project.matrix import Matrix
from imagefactory.project.wording import first_problem
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.checks import failing
from images.shipped.mods.manifest import (
    IMAGE_FILES,
    Change,
    Check,
    Manifest,
    Mod,
    NewFile,
    NotNeeded,
    Settings,
    Variant,
)
from images.shipped.values import Condition

_REASON = 300  # the most characters of a reason in mod.yaml
UNKNOWN: Final = "NOASSERTION"  # what SPDX calls a licence that nobody has looked for


@dataclass
class Group:
    """Neighbouring versions for which the same holds."""

    attempts: list[Attempt]
    changes: list[Change] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # the files next to mod.yaml


@dataclass(frozen=True)
class Draft:
    """A mod to be written: its manifest, its files, and what a reviewer should know."""

    manifest: Manifest
    files: Mapping[str, str]
    notes: tuple[str, ...]
    attempts: tuple[Attempt, ...]  # what came of each version in the end


def group_attempts(name: str, attempts: Sequence[Attempt], trees: Trees) -> list[Group]:
    """Group neighbouring versions; changes that cannot be made exactly become failures."""
    distribution = next(attempt.distribution for attempt in attempts if attempt.outcome == "changes")
    groups: list[Group] = []
    for attempt in attempts:
        _add(groups, attempt, distribution, name, trees)
    return groups


def draft(source: Source, groups: Sequence[Group], matrix: Matrix, trees: Trees, why: str) -> Draft:
    distribution = next(group.attempts[0].distribution for group in groups if group.changes)
    starts = [str(matrix.versions[group.attempts[0].version].version) for group in groups]
    ranges = [
        ",".join([*([f">={start}"] if index else []), *([f"<{end}"] if end else [])]) or f">={start}"
        for index, (start, end) in enumerate(zip(starts, [*starts[1:], ""], strict=True))
    ]
    variants: list[Variant] = []
    not_needed: list[NotNeeded] = []
    files: dict[str, str] = {}
    upstream = _upstream(groups, distribution, trees)
    for group, versions, start in zip(groups, ranges, starts, strict=True):
        if group.attempts[0].outcome == "changes":
            lowest = versions if versions.startswith(">=") else f">={start},{versions}".rstrip(",")
            variants.append(Variant(versions=lowest, changes=group.changes, checks=group.checks))
            files |= group.files
        elif upstream is None or group is not groups[-1]:
            not_needed.append(NotNeeded(versions=versions, reason=_reason(group.attempts[0])))
    manifest = Manifest(
        name=source.name,
        summary=f"Imported from {source.shown}"[:80] + "; say what gets better, and for whom",
        why=why,
        licence=UNKNOWN,
        distribution=distribution,
        needed_when=[Condition(model=NO_MODEL)],
        upstreamed_in=starts[-1] if upstream is not None else None,
        upstream_checks=upstream if upstream is not None and upstream != variants[-1].checks else [],
        not_needed=not_needed,
        settings=_settings(files, variants),
        variants=variants,
    )
    ended = tuple(attempt for group in groups for attempt in group.attempts)
    notes = tuple(dict.fromkeys(note for attempt in ended for note in attempt.notes))
    return Draft(manifest, files, notes, ended)


def _add(groups: list[Group], attempt: Attempt, distribution: str, name: str, trees: Trees) -> None:
    """Add a version to the last group if the same holds for it, else to a new one."""
    last = groups[-1] if groups else None
    if attempt.outcome == "changes" and attempt.distribution != distribution:
        why = f"it changes {attempt.distribution} there, not {distribution}"
        attempt = replace(attempt, outcome="fails", why=why)
    if attempt.outcome != "changes":
        first = last.attempts[0] if last is not None else attempt
        alike = attempt.outcome == "nothing" or first.why == attempt.why
        if last is not None and first.outcome == attempt.outcome and alike:
            last.attempts.append(attempt)
        else:
            groups.append(Group([attempt]))
        return
    if last is not None and last.changes and _fault(last, attempt, distribution, name, trees) is None:
        last.attempts.append(attempt)
        return
    try:
        group = _group(attempt, len(groups))
        fault = _fault(group, attempt, distribution, name, trees) if group.checks else "no check can tell it"
    except ValueError as error:
        fault = str(error)
    if fault is None:
        groups.append(group)
    else:
        _add(groups, replace(attempt, outcome="fails", why=fault), distribution, name, trees)


def _group(attempt: Attempt, number: int) -> Group:
    group = Group([attempt])
    for path, change in attempt.files.items():
        if change.before is None:
            source = f"files/{f'{number}/' if number else ''}{path.removeprefix(IMAGE_FILES)}"
            group.files[source] = change.after
            group.changes.append(NewFile(add=path, source=source))
        else:
            group.changes += exact_edits(path, change.before, change.after)
        group.checks += propose(path, change.before, change.after)
    unchecked = sorted(attempt.files.keys() - {check.file for check in group.checks})
    notes = [f"no check for {path} could be proposed: write one" for path in unchecked]
    group.attempts[0] = replace(attempt, notes=(*attempt.notes, *notes))
    return group


def _fault(group: Group, attempt: Attempt, distribution: str, name: str, trees: Trees) -> str | None:
    """Apply a group's changes to a version; return why that does not give what was seen there."""
    try:
        manifest = Manifest(
            name=name,
            summary="(a draft to be tried)",
            why="https://not-part-of-a-draft",
            licence=UNKNOWN,
            distribution=distribution,
            needed_when=[Condition(model=NO_MODEL)],
            variants=[Variant(versions=">=0", changes=group.changes, checks=group.checks)],
        )
        mod = Mod(manifest, {path: text.encode() for path, text in group.files.items()})
        read = trees.release(distribution, attempt.version).read
        [applied] = apply_mods([(mod, mod.manifest.variants[0])], read)
    except FactoryError as error:
        return f"{error.what} {error.why}"
    except ValidationError as error:
        return first_problem(error)
    expected = {path: change.after for path, change in attempt.files.items()}
    return None if applied.files == expected else "the edits do not give the same files"


def _upstream(groups: Sequence[Group], distribution: str, trees: Trees) -> list[Check] | None:
    """Return checks that show the change in the newest versions, where a script changes nothing; None if none do."""
    changing = [group for group in groups if group.changes]
    if groups[-1].attempts[0].outcome != "nothing" or not changing:
        return None
    checks = changing[-1].checks
    for attempt in groups[-1].attempts:
        read = trees.release(distribution, attempt.version).read
        checks = [check for check in checks if failing(check, read(check.file)) is None]
    return checks or None


def _reason(attempt: Attempt) -> str:
    text = f"it does not fit there: {attempt.why}"
    if attempt.outcome == "nothing":
        text = f"it changes nothing there{f': {attempt.why}' if attempt.why else ''}"
    elif attempt.outcome == "untried":
        text = "it was not tried there when it was imported"
    return text if len(text) <= _REASON else f"{text[:_REASON]}…"


def _settings(files: Mapping[str, str], variants: Sequence[Variant]) -> Settings:
    """Propose the flags that make a server use files which no code refers to."""
    flags: dict[str, str] = {}
    for change in (change for variant in variants for change in variant.changes):
        if not isinstance(change, NewFile) or not change.add.startswith(IMAGE_FILES):
            continue
        text = files[change.source]
        if change.add.endswith((".jinja", ".jinja2")):
            flags["chat_template"] = change.add
        elif change.add.endswith(".py") and "ReasoningParserManager" in text:
            flags["reasoning_parser_plugin"] = change.add
        elif change.add.endswith(".py") and "ToolParserManager" in text:
            flags["tool_parser_plugin"] = change.add
    return Settings(flags=flags)
