"""What changes for an owner who goes from one image to another, and how to go back, in plain words.

The command `upgrade`, the site, its feed and the notes of a night show the same lines of Markdown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from imagefactory.check.answers.record import NOT_MEASURED
from imagefactory.check.bench.comparison import compare, refuse_incomparable
from imagefactory.check.bench.result import BenchResult
from imagefactory.errors import UsageError
from imagefactory.lock.flag_records import FlagLock, recorded_version
from imagefactory.project.cells import Cell, known_faults
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, server_name, version_key
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.image_contents import Contents
from imagefactory.store.digests import Digest
from imagefactory.store.progress import size

Changes = dict[str, tuple[str | None, str | None]]
"""What differs, before and after; None where there is nothing of that name."""
OF_ONE_IMAGE: Final = ("**To pull**", "**Speed**", "**Answers**", "**Go back**")
"""How the lines begin that are different for images that change alike."""
_MAY_DIFFER: Final = ("image", "server", "mods", "model", "drafter", "tool", "kernel")


@dataclass(frozen=True)
class Known:
    """What is known about images beside their contents."""

    flags: Mapping[str, FlagLock] = field(default_factory=dict)
    """The flags of each version."""
    not_needed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why a version does not need a mod, by the mod and the version."""
    results: Sequence[BenchResult] = ()
    catalog: Catalog = field(default_factory=Catalog)
    matrix: Matrix | None = None

    @classmethod
    def of(cls, project: Project, catalog: Catalog, results: Sequence[BenchResult]) -> Self:
        versions = project.matrix.versions
        paths = {name: FlagLock.path(project.locks, recorded_version(project, name)) for name in versions}
        reasons = {
            (mod.name, name): f"in {TITLES[server_name(name)]} itself since {mod.manifest.upstreamed_in}"
            if mod.is_upstream(version.version)
            else mod.reason_not_needed(version.version) or ""
            for mod in project.mods.values()
            for name, version in versions.items()
        }
        flags = {name: FlagLock.read(path) for name, path in paths.items() if path.exists()}
        return cls(flags, reasons, results, catalog, project.matrix)

    def faults(self, cell: Cell) -> list[str]:
        """Return what is wrong with a version, if the matrix still has it."""
        if self.matrix is None or cell.version not in self.matrix.versions or cell.model not in self.matrix.models:
            return []
        return known_faults(self.matrix, cell)

    @cached_property
    def held(self) -> dict[Digest, str]:
        """The day on which an image was rolled back."""
        events = self.catalog.holds(self.catalog.moving_tags()).items()
        return {digest: f"{event.time:%Y-%m-%d}" for digest, event in events}

    @cached_property
    def answers(self) -> dict[Digest, str]:
        return {event.image: event.answers for event in self.catalog.events if event.answers}


@dataclass(frozen=True)
class Upgrade:
    """Everything that differs between two images."""

    before: Contents
    after: Contents
    mods: Changes
    reasons: Mapping[str, str]
    """Why mods are gone."""
    settings: Changes
    flags_gone: tuple[str, ...] | None
    """Flags, and values of flags, that the server no longer takes; None if they are not on record."""
    variables_gone: tuple[str, ...]
    packages: Changes | None
    """None if one of the images has no SBOM."""
    pull: int | None
    """The bytes that the owner of the first image lacks."""
    speed: str
    answers: str
    faults: tuple[str, ...]
    held: bool
    """Whether a rollback holds the first image back."""

    @property
    def same(self) -> bool:
        return self.before.digest is not None and self.before.digest == self.after.digest

    @property
    def server(self) -> str:
        """The change of version; empty if there is none."""
        before, after = self.before.cell, self.after.cell
        new = version_key(after.version) if before.server == after.server else after.runs
        return f"{before.runs} → {new}" if before.version != after.version else ""

    @property
    def title(self) -> str:
        cell = self.after.cell
        return f"{cell.model} on {cell.arch}: {self.server or cell.runs}"

    @property
    def act(self) -> str:
        """Whether the owner has to do more than start the new image."""
        if self.same:
            return "No: this is the newest image."
        if self.held:
            return "Yes: the image you have was taken back. Start the new one in its place."
        if self.before.cell.server != self.after.cell.server:
            return "Yes: it is another server, with flags of its own."
        if self.flags_gone or self.variables_gone or self.settings:
            return "Only if you set something that is gone, or count on a default that changed."
        return "No: remove the container, and start the new image with the settings you have."

    def as_json(self) -> dict[str, Any]:
        document = asdict(self) | {"title": self.title, "act": self.act, "lines": lines(self)}
        for side in ("before", "after"):
            document[side] = {name: document[side][name] for name in ("cell", "digest", "start")}
        return document


