"""What a run did, as Markdown: for its summary page, for pull requests, for the history page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from imagefactory.errors.ci import RunFailedError
from imagefactory.publish.automation.jobs import Night, Trouble
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.history import changes
from imagefactory.publish.promote import Promotion
from imagefactory.publish.tags import short_digest
from imagefactory.smoke.record import SmokeRecord
from imagefactory.store.sizes import size

LARGEST: Final = 1024 * 1024
"""GitHub's limit for one step, in bytes; it shows nothing at all of a longer summary."""
GOOD: Final = frozenset({"success", "skipped"})


def night_summary(night: Night) -> str:
    """Summarize what a run is going to do, and why."""
    lines = ["## Plan", "", f"`{night.registry}`: {_counted(night)}", ""]
    if night.works:
        lines += ["| target | does | because |", "|---|---|---|"]
        lines += [
            f"| `{work.target}` | {' → '.join(work.needs)} | {_cell(work.reason)} |" for work in night.works
        ]
        lines.append("")
    if night.compiles:
        lines += ["| compile | vLLM | arch | because |", "|---|---|---|---|"]
        lines += [f"| {job.what} | {job.vllm} | {job.arch} | {_cell(job.reason)} |" for job in night.compiles]
        lines.append("")
    if night.adopt:
        lines += [
            f"Compiled and waiting for a lock: {', '.join(f'`{target}`' for target in night.adopt)}",
            "",
        ]
    lines += _troubles("Broken", night.broken) + _troubles("Left alone", night.held)
    if night.later:
        lines += [f"{night.later} more do not fit into one run; the next one goes on.", ""]
    return bounded("\n".join(lines))


def _counted(night: Night) -> str:
    if night.is_empty:
        return f"nothing changed; {night.current} images are up to date."
    return (
        f"{len(night.works)} to do, {len(night.compiles)} to compile, {night.current} up to date, "
        f"{len(night.broken)} broken, {len(night.held)} left alone."
    )


def _troubles(title: str, troubles: Sequence[Trouble]) -> list[str]:
    if not troubles:
        return []
    rows = [f"| `{trouble.target}` | {_cell(trouble.what)} | {_cell(trouble.why)} |" for trouble in troubles]
    return [f"### {title}", "", "| target | what | why |", "|---|---|---|", *rows, ""]


def plan_document(path: Path) -> str:
    """Show a plan that was written as JSON."""
    try:
        night = Night.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunFailedError(
            "The plan cannot be read.",
            where=path,
            why=f"{type(error).__name__}: {error}",
            fix="Write it with `invoke ci.plan --json`.",
        ) from None
    return night_summary(night)


def smoke_summary(records: Iterable[SmokeRecord]) -> str:
    """Summarize smoke records."""
    lines = ["## Smoke tests", "", "| target | image | levels | what is wrong |", "|---|---|---|---|"]
    for record in records:
        levels = ", ".join(f"{level} {result.outcome}" for level, result in record.levels.items())
        wrong = "; ".join(
            f"{level}: {result.why}" for level, result in record.levels.items() if result.outcome == "failed"
        )
        lines.append(
            f"| `{record.target}` | `{short_digest(record.digest)}` | {levels} | {_cell(wrong) or '-'} |"
        )
    return bounded("\n".join([*lines, ""]))


def promotion_summary(outcome: Promotion) -> str:
    """Summarize which tags moved, and which images were refused."""
    lines = ["## Tags", ""]
    if outcome.promoted:
        lines += ["| target | image | for ever | moved here |", "|---|---|---|---|"]
        lines += [
            f"| `{one.image.cell}/{one.image.cell.machine}` | `{one.image.digest}` | "
            f"{_codes(one.named)} | {_codes(one.moved)} |"
            for one in outcome.promoted
        ]
        lines.append("")
    else:
        lines += ["No tag moved.", ""]
    lines += [f"- {_cell(error.what)} {_cell(error.why)}" for error in outcome.refused]
    return bounded("\n".join([*lines, ""]))


