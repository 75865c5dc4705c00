"""Markdown for the summary page of a run and for the history page."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from imagefactory.check.smoke.record import SmokeRecord
from imagefactory.ci.jobs import Night, Trouble
from imagefactory.errors import FactoryError
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.history import changes, steps
from imagefactory.publish.image_contents import Contents
from imagefactory.publish.tags import short_digest
from imagefactory.publish.upgrade import OF_ONE_IMAGE, Known, compare_contents, lines
from imagefactory.publish.write import Promotion
from imagefactory.store.digests import Digest
from imagefactory.store.progress import count, size

LARGEST: Final = 1024 * 1024
"""GitHub's limit for one step, in bytes; it shows nothing at all of a longer summary."""
HISTORY_DAYS: Final = 60


def night_summary(night: Night) -> str:
    if night.is_empty:
        counted = f"nothing changed; {count(night.current, 'image')} up to date."
    else:
        counted = (
            f"{len(night.works)} to do, {len(night.compiles)} to compile, {night.current} up to date, "
            f"{len(night.broken)} broken, {len(night.held)} left alone, {len(night.waiting)} waiting for a compile."
        )
    works = [(f"`{work.target}`", " → ".join(work.needs), cell(work.reason)) for work in night.works]
    compiles = [(job.what, job.vllm, job.arch, cell(job.reason)) for job in night.compiles]
    lines = [f"`{night.registry}`: {counted}", ""]
    lines += table("target | does | because", works) + table("compile | vLLM | arch | because", compiles)
    if night.unlocked:
        lines += [f"Compiled and waiting for a lock: {codes(night.unlocked)}", ""]
    lines += _troubles("Broken", night.broken) + _troubles("Left alone", night.held)
    lines += _troubles("Waiting for a compile", night.waiting)
    if night.later:
        lines += [f"{night.later} more do not fit into one run; the next run continues with them.", ""]
    return page("Plan", lines)


def unwell_summary(registry: str, troubles: Sequence[Trouble]) -> str:
    listed = _troubles("Not published", troubles) or [
        "Everything that a night can publish is published, or on its way.",
        "",
    ]
    return page("Status", [f"`{registry}`", "", *listed])


def _troubles(title: str, troubles: Sequence[Trouble]) -> list[str]:
    rows = [(f"`{trouble.target}`", cell(trouble.what), cell(trouble.why)) for trouble in troubles]
    return [f"### {title}", "", *table("target | what | why", rows)] if rows else []


def smoke_summary(records: Iterable[SmokeRecord]) -> str:
    rows = []
    for record in records:
        results = record.levels.items()
        levels = ", ".join(f"{level} {result.outcome}" for level, result in results)
        wrong = "; ".join(f"{level}: {result.why}" for level, result in results if result.outcome == "failed")
        rows.append((f"`{record.target}`", f"`{short_digest(record.digest)}`", levels, cell(wrong) or "-"))
    return page("Smoke tests", table("target | image | levels | what is wrong", rows))


def promotion_summary(outcome: Promotion) -> str:
    rows = []
    for promoted in outcome.promoted:
        target = f"`{promoted.image.cell.full_target}`"
        rows.append((target, f"`{promoted.image.digest}`", codes(promoted.named), codes(promoted.moved)))
    moved = table("target | image | permanent tags | moved here", rows) or ["No tag moved.", ""]
    return page("Tags", [*moved, *(f"- {cell(error.what)} {cell(error.why)}" for error in outcome.refused)])


def subjects(outcome: Promotion, name: str) -> str:
    """List promoted images as checksums, the form in which `actions/attest` takes several subjects."""
    digests = dict.fromkeys(promoted.image.digest.removeprefix("sha256:") for promoted in outcome.promoted)
    # Two spaces, as in the output of sha256sum.
    return "".join(f"{digest}  {name}\n" for digest in digests)


def history_page(catalog: Catalog, registry: str) -> str:
    rows: list[tuple[str, ...]] = []
    for event, image, before in steps(catalog):
        # Counted from the newest event, not from today: the same catalog gives the same page.
        if (catalog.events[-1].time.date() - event.time.date()).days <= HISTORY_DAYS:
            changed = ", ".join([*changes(before, image)[:4], *filter(None, [event.answers])])
            when, name = f"{event.time:%Y-%m-%d %H:%M}", f"`{image.cell.full_target}`"
            tags = codes([*event.named, *event.moved])
            rows.append((when, event.kind, name, f"`{image.digest}`", size(image.size), tags, cell(changed)))
    intro = f"Images of `{registry}`. A digest always names the same image: `docker pull {registry}@sha256:…`. "
    intro += "The folder `notes` says for each night what changes."
    listed = table("when (UTC) | what | target | image | size | tags | changed", rows[::-1])
    return bounded("\n".join(["# What was published", "", intro, "", *listed]))


def night_notes(catalog: Catalog, known: Known, read: Callable[[Digest], Contents]) -> tuple[str, str]:
    """Return the day of the newest night, and what changes for whoever pulls again; alike images share a section."""
    day = f"{catalog.events[-1].time:%Y-%m-%d}" if catalog.events else ""
    sections: dict[tuple[str, ...], list[str]] = {}
    for event, image, before in steps(catalog):
        if f"{event.time:%Y-%m-%d}" != day:
            continue
        shared, specific = ["published for the first time"], [f"`docker pull` gets {size(image.size)}"]
        if before is not None:
            try:
                changed = lines(compare_contents(read(before.digest), read(image.digest), known))
                specific = [line for line in changed if line.startswith(OF_ONE_IMAGE)]
                shared = [line for line in changed if line not in specific]
            except FactoryError as error:
                shared, specific = [f"what changed is not known: {cell(error.what)} {cell(error.why)}"], []
        heading = f"- `{image.cell.full_target}`, `{image.digest}`"
        sections.setdefault(tuple(shared), []).append("\n".join([heading, *(f"  - {line}" for line in specific)]))
    parts = ["\n".join(["", *images, "", *(f"- {line}" for line in shared), ""]) for shared, images in sections.items()]
    return day, bounded(f"# What changed on {day}\n" + "\n---\n".join(parts))


def bounded(text: str) -> str:
    """Shorten a text, by whole lines, to what GitHub shows."""
    if len(text.encode()) <= LARGEST:
        return text
    note = "\n\n… cut here: GitHub shows no more than 1 MiB.\n"
    # The cut may split a character; its bytes are dropped.
    kept = text.encode()[: LARGEST - len(note.encode())].decode("utf-8", "ignore")
    return kept.rpartition("\n")[0] + note


def page(title: str, lines: Iterable[str]) -> str:
    return bounded("\n".join([f"## {title}", "", *lines, ""]))


def table(columns: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty one after it; `columns` is its first line, without its outer bars."""
    rule = "|---" * (columns.count("|") + 1) + "|"
    return [f"| {columns} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""] if rows else []


def folded(title: str, lines: Iterable[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def codes(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names) or "-"


def plain(text: str) -> str:
    """Undo `cell`, for a terminal."""
    return text.replace("\\|", "|").replace("&lt;", "<").replace("@\u200b", "@")


def cell(text: str) -> str:
    """Escape a text for a table cell: one line, no markup, no mentions."""
    # A zero-width space after the @ keeps GitHub from notifying somebody of that name.
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("@", "@\u200b")