def compare_contents(before: Contents, after: Contents, known: Known) -> Upgrade:
    mods = _changes(dict.fromkeys(before.mods, "there"), dict.fromkeys(after.mods, "there"))
    reasons = {name: known.not_needed.get((name, after.cell.version), "") for name in mods}
    flags, variables = _gone(*(known.flags.get(image.cell.version) for image in (before, after)))
    sides = (("the image you have", before), ("the newer image", after))
    rolled_back = [
        f"{name} was rolled back on {known.held[image.digest]}"
        for name, image in sides
        if image.digest and image.digest in known.held
    ]
    old, new = known.faults(before.cell), known.faults(after.cell)
    faults = [
        *(f"{'both' if fault in new else 'the image you have'}: {fault}" for fault in old),
        *(f"the newer image: {fault}" for fault in new if fault not in old),
    ]
    listed = None not in (before.packages, after.packages)
    lacking = after.layers.keys() - before.layers.keys()
    return Upgrade(
        before=before,
        after=after,
        mods=mods,
        reasons={name: why for name, why in reasons.items() if why},
        settings=_changes(before.settings, after.settings),
        flags_gone=flags if before.cell.server == after.cell.server else None,
        variables_gone=variables,
        packages=_changes(before.packages or {}, after.packages or {}) if listed else None,
        pull=sum(after.layers[digest] for digest in lacking) if before.layers and after.layers else None,
        speed=_speed(known.results, before.digest, after.digest),
        answers=known.answers.get(after.digest or Digest(""), NOT_MEASURED).removeprefix("answers "),
        faults=(*rolled_back, *faults),
        held=before.digest in known.held,
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    names = sorted(before.keys() | after.keys())
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _gone(before: FlagLock | None, after: FlagLock | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """List the flags with their values, and the variables, that a version no longer has."""
    if before is None or after is None:
        return None, ()
    gone: list[str] = []
    for flag, values in before.flags.items():
        if not flag.startswith("--"):  # the short name of another
            continue
        left = after.flags.get(flag)
        if left is None:
            gone.append(flag)
        elif values and left:  # without values, it takes any
            gone += [f"{flag} {value}" for value in values.split() if value not in left.split()]
    return tuple(gone), tuple(sorted({*before.variables} - {*after.variables}))


def _speed(results: Sequence[BenchResult], before: Digest | None, after: Digest | None) -> str:
    """Compare the newest results of two images that can be compared."""
    ordered = sorted(results, key=lambda result: result.started, reverse=True)
    sides = [[result for result in ordered if digest and result.bound.digest == digest] for digest in (before, after)]
    for left in sides[0]:
        for right in sides[1]:
            try:
                refuse_incomparable(left, right, _MAY_DIFFER)
            except UsageError:
                continue
            comparison = compare([left], [right])[0]
            text = f"{comparison.left:.1f} → {comparison.right:.1f} tokens/s, {comparison.verdict}"
            if within := comparison.interval:
                text += f" ({within.ratio - 1:+.1%}, 95 % between {within.low - 1:+.1%} and {within.high - 1:+.1%})"
            return f"{text}; profile {left.profile}, {', '.join(gpu.name for gpu in right.machine.gpus) or 'CPU'}"
    return "not measured alike" if all(sides) else "not measured"


def lines(upgrade: Upgrade) -> list[str]:
    return [f"**{name}**: {text}" for name, text in _entries(upgrade) if text]


def markdown(upgrade: Upgrade) -> str:
    return "\n".join([f"## {upgrade.title}", "", *(f"- {line}" for line in lines(upgrade)), ""])


def _entries(upgrade: Upgrade) -> Iterator[tuple[str, str]]:
    before, after = upgrade.before, upgrade.after
    yield "Must you act", upgrade.act
    if upgrade.same:
        yield "Known faults", "; ".join(fault.removeprefix("both: ") for fault in upgrade.faults)
        return
    yield "Known faults", "; ".join(upgrade.faults)
    yield "Server", upgrade.server
    yield "Defaults", "; ".join(f"{_code(name)} {_moved(*sides)}" for name, sides in upgrade.settings.items())
    flags = ", ".join(map(_code, upgrade.flags_gone or ()))
    yield "Flags gone", f"{flags}. A start that passes one in `EXTRA_ARGS` fails" if flags else ""
    if upgrade.flags_gone is None and before.cell.server == after.cell.server:
        yield "Flags gone", "not known: the flags of one of the two are not on record"
    variables = ", ".join(map(_code, upgrade.variables_gone))
    yield "Variables gone", f"{variables}. The server no longer reads them" if variables else ""
    yield "Mods added", ", ".join(name for name, (_, now) in upgrade.mods.items() if now)
    gone = [name for name, (_, now) in upgrade.mods.items() if not now]
    yield "Mods gone", "; ".join(f"{name} ({why})" if (why := upgrade.reasons.get(name)) else name for name in gone)
    for title, kind in (("Packages", "wheel "), ("Debian", "deb "), ("Models", "model ")):
        yield title, _of_kind(upgrade.packages or {}, kind)
    if upgrade.packages is None:
        yield "Packages", "not known: one of the two has no SBOM"
    total = sum(after.layers.values())
    if upgrade.pull is not None:
        yield "To pull", f"{size(upgrade.pull)}; you have {size(total - upgrade.pull)} of {size(total)}"
    if after.vulnerabilities:
        remaining = {flaw.id for flaw in after.vulnerabilities.found}
        fixed = sorted({flaw.id for flaw in (before.vulnerabilities or after.vulnerabilities).found} - remaining)
        listed = f". No longer: {', '.join(fixed)}" if fixed else ""
        yield "Known vulnerabilities", f"{after.vulnerabilities.line}{listed}"
    yield "Not counted", "; ".join(dict.fromkeys((*before.left_out, *after.left_out)))
    yield "Speed", upgrade.speed
    yield "Answers", upgrade.answers
    yield "Go back", f"`{before.start}` gets the image you have now"


def _of_kind(packages: Changes, kind: str) -> str:
    changed = {name.removeprefix(kind): sides for name, sides in packages.items() if name.startswith(kind)}
    moved = [f"{name} {old} → {new}" for name, (old, new) in changed.items() if old is not None and new is not None]
    new = [f"{name} {version}".strip() for name, (old, version) in changed.items() if old is None]
    gone = [name for name, (_, version) in changed.items() if version is None]
    parts = (", ".join(moved), f"new: {', '.join(new)}" if new else "", f"gone: {', '.join(gone)}" if gone else "")
    return "; ".join(filter(None, parts))


def _moved(old: str | None, new: str | None) -> str:
    if old is None:
        return f"is {_code(new or '')} now"
    return f"was {_code(old)}, and has no default now" if new is None else f"{_code(old)} → {_code(new)}"


def _code(text: str) -> str:
    """Format text as code; it may come from a registry, and must not end the code itself."""
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"
