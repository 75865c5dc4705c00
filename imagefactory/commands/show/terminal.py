"""How values look on a terminal: tables and messages, built here and printed by the tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, Exclusion, intended_kernels
from imagefactory.plan.changes import LayerChange, is_cached
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan
from imagefactory.store.sizes import size

if TYPE_CHECKING:
    # Only for annotations: showing a plan must not import what resolves and downloads.
    from imagefactory.build.engines.protocol import BuiltImage
    from imagefactory.build.explain import Ownership
    from imagefactory.locks.kernel_policy import KernelVerdict
    from imagefactory.mods.compatibility import ModResult
    from imagefactory.oci.compare import Difference
    from imagefactory.resolve.doctor import Diagnosis
    from imagefactory.resolve.wheelhouse.share import ListedWheel
    from imagefactory.smoke.record import SmokeRecord

# Without a terminal (a pipe, a CI log) a table is as wide as it needs to be.
_WIDTH = None if sys.stdout.isatty() else 200
# Names and reasons come from files; square brackets and colons in them are not markup.
out = Console(highlight=False, markup=False, emoji=False, width=_WIDTH)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def error_message(error: FactoryError) -> Text:
    """Show the four parts of an error."""
    return Text.assemble(
        ("error: ", "bold red"),
        (error.what, "bold"),
        ("\n  where: ", "dim"),
        error.where,
        ("\n  why:   ", "dim"),
        error.why,
        ("\n  next:  ", "dim"),
        error.fix,
    )


def targets_table(project: Project, cells: Iterable[Cell]) -> Table:
    """List cells with what is known about each."""
    table = Table("model", "vLLM", "arch", "platform", "mods", "kernels", "locked", "revision", box=None)
    for row in target_rows(project, cells):
        table.add_row(*row.values())
    return table


def target_rows(project: Project, cells: Iterable[Cell]) -> list[dict[str, str]]:
    """Describe cells as plain values, the same for the table and for JSON."""
    matrix = project.matrix
    rows: list[dict[str, str]] = []
    for cell in cells:
        model = matrix.models[cell.model]
        locked = project.is_locked(cell)
        wanted = model.repositories
        pinned = [repo for repo in wanted if project.model_lock.commit_of(repo)]
        rows.append(
            {
                "model": cell.model,
                "vllm": cell.vllm,
                "arch": cell.arch,
                "platform": cell.platform,
                "mods": model.mods if isinstance(model.mods, str) else " ".join(model.mods),
                "kernels": project.wheel_lock(cell).kernels if locked else intended_kernels(matrix, cell),
                "locked": "yes" if locked else "no",
                "revision": "generated" if not wanted else "pinned" if pinned == wanted else "unpinned",
            }
        )
    return rows


def exclusions_table(exclusions: Sequence[Exclusion]) -> Table:
    """List what is not built, and why."""
    table = Table("target", "platform", "excluded because", box=None)
    for exclusion in exclusions:
        table.add_row(str(exclusion.cell), exclusion.cell.platform, exclusion.reason)
    return table


def plan_table(project: Project, plan: Plan, shared: int) -> RenderableType:
    """Show the layers of a plan, what is cached, and the totals; sizes that are on record are exact."""
    table = Table("layer", "what", "inputs", "layer size", "unpacked", "key", "here", box=None)
    for column in (2, 3, 4):
        table.columns[column].justify = "right"
    known = KnownLayers(project.known_layers)
    cached = 0
    for layer in plan.layers:
        here = is_cached(project.store, layer)
        cached += here
        blob = known.blob(layer.key)
        table.add_row(
            layer.kind,
            layer.name,
            size(layer.download),
            size(blob.size) if blob else "?",
            size(blob.unpacked if blob else layer.unpacked),
            layer.key[:12],
            Text("cached", "green") if here else Text("to build", "yellow"),
        )
    download = sum(layer.download for layer in plan.layers)
    unpacked = sum(layer.unpacked for layer in plan.layers)
    title = f"{plan.target} for {plan.platform}, kernels {plan.kernels}"
    summary = (
        f"{len(plan.layers)} layers ({cached} cached), {size(download)} of inputs, "
        f"{size(unpacked)} unpacked; {size(shared)} shared with other targets\nplan  {plan.key}\n"
    )
    image = known.image(plan)
    summary += f"image {image.digest}" if image else "image not known before it is built"
    notes = [Text(f"mod {note}", "cyan") for note in plan.notes]
    return Group(Text(title, "bold"), table, *notes, Text(summary))


def mods_table(results: Sequence[ModResult]) -> Table:
    """Show the compatibility of mods: a row for each, a column for each vLLM version."""
    versions = list(dict.fromkeys(result.vllm for result in results))
    table = Table("mod", *versions, box=None)
    styles = {"applies": "green", "upstream": "cyan", "not needed": "dim", "out of reach": "yellow"}
    for name in dict.fromkeys(result.mod for result in results):
        row = {result.vllm: result for result in results if result.mod == name}
        cells = [Text(str(row[version]), styles.get(row[version].status, "bold red")) for version in versions]
        table.add_row(name, *cells)
    return table


def audit_table(verdicts: Sequence[KernelVerdict]) -> Table:
    """Show for which chips libraries were compiled, and what that means."""
    styles = {"native": "green", "jit": "yellow", "other chips": "dim", "fails": "bold red"}
    table = Table("library", "outcome", "why", box=None)
    for verdict in verdicts:
        table.add_row(verdict.library, Text(verdict.outcome, styles[verdict.outcome]), verdict.why)
    return table


def audit_markdown(verdicts: Sequence[KernelVerdict]) -> str:
    """Write the audit's table for a job summary or a README."""
    rows = [f"| {verdict.library} | {verdict.outcome} | {verdict.why} |" for verdict in verdicts]
    return "\n".join(["| library | outcome | why |", "|---|---|---|", *rows])