def subjects(outcome: Promotion, name: str) -> str:
    """List promoted images as checksums, the form in which `actions/attest` takes several subjects."""
    digests = dict.fromkeys(one.image.digest.removeprefix("sha256:") for one in outcome.promoted)
    return "".join(f"{digest}  {name}\n" for digest in digests)


def history_page(catalog: Catalog, registry: str, days: int = 60) -> str:
    """Write the history page: everything that was published, newest first."""
    lines = [
        "# What was published",
        "",
        f"Images of `{registry}`. A digest names one image for ever: `docker pull {registry}@sha256:…`.",
        "",
        "| when (UTC) | what | target | image | size | tags | changed |",
        "|---|---|---|---|---|---|---|",
    ]
    before: dict[tuple[str, str], Any] = {}
    rows: list[str] = []
    newest = catalog.events[-1].time.date() if catalog.events else None
    for event in catalog.events:
        image = catalog.image(event.image)
        if image is None:
            continue
        target = (f"{image.model} {image.arch}", image.platform)
        changed = ", ".join(changes(before.get(target), image)[:4])
        before[target] = image
        if newest is not None and (newest - event.time.date()).days <= days:
            rows.append(
                f"| {event.time:%Y-%m-%d %H:%M} | {event.kind} | `{image.cell}/{image.cell.machine}` | "
                f"`{image.digest}` | {size(image.size)} | {_codes([*event.named, *event.moved])} | {_cell(changed)} |"
            )
    return "\n".join([*lines, *reversed(rows), ""])


def status_summary(results: Mapping[str, str]) -> str:
    """Summarize the results of a run's jobs."""
    rows = [f"| {name} | {result} |" for name, result in results.items()]
    return "\n".join(["## Jobs", "", "| job | result |", "|---|---|", *rows, ""])


def read_results(text: str) -> dict[str, str]:
    """Read the results of jobs from GitHub's `toJSON(needs)`."""
    try:
        found = {str(name): str(job["result"]) for name, job in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunFailedError(
            "The results of the jobs cannot be read.",
            where="the --needs option",
            why=f"It is not the output of toJSON(needs) ({type(error).__name__}).",
            fix="Put `toJSON(needs)` into a variable, and pass that to --needs.",
        ) from None
    return found


def refuse_failed_jobs(results: Mapping[str, str], broken: int = 0) -> None:
    """Raise if a job failed or was cancelled, or a cell is broken; a skipped job is no failure."""
    if broken:
        raise RunFailedError(
            f"{broken} cell{'s are' if broken > 1 else ' is'} broken.",
            where="the plan of this run",
            why="Their images cannot be built; the plan says why. Published images stay as they are.",
            fix="Fix the mod, the lock or the matrix; the rest of this run was done.",
        )
    bad = {name: result for name, result in results.items() if result not in GOOD}
    if bad:
        raise RunFailedError(
            f"{len(bad)} of {len(results)} jobs did not succeed.",
            where=", ".join(bad),
            why="; ".join(f"{name}: {result}" for name, result in bad.items()),
            fix="Their logs say why. What succeeded is published; the next run does what is missing.",
        )


def append(path: str, text: str) -> None:
    """Add to a file that GitHub reads, such as GITHUB_STEP_SUMMARY or GITHUB_OUTPUT."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text if text.endswith("\n") else f"{text}\n")


def bounded(text: str, largest: int = LARGEST) -> str:
    """Shorten a text to whole lines that GitHub shows."""
    if len(text.encode()) <= largest:
        return text
    note = "\n\n… cut here: GitHub shows no more than 1 MiB.\n"
    kept = text.encode()[: largest - len(note.encode())].decode("utf-8", "ignore")
    return kept.rpartition("\n")[0] + note


def _codes(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names) or "-"


def _cell(text: str) -> str:
    """Escape a text for a table cell, so that nothing in it is rendered."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("@", "@\u200b")
