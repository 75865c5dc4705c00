"""How licences and checks of published images look: tables and Markdown, printed by the tasks."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from imagefactory.publish.attest.image_check import Checked
from imagefactory.publish.attest.licence_summary import LicenceSummary


def checked_lines(checked: Checked) -> Text:
    """Show what a check of a published image found, a line each: digests stay whole, so that they can be copied."""
    styles = {"ok": "green", "failed": "bold red", "not checked": "yellow"}
    lines = Text(checked.reference, "bold")
    for finding in checked.findings:
        lines.append(f"\n  {finding.check:<14}", "default not bold")
        lines.append(f"{finding.state:<12}", styles[finding.state])
        lines.append(finding.detail, "default not bold")
    return lines


def licences_table(summary: LicenceSummary) -> RenderableType:
    """Show which parts of an image have to do with a GNU licence, and how many stand under each licence."""
    table = Table("part", "kind", "version", "GNU licences", "how", box=None)
    for part in summary.gnu:
        table.add_row(part.name, part.kind, part.version, " ".join(part.licences), part.how)
    return Group(Text(summary.target, "bold"), table, Text("\n".join(_licence_lines(summary))))


def licences_markdown(summary: LicenceSummary) -> str:
    """Write the licence summary as Markdown."""
    lines = [f"## Licences of {summary.target}", "", *_licence_lines(summary), ""]
    lines += ["| Part | Kind | Version | GNU licences | How |", "|---|---|---|---|---|"]
    lines += [
        f"| {part.name} | {part.kind} | {part.version} | {' '.join(part.licences)} | {part.how} |"
        for part in summary.gnu
    ]
    lines += ["", "| Licence | Parts |", "|---|---:|"]
    lines += [f"| {licence} | {count} |" for licence, count in summary.counts.items()]
    return "\n".join(lines)


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