def wheels_table(wheels: Sequence[ListedWheel]) -> RenderableType:
    """Show compiled wheels: for which chips, from what, and where they are."""
    if not wheels:
        return Text(
            "no compiled wheels; `invoke compile` makes them, `invoke wheels.pull` fetches them", "yellow"
        )
    table = Table("wheel", "version", "chips", "platform", "size", "mods", "key", "where", "locked", box=None)
    table.columns[4].justify = "right"
    for wheel in wheels:
        inputs = wheel.inputs
        places = [name for name, there in (("here", wheel.here), ("registry", wheel.shared)) if there]
        table.add_row(
            inputs.name,
            inputs.version,
            inputs.arch_list or "none",
            inputs.platform,
            size(wheel.size),
            str(len(inputs.mods)),
            wheel.key[:16],
            ", ".join(places),
            "yes" if wheel.locked else "no",
        )
    return table


def changes_table(changes: Sequence[LayerChange] | None) -> RenderableType:
    """Show what changed since the last build."""
    if changes is None:
        return Text("never built here: there is nothing to compare with", "yellow")
    if not changes:
        return Text("nothing changed since the last build", "green")
    table = Table("changed", "because", box=None)
    for change in changes:
        table.add_row(change.name, change.what)
    return table


def built_message(built: BuiltImage) -> Text:
    """Describe an image that was built, and where it is."""
    blobs = built.layers
    content = (
        f": {len(blobs)} layers, {size(sum(blob.size for blob in blobs))} "
        f"({size(sum(blob.unpacked for blob in blobs))} unpacked) in {built.where}"
        if blobs
        else f" as {built.where}"
    )
    return Text.assemble(("built ", "bold green"), f"{built.plan.target} for {built.plan.platform}{content}")


def differences_table(differences: Sequence[Difference]) -> RenderableType:
    """Show what two images do not have in common."""
    if not differences:
        return Text("the images hold the same", "green")
    table = Table("path", "field", "left", "right", box=None)
    for difference in differences:
        table.add_row(difference.path, difference.field, difference.left[:60], difference.right[:60])
    return table


def ownership_table(ownership: Ownership, root: Path) -> Table:
    """Show who owns a path."""
    table = Table(box=None, show_header=False)
    table.add_row("path", f"/{ownership.path}")
    table.add_row("layer", f"{ownership.layer.kind} {ownership.layer.name} (key {ownership.layer.key[:12]})")
    table.add_row("from", f"{ownership.owner} {ownership.version}".strip() or "imagefactory")
    if ownership.lock:
        table.add_row("locked in", str(ownership.lock.relative_to(root)))
        table.add_row("needed by", ", ".join(ownership.needed_by))
    return table


def findings_table(findings: Iterable[Diagnosis]) -> Table:
    """Show what the doctor found."""
    styles = {"ok": "green", "warning": "yellow", "failed": "bold red"}
    table = Table("", "needed by", "health", "detail", "remedy", box=None)
    for finding in findings:
        health = Text(finding.health, styles[finding.health])
        table.add_row(finding.subject, finding.needed_by, health, finding.detail, finding.remedy)
    return table


def smoke_table(record: SmokeRecord) -> Table:
    """Show what smoke tests found, by level."""
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
