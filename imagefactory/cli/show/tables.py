"""Tables and messages for the terminal and for Markdown; nothing here reads a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from imagefactory.docs.markdown import markdown_table
from imagefactory.project.server_versions import TITLES, server_name, version_key
from imagefactory.publish.tags import short_digest
from imagefactory.store.progress import count, size

if TYPE_CHECKING:
    # For annotations only: showing a plan must not import what resolves and downloads.
    from imagefactory.assemble.engines.by_name import BuiltImage
    from imagefactory.assemble.engines.differences import Summary
    from imagefactory.assemble.explain import Ownership
    from imagefactory.check.smoke.record import SmokeRecord
    from imagefactory.cli.doctor import Diagnosis
    from imagefactory.lock.auditing import Audited
    from imagefactory.lock.wheelhouse.share import ListedWheel
    from imagefactory.mods.compatibility import ModResult
    from imagefactory.pair.cable import End
    from imagefactory.pair.node import Node
    from imagefactory.pair.problem import Problem
    from imagefactory.plan.status import PlanStatus
    from imagefactory.publish.attest.components import LicenceSummary
    from imagefactory.publish.attest.image_check import Checked, Finding
    from imagefactory.publish.history import Line

Rows = Iterable[Iterable[str]]
_GOOD = "ok", "passed", "native", "applies", "changes", "cached"
_UNSURE = "warning", "not run", "jit", "to build", "not checked", "not counted"
_BAD = "failed", "fails", "empty", "missing", "held back", "broken"
_DULL = "not needed", "other server", "other chips", "other Python", "untried"
_STYLES = {
    **dict.fromkeys(_GOOD, "green"),
    **dict.fromkeys(_UNSURE, "yellow"),
    **dict.fromkeys(_BAD, "bold red"),
    **dict.fromkeys(_DULL, "dim"),
    **dict.fromkeys(("upstream", "nothing"), "cyan"),
}
_SHOWN_CHANGES = 4


def table(rows: Rows, *columns: str, title: str | None = None) -> Table:
    """Lay out rows; words that name a state are coloured, and columns named `>name` align to the right."""
    names = (
        Column(name.removeprefix(">"), justify="right" if name[:1] == ">" else "left", overflow="fold")
        for name in columns
    )
    laid_out = Table(*names, box=None, title=title, title_justify="left", show_header=any(columns))
    for row in rows:
        laid_out.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    return laid_out


@dataclass(frozen=True)
class Fitting:
    """Something to show in two versions: the wide one where it fits, else the narrow one, which may have signs."""

    wide: RenderableType
    narrow: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=1000), self.wide).maximum
        yield self.wide if needed <= options.max_width or options.ascii_only else self.narrow


def plan_table(status: PlanStatus) -> RenderableType:
    plan = status.plan
    rows = [
        (
            layer.kind,
            layer.name,
            size(layer.download),
            size(blob.size) if blob else "?",
            size(blob.unpacked if blob else layer.unpacked),
            layer.key[:12],
            "cached" if cached else "to build",
        )
        for layer, blob, cached in status.layers
    ]
    short = [(f"{kind} {name}", layer_size, here) for kind, name, _, layer_size, _, _, here in rows]
    download = sum(layer.download for layer in plan.layers)
    unpacked = sum(layer.unpacked for layer in plan.layers)
    summary = (
        f"{count(len(plan.layers), 'layer')} ({sum(layer.cached for layer in status.layers)} cached), "
        f"{size(download)} of inputs, {size(unpacked)} unpacked\nplan  {plan.key}\n"
        f"image {status.image.digest if status.image else 'not known before it is built'}"
    )
    return Group(
        Text(f"{plan.target} for {plan.platform}, kernels {plan.kernels}", "bold"),
        Fitting(
            table(rows, "layer", "what", ">inputs", ">layer size", ">unpacked", "key", "here"),
            table(short, "layer", ">size", "here"),
        ),
        *(Text(f"mod {note}", "cyan") for note in plan.notes),
        *(Text(f"serves {revision}") for revision in plan.config.labels.get("imagefactory.revisions", "").split()),
        Text(summary),
    )


_SIGNS = {"applies": "✓", "upstream": "↑", "not needed": "·"}
_MISFIT = "✗"


def mods_table(results: Sequence[ModResult]) -> Fitting:
    """Show the versions that mods fit, by server; a narrow terminal gets signs."""
    since = {result.mod: str(result) for result in results if result.status == "upstream"}
    key = [f"{sign} {status}" for status, sign in _SIGNS.items() if any(result.status == status for result in results)]
    key += [f"{_MISFIT} does not fit"] if any(not result.holds for result in results) else []
    notes = [Text("  ".join(key), "dim"), *(Text(f"{mod}: {text}", "cyan") for mod, text in since.items())]
    return Fitting(_mod_rows(results, str), Group(_mod_rows(results, _sign), *notes))


def _sign(result: ModResult) -> str:
    return _SIGNS.get(result.status, _MISFIT)


def _mod_rows(results: Sequence[ModResult], shown: Callable[[ModResult], str]) -> Table:
    laid_out = Table(Column(no_wrap=True), box=None, show_header=False)
    for server, title in TITLES.items():
        fitting = [result for result in results if server_name(result.version) == server]
        found = {(result.mod, result.version): result for result in fitting if result.status != "other server"}
        mods, versions = (list(dict.fromkeys(names)) for names in zip(*found, strict=True)) if found else ([], [])
        if mods:
            laid_out.add_row(Text(title, "bold"), *(Text(version_key(version), "bold") for version in versions))
        for mod in mods:
            cells = [found[mod, version] for version in versions]
            laid_out.add_row(mod, *(Text(shown(cell), _STYLES.get(cell.status, "bold red")) for cell in cells))
    return laid_out


def comparison_rows(audited: Sequence[Audited]) -> Rows:
    names = sorted({verdict.library for report in audited for verdict in report.verdicts})
    return [[name, *(report.about(name) or "-" for report in audited)] for name in names]


def wheels_table(wheels: Sequence[ListedWheel]) -> RenderableType:
    if not wheels:
        return Text("no compiled wheels; `./inv compile` makes them", "yellow")
    rows = [
        (
            wheel.inputs.name,
            f"{wheel.inputs.version}{' graft' if wheel.inputs.kind == 'graft' else ''}",
            wheel.inputs.arch_list or "none",
            wheel.inputs.platform,
            size(wheel.size),
            str(len(wheel.inputs.mods)),
            wheel.key[:16],
            ", ".join(place for place, present in (("here", wheel.here), ("registry", wheel.shared)) if present),
            "yes" if wheel.locked else "no",
        )
        for wheel in wheels
    ]
    return table(rows, "wheel", "version", "chips", "platform", ">size", "mods", "key", "where", "locked")


def built_message(built: BuiltImage) -> Text:
    blobs = built.layers
    content = (
        f": {count(len(blobs), 'layer')}, {size(sum(blob.size for blob in blobs))} "
        f"({size(sum(blob.unpacked for blob in blobs))} unpacked) in {built.where}"
        if blobs
        else f" as {built.where}"
    )
    return Text.assemble(("built ", "bold green"), f"{built.plan.target} for {built.plan.platform}{content}")


def summary_table(summary: Summary) -> RenderableType:
    """Show by layer and package what two images differ in."""
    parts: list[RenderableType] = [Text(f"{count(summary.equal, 'layer')} in both")]
    if summary.layers:
        parts.append(table(summary.layers, "layer", ">left", ">right"))
    if summary.packages:
        parts.append(table(summary.packages, "package", "left", "right"))
    return Group(*parts)


def ownership_table(ownership: Ownership, root: Path) -> Table:
    layer, lock = ownership.layer, ownership.lock
    rows = {
        "path": f"/{ownership.path}",
        "layer": f"{layer.kind} {layer.name} (key {layer.key[:12]})" if layer else "none",
        "left out because": ownership.left_out,
        "from": f"{ownership.owner} {ownership.version}".strip() or "imagefactory",
        "made by": ownership.whose,
        "locked in": str(lock.relative_to(root)) if lock else "",
        "needed by": ", ".join(ownership.needed_by) if lock else "",
    }
    return table((row for row in rows.items() if row[1]), "", "")


def smoke_table(record: SmokeRecord) -> Table:
    rows = []
    for level, result in record.levels.items():
        passed = sum(test.outcome == "passed" for test in result.tests)
        applicable = sum(test.outcome != "not-applicable" for test in result.tests)
        counted = (f"{passed} of {applicable}", f"{result.seconds:.0f} s") if result.tests else ("-", "-")
        sister = f"ran on its sister {result.ran_on[:19]}" if result.ran_on else ""
        weights = f"weights: {result.weights}" if result.weights else ""
        rows.append((level, result.outcome.replace("-", " "), *counted, result.why or sister or weights))
    return table(rows, "level", "outcome", "tests", "time", "why")


def checked_lines(checked: Checked) -> Text:
    """Show the findings about a published image, one per line; digests stay whole, to be copied."""
    return Text("\n").join([Text(checked.reference, "bold"), *map(finding_line, checked.findings)])


def finding_line(finding: Finding) -> Text:
    state = (f"{finding.state:<12}", _STYLES[finding.state])
    return Text.assemble(f"  {finding.check:<14}", state, finding.detail)


def diagnosis_lines(findings: Sequence[Diagnosis]) -> Text:
    """Show what is known about this machine, one line each, and a remedy below what is wrong; paths stay whole."""
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        state = (f"{finding.health:<8}", _STYLES[finding.health])
        lines.append(Text.assemble(state, f"{finding.subject:<{width}}  {finding.detail}"))
        if finding.remedy:
            lines.append(Text(f"{'':8}{'':{width}}  {finding.remedy} (needed by {finding.needed_by})", "dim"))
    return Text("\n").join(lines)


def pair_examined(head: Node, worker: Node, interface: str, problems: Sequence[Problem]) -> RenderableType:
    """Show both machines of a pair side by side, and what stands in the way with its remedy."""
    from imagefactory.pair.cable import Cable, search

    cable = search(head, worker, interface)
    ends = (cable.head, cable.worker) if isinstance(cable, Cable) else (None, None)
    facts = zip(_facts(head, ends[0]).items(), _facts(worker, ends[1]).values(), strict=True)
    rows: Rows = ((name, ours, theirs) for (name, ours), theirs in facts)
    return Group(table(rows, "", head.host, worker.host), Text(), problem_table(problems))


def problem_table(problems: Sequence[Problem]) -> RenderableType:
    if not problems:
        return Text("Nothing stands in the way.", "green")
    states = {"refuse": "failed", "warn": "warning"}
    rows = (
        (states[problem.severity], problem.rule, f"{problem.what} {problem.why}\nNext: {problem.fix}")
        for problem in problems
    )
    return table(rows, "", "", "")


def _facts(node: Node, end: End | None) -> dict[str, str]:
    interface, unknown = end.interface if end else None, "unknown"
    # The kernel counts in Mb/s.
    speed = f"{interface.speed // 1000} Gb/s" if interface and interface.speed else unknown
    return {
        "cable": str(interface) if interface else "not found",
        "link": f"{speed}, MTU {interface.mtu}" if interface else "-",
        "RoCE": ", ".join(end.devices if end else ()) or "-",
        "driver": node.driver or unknown,
        "Docker": node.docker.version if node.docker else unknown,
        **{f"disk for {name}": f"{size(disk.free)} free" if disk else unknown for name, disk in node.disks.items()},
    }


def licences_table(summary: LicenceSummary) -> RenderableType:
    parts = table(_gnu_rows(summary), "part", "kind", "version", "GNU licences", "how")
    return Group(Text(summary.target, "bold"), parts, Text("\n".join(_licence_lines(summary))))


def licences_markdown(summary: LicenceSummary) -> str:
    lines = [f"## Licences of {summary.target}", "", *_licence_lines(summary), ""]
    lines.append(markdown_table(_gnu_rows(summary), "Part", "Kind", "Version", "GNU licences", "How"))
    counts = ((licence, str(count)) for licence, count in summary.counts.items())
    return "\n".join([*lines, "", markdown_table(counts, "Licence", "Parts")])


def _gnu_rows(summary: LicenceSummary) -> Rows:
    return [(part.name, part.kind, part.version, " ".join(part.licences), part.how) for part in summary.gnu]


def _licence_lines(summary: LicenceSummary) -> list[str]:
    how = [part.how for part in summary.gnu]
    counted = ", ".join(f"{how.count(kind)} {kind}" for kind in dict.fromkeys(how)) or "none"
    total = sum(summary.counts.values())
    lines = [f"{count(total, 'part')} under {count(len(summary.counts), 'licence')}; with a GNU licence: {counted}"]
    if summary.undeclared:
        lines.append(f"no licence declared: {', '.join(summary.undeclared)}")
    if summary.elsewhere:
        lines.append(f"not in the image, under licences of their own: {', '.join(summary.elsewhere)}")
    return lines


def history_table(lines: Iterable[Line]) -> Table:
    rows = []
    for line in lines:
        more = len(line.changed) - _SHOWN_CHANGES
        rest = [f"and {more} more"] if more > 0 else []
        row = (
            f"{line.time:%Y-%m-%d %H:%M}",
            f"{line.kind}: {line.why}" if line.why else line.kind,
            short_digest(line.image.digest),
            line.image.version,
            " ".join(line.image.mods) or "none",
            "held back" if line.held else "\n".join(line.now) or "-",
            "\n".join([*line.changed[:_SHOWN_CHANGES], *rest, line.answers]),
        )
        rows.append(row)
    return table(rows, "when (UTC)", "what", "image", "version", "mods", "tags today", "changed")
