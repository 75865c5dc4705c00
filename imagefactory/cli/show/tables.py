"""Tables and messages for the terminal and for Markdown; nothing here reads a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from imagefactory.publish.tags import short_digest
from imagefactory.store.progress import size

if TYPE_CHECKING:
    # For annotations only: showing a plan must not import what resolves and downloads.
    from imagefactory.assemble.engines.by_name import BuiltImage
    from imagefactory.assemble.explain import Ownership
    from imagefactory.check.smoke.record import SmokeRecord
    from imagefactory.cli.doctor import Diagnosis
    from imagefactory.lock.audit.auditing import Audited
    from imagefactory.lock.audit.reaching import Reached
    from imagefactory.lock.wheelhouse.share import ListedWheel
    from imagefactory.mods.compatibility import ModResult
    from imagefactory.mods.importing.attempts import Attempt
    from imagefactory.oci.compare import Difference
    from imagefactory.plan.status import LayerChange, PlanStatus
    from imagefactory.project.cells import Exclusion
    from imagefactory.project.locks.kernels import KernelVerdict
    from imagefactory.project.project import TargetStatus
    from imagefactory.publish.attest.image_check import Checked, Finding
    from imagefactory.publish.attest.licence_summary import LicenceSummary
    from imagefactory.publish.history import CurrentImage, Line
    from imagefactory.publish.promote import Promoted
    from imagefactory.publish.prune import Pruning

_SHOWN_CHANGES = 4


def _table(rows: Iterable[Iterable[str | Text]], *columns: str | Column) -> Table:
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(rows: Iterable[Iterable[str]], *columns: str) -> str:
    """Return a table as Markdown."""
    heading, *lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([heading, f"{'|---' * len(columns)}|", *lines])


def targets_table(targets: Iterable[TargetStatus]) -> Table:
    """Show the status of targets."""
    columns = ("model", "version", "arch", "platform", "mods", "kernels", "locked", "revision")
    return _table((vars(target).values() for target in targets), *columns)


def exclusions_table(exclusions: Sequence[Exclusion]) -> Table:
    """Show which combinations are excluded, and why."""
    rows = [(str(one.cell), one.cell.platform, one.reason) for one in exclusions]
    return _table(rows, "target", "platform", "excluded because")


def plan_table(status: PlanStatus) -> RenderableType:
    """Show the layers of a plan, which of them are cached, and the totals."""
    plan = status.plan
    sizes = (Column(name, justify="right") for name in ("inputs", "layer size", "unpacked"))
    table = Table("layer", "what", *sizes, "key", "here", box=None)
    for layer, blob, cached in status.layers:
        table.add_row(
            layer.kind,
            layer.name,
            size(layer.download),
            size(blob.size) if blob else "?",
            size(blob.unpacked if blob else layer.unpacked),
            layer.key[:12],
            Text("cached", "green") if cached else Text("to build", "yellow"),
        )
    here = sum(layer.cached for layer in status.layers)
    download = sum(layer.download for layer in plan.layers)
    unpacked = sum(layer.unpacked for layer in plan.layers)
    shared = "" if status.shared is None else f"; {size(status.shared)} shared with other targets"
    summary = (
        f"{len(plan.layers)} layers ({here} cached), {size(download)} of inputs, "
        f"{size(unpacked)} unpacked{shared}\nplan  {plan.key}\n"
        f"image {status.image.digest if status.image else 'not known before it is built'}"
    )
    title = f"{plan.target} for {plan.platform}, kernels {plan.kernels}"
    notes = [Text(f"mod {note}", "cyan") for note in plan.notes]
    return Group(Text(title, "bold"), table, *notes, Text(summary))


def mods_table(results: Sequence[ModResult]) -> Table:
    """Show the compatibility of mods: one row per mod, one column per version."""
    versions = list(dict.fromkeys(result.version for result in results))
    table = Table("mod", *versions, box=None)
    styles = {
        "applies": "green",
        "upstream": "cyan",
        "not needed": "dim",
        "other server": "dim",
        "out of reach": "yellow",
    }
    for name in dict.fromkeys(result.mod for result in results):
        row = {result.version: result for result in results if result.mod == name}
        cells = [Text(str(row[version]), styles.get(row[version].status, "bold red")) for version in versions]
        table.add_row(name, *cells)
    return table


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    """Show what came of importing a mod, version by version."""
    table = Table("vLLM", "outcome", "why", box=None)
    styles = {"changes": "green", "nothing": "cyan", "fails": "yellow", "untried": "dim"}
    for attempt in attempts:
        detail = ", ".join(attempt.files) if attempt.outcome == "changes" else attempt.why
        table.add_row(attempt.version, Text(attempt.outcome, styles[attempt.outcome]), Text(detail))
    return table


def audit_table(verdicts: Sequence[KernelVerdict]) -> Table:
    """Show whether libraries run on an arch, and why."""
    styles = {
        "native": "green",
        "jit": "yellow",
        "other chips": "dim",
        "other Python": "dim",
        "fails": "bold red",
    }
    rows = [(one.library, Text(one.outcome, styles[one.outcome]), one.why) for one in verdicts]
    return _table(rows, "library", "outcome", "why")


def audit_markdown(verdicts: Sequence[KernelVerdict]) -> str:
    """Return the same table as Markdown."""
    rows = [(one.library, one.outcome, one.why) for one in verdicts]
    return markdown_table(rows, "library", "outcome", "why")


def reached_table(found: Sequence[Reached]) -> Table:
    """Show which calls of vLLM find their kernels, and for what they are used."""
    styles = {"native": "green", "jit": "yellow", "empty": "bold red", "missing": "bold red"}
    rows = [
        (one.call.call, Text(one.outcome, styles[one.outcome]), one.why, one.call.used_by) for one in found
    ]
    return _table(rows, "call", "reaches", "why", "used by")


def reached_markdown(found: Sequence[Reached]) -> str:
    """Return the same table as Markdown."""
    rows = [(one.call.call, one.outcome, one.why, one.call.used_by) for one in found]
    return markdown_table(rows, "call", "reaches", "why", "used by")


def comparison_table(audited: Sequence[Audited]) -> Table:
    """Show the libraries of several wheels or targets side by side."""
    return _table(_comparison(audited), "library", *(one.title for one in audited))


def comparison_markdown(audited: Sequence[Audited]) -> str:
    """Return the same table as Markdown."""
    return markdown_table(_comparison(audited), "library", *(one.title for one in audited))


def _comparison(audited: Sequence[Audited]) -> list[list[str]]:
    names = sorted({verdict.library for one in audited for verdict in one.verdicts})
    return [[name, *(one.about(name) or "-" for one in audited)] for name in names]


def wheels_table(wheels: Sequence[ListedWheel]) -> RenderableType:
    """Show compiled wheels: the chips they are for, what they were compiled from, and where they are."""
    if not wheels:
        hint = "no compiled wheels; `./inv compile` makes them, `./inv wheels.pull` fetches them"
        return Text(hint, "yellow")
    total = Column("size", justify="right")
    table = Table("wheel", "version", "chips", "platform", total, "mods", "key", "where", "locked", box=None)
    for wheel in wheels:
        places = [name for name, there in (("here", wheel.here), ("registry", wheel.shared)) if there]
        table.add_row(
            wheel.inputs.name,
            f"{wheel.inputs.version}{' graft' if wheel.inputs.kind == 'graft' else ''}",
            wheel.inputs.arch_list or "none",
            wheel.inputs.platform,
            size(wheel.size),
            str(len(wheel.inputs.mods)),
            wheel.key[:16],
            ", ".join(places),
            "yes" if wheel.locked else "no",
        )
    return table


def changes_table(target: str, changes: Sequence[LayerChange] | None) -> RenderableType:
    """Show what changed since the last build of a target; None if it was never built."""
    shown: RenderableType
    if changes is None:
        shown = Text("never built here, so there is nothing to compare with", "yellow")
    elif not changes:
        shown = Text("nothing changed since the last build", "green")
    else:
        shown = _table([(change.name, change.what) for change in changes], "changed", "because")
    return Group(Text(target, "bold"), shown)


def built_message(built: BuiltImage) -> Text:
    """Report what was built, and where it is."""
    blobs = built.layers
    content = (
        f": {len(blobs)} layers, {size(sum(blob.size for blob in blobs))} "
        f"({size(sum(blob.unpacked for blob in blobs))} unpacked) in {built.where}"
        if blobs
        else f" as {built.where}"
    )
    return Text.assemble(("built ", "bold green"), f"{built.plan.target} for {built.plan.platform}{content}")


def differences_table(differences: Sequence[Difference]) -> RenderableType:
    """Show how two images differ."""
    if not differences:
        return Text("the images are the same", "green")
    rows = [(one.path, one.field, one.left[:60], one.right[:60]) for one in differences]
    return _table(rows, "path", "field", "left", "right")


def ownership_table(ownership: Ownership, root: Path) -> Table:
    """Show which layer, package and lock entry a path comes from."""
    table = Table(box=None, show_header=False)
    table.add_row("path", f"/{ownership.path}")
    layer = ownership.layer
    table.add_row("layer", f"{layer.kind} {layer.name} (key {layer.key[:12]})" if layer else "none")
    if ownership.left_out:
        table.add_row("left out because", ownership.left_out)
    table.add_row("from", f"{ownership.owner} {ownership.version}".strip() or "imagefactory")
    if ownership.whose:
        table.add_row("made by", ownership.whose)
    if ownership.lock:
        table.add_row("locked in", str(ownership.lock.relative_to(root)))
        table.add_row("needed by", ", ".join(ownership.needed_by))
    return table


def findings_table(findings: Iterable[Diagnosis]) -> Table:
    """Show what the doctor found."""
    styles = {"ok": "green", "warning": "yellow", "failed": "bold red"}
    table = Table("", "needed by", "health", "detail", "remedy", box=None)
    for one in findings:
        health = Text(one.health, styles[one.health])
        table.add_row(one.subject, one.needed_by, health, one.detail, one.remedy)
    return table


def smoke_table(record: SmokeRecord) -> Table:
    """Show the outcome of smoke tests by level."""
    colours = {"passed": "green", "failed": "bold red", "not-run": "yellow"}
    table = Table("level", "outcome", "tests", "time", "why", box=None)
    for level, result in record.levels.items():
        passed = sum(test.outcome == "passed" for test in result.tests)
        applicable = sum(test.outcome != "not-applicable" for test in result.tests)
        table.add_row(
            level,
            Text(result.outcome.replace("-", " "), colours[result.outcome]),
            f"{passed} of {applicable}" if result.tests else "-",
            f"{result.seconds:.0f} s" if result.tests else "-",
            f"ran on its sister {result.ran_on[:19]}" if result.ran_on and not result.why else result.why,
        )
    return table


def checked_lines(checked: Checked) -> Text:
    """Show the findings about a published image, one per line; digests stay whole, to be copied."""
    return Text("\n").join([Text(checked.reference, "bold"), *map(finding_line, checked.findings)])


def finding_line(finding: Finding) -> Text:
    """Show one finding about a published image."""
    styles = {"ok": "green", "failed": "bold red", "not checked": "yellow", "not counted": "yellow"}
    state = (f"{finding.state:<12}", styles[finding.state])
    return Text.assemble(f"  {finding.check:<14}", state, finding.detail)


def licences_table(summary: LicenceSummary) -> RenderableType:
    """Show the parts of an image that involve a GNU licence, and count the rest."""
    table = _table(_gnu_rows(summary), "part", "kind", "version", "GNU licences", "how")
    return Group(Text(summary.target, "bold"), table, Text("\n".join(_licence_lines(summary))))


def licences_markdown(summary: LicenceSummary) -> str:
    """Return the licence summary as Markdown."""
    lines = [f"## Licences of {summary.target}", "", *_licence_lines(summary), ""]
    lines.append(markdown_table(_gnu_rows(summary), "Part", "Kind", "Version", "GNU licences", "How"))
    lines += ["", "| Licence | Parts |", "|---|---:|"]
    lines += [f"| {licence} | {count} |" for licence, count in summary.counts.items()]
    return "\n".join(lines)


def _gnu_rows(summary: LicenceSummary) -> list[tuple[str, ...]]:
    return [(part.name, part.kind, part.version, " ".join(part.licences), part.how) for part in summary.gnu]


def _licence_lines(summary: LicenceSummary) -> list[str]:
    how = [part.how for part in summary.gnu]
    counted = ", ".join(f"{how.count(kind)} {kind}" for kind in dict.fromkeys(how)) or "none"
    lines = [
        f"{sum(summary.counts.values())} parts under {len(summary.counts)} licences; with a GNU licence: {counted}"
    ]
    if summary.undeclared:
        lines.append(f"no licence declared: {', '.join(summary.undeclared)}")
    if summary.elsewhere:
        lines.append(f"not in the image, under licences of their own: {', '.join(summary.elsewhere)}")
    return lines


def history_table(lines: Iterable[Line]) -> Table:
    """Show what was published, newest last."""
    table = Table("when (UTC)", "what", "image", "version", "mods", "tags today", "changed", box=None)
    for line in lines:
        more = len(line.changed) - _SHOWN_CHANGES
        rest = [f"and {more} more"] if more > 0 else []
        today = Text("\n".join(line.now) or "-", "bold green" if line.now else "dim")
        table.add_row(
            f"{line.time:%Y-%m-%d %H:%M}",
            line.kind,
            short_digest(line.image.digest),
            line.image.version,
            " ".join(line.image.mods) or "none",
            Text("held back", "red") if line.held else today,
            "\n".join([*line.changed[:_SHOWN_CHANGES], *rest]),
        )
    return table


def history_rows(lines: Iterable[Line]) -> list[dict[str, object]]:
    """Return the same for JSON."""
    return [
        {
            "time": line.time.isoformat(),
            "kind": line.kind,
            "digest": line.image.digest,
            "tag": line.image.tag,
            "platform": line.image.platform,
            "version": line.image.version,
            "mods": list(line.image.mods),
            "moved": list(line.moved),
            "now": list(line.now),
            "changed": list(line.changed),
            "held": line.held,
        }
        for line in lines
    ]


def offers_table(found: Iterable[CurrentImage]) -> Table:
    """Show the images that can be pulled."""
    table = Table("tag", "platform", "image", "version", "mods", "since", "to pull", box=None)
    for offer in found:
        image = offer.image
        what = (image.platform, short_digest(image.digest), image.version, " ".join(image.mods) or "none")
        table.add_row(offer.tag, *what, f"{offer.since:%Y-%m-%d}", size(image.size))
    return table


def promoted_table(promoted: Iterable[Promoted]) -> Table:
    """Show promoted images with their tags."""
    table = Table("target", "platform", "image", "for ever", "moved here", box=None)
    for one in promoted:
        image = one.image
        tags = ("\n".join(one.named), "\n".join(one.moved))
        table.add_row(str(image.cell), image.platform, short_digest(image.digest), *tags)
    return table


def pruning_table(pruning: Pruning) -> Table:
    """Show the manifests that are deleted, or would be."""
    table = Table("what", "digest", "bytes", "tags", box=None)
    for item in pruning.deletions:
        table.add_row(item.kind, short_digest(item.digest), size(item.size), "\n".join(item.tags))
    return table
