"""Commands for the workflows in .github, one per step; each also runs by hand.

In a workflow the results also go to the files that GitHub reads: GITHUB_OUTPUT and GITHUB_STEP_SUMMARY.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    find_publisher,
    open_repository,
    print_json,
    say,
    select,
    watching,
)
from imagefactory.cli.failures import exit_refused
from imagefactory.cli.publishing import ANSWERS
from imagefactory.errors import UsageError

if TYPE_CHECKING:
    from imagefactory.plan.plan import Plan
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project
    from imagefactory.publish.outcomes import Outcomes

BASE = "the commit to compare with"
TARGETS = "what to act on; repeatable, or several separated by spaces"
NIGHTLY_TARGETS = f"{TARGETS} (default: everything locked, and every model on grafts and on the version `nightly`)"
PUSHED = "a folder with what `ci.push` handed on; repeatable (default: build/pushed)"


@command(
    "ci",
    target=NIGHTLY_TARGETS,
    retry="test images again that failed their tests",
    gpu="also plan the tests that need a GPU",
    first="treat everything as missing: the registry has no such repository yet",
)
def plan(
    project: Project,
    target: list[str],
    json: bool = False,
    retry: bool = False,
    gpu: bool = False,
    first: bool = False,
) -> None:
    """Compare the plans with the registry and list the jobs still to do, each with its reason."""
    from dataclasses import replace

    from imagefactory.ci.jobs import fitted
    from imagefactory.ci.needed_compiles import find_compiles
    from imagefactory.ci.night import plan_night
    from imagefactory.ci.run_summary import night_summary

    cells = _cells_named(project, target, nightly=True)
    with open_repository(project) as repository:
        night = plan_night(project, repository, cells, retry=retry, gpu=gpu, first=first)
        compiles = find_compiles(project, None if first else repository, cells)
    adopted = tuple(f"{cell}/{cell.machine}" for cell in compiles.adopt)
    night = fitted(replace(night, compiles=tuple(compiles.jobs), adopt=adopted))
    summary = night_summary(night)
    _write_outputs(night.outputs())
    _write_summary(summary)
    if json:
        print_json(night.as_json())
    else:
        print(summary)


@command("ci", target=TARGETS)
def push(project: Project, target: list[str]) -> None:
    """Build and push images, and leave their digests in build/pushed; one that fails does not stop the others."""
    from imagefactory.ci.jobs import refuse_full, space_needed
    from imagefactory.publish.handovers import handover_folder, write_handover
    from imagefactory.publish.staging import stage

    plans = _plan_each(project, target)
    refuse_full(project.store.root, space_needed(plans.finished.values()))
    with open_repository(project) as repository, watching() as watch:
        staged = stage(project, repository, plans, watch, say)
    for cell, one in staged.finished.items():
        write_handover(handover_folder(project), one.plan, one.image)
        print(f"{cell}/{cell.machine} {one.digest}")
    staged.refuse_failures("pushed")


@command(
    "ci",
    needs="smoke",
    target=TARGETS,
    level="static, container, serve or gpu (default: what the arch requires)",
    pushed=PUSHED,
    bench="also measure what passed; an image that became slower fails, and gets no tag",
    answers=ANSWERS,
)
def smoke(
    project: Project,
    target: list[str],
    level: list[str],
    pushed: list[str],
    bench: bool = False,
    answers: bool = False,
) -> None:
    """Pull and smoke-test pushed images at the levels they have not passed yet; the records go to build/smoke."""
    from imagefactory.check.smoke.record import SmokeRecord, levels_named
    from imagefactory.check.smoke.runner import records_below
    from imagefactory.ci.jobs import refuse_full, space_needed
    from imagefactory.ci.run_summary import smoke_summary
    from imagefactory.publish.answers import measure_answers
    from imagefactory.publish.pipeline import bench_pulled, measuring, smoke_test
    from imagefactory.publish.staging import Staged, find_staged

    plans = _plan_each(project, target)
    refuse_full(project.store.root, space_needed(plans.finished.values(), pulled=True))
    arch = _cells_named(project, target)[0].arch
    levels = levels_named(level, project.matrix, arch) if any(level) else ()

    def test(staged: Staged) -> SmokeRecord | None:
        record = smoke_test(project, repository, staged, say, levels=levels, must_pass=True)
        if answers or (record and "gpu" in record.passed):
            measure_answers(project, repository, staged, measuring(project, repository, say), say)
        return bench_pulled(project, repository, staged, say) if bench and record else record

    with open_repository(project) as repository:
        found = find_staged(project, repository, plans, _pushed_folders(project, pushed))
        tested = found.then(test, say)
    folder = project.root / "build" / "smoke"
    records = [record for one in found.finished.values() for record in records_below([folder], one.digest)]
    print_summary(smoke_summary(records))
    tested.refuse_failures("tested, or failed")


@command(
    "ci",
    target=TARGETS,
    records="a folder of smoke records; repeatable (default: build/smoke)",
    pushed=PUSHED,
    subjects="write the digests of promoted images to this file, as checksums (for actions/attest)",
    scan="attach what Grype found in `sbom --target all` (its JSON) to these images, and to those that tags name",
)
def promote(
    project: Project,
    target: list[str],
    records: list[str],
    pushed: list[str],
    subjects: str = "",
    key: str = "",
    answers_changed: str = "",
    unsigned: bool = False,
    scan: str = "",
) -> None:
    """Attach smoke records to images, sign them, and promote those that passed; with --scan alone, promote none."""
    from imagefactory.check.smoke.runner import records_below
    from imagefactory.ci import run_summary
    from imagefactory.publish.outcomes import Outcomes
    from imagefactory.publish.pipeline import attach_scans, attest
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged
    from imagefactory.publish.vulnerabilities import Scan

    folders = [Path(folder) for folder in records] or [project.root / "build" / "smoke"]
    checksum_file = options.new_file("--subjects", subjects) if subjects else None
    reason = options.reason("--answers-changed", answers_changed)
    found = Scan.read(options.existing("--scan", scan, folder=False)) if scan else None
    signer, trust = find_publisher(project, key, unsigned=unsigned)
    plans = Outcomes() if found and not "".join(target).strip() else _plan_each(project, target)
    with open_repository(project) as repository:
        attested = find_staged(project, repository, plans, _pushed_folders(project, pushed)).then(
            lambda staged: attest(
                project, repository, staged, records_below(folders, staged.digest), signer, folders=folders
            )
        )
        if found:
            attach_scans(project, repository, found, [one.digest for one in attested.finished.values()], say)
        outcome = promote(project, repository, attested, trust, answers_changed=reason)
    _write_outputs({"promoted": str(len(outcome.promoted))})
    if checksum_file:
        checksum_file.write_text(run_summary.subjects(outcome, repository.reference.name), "utf-8")
    print_summary(run_summary.promotion_summary(outcome))
    exit_refused(outcome.refused)


@command("ci", pushed=PUSHED, dry_run="only print the page")
def record(project: Project, pushed: list[str], dry_run: bool = False) -> None:
    """Commit the history page, the night's notes and the digests of pushed layers to the branch `records`."""
    from imagefactory.check.bench.result import shared_results
    from imagefactory.ci.run_summary import bounded, history_page, night_notes
    from imagefactory.publish.github import RECORDS, GitHub
    from imagefactory.publish.handovers import ExpectedImages
    from imagefactory.publish.image_contents import contents_in_registry
    from imagefactory.publish.stored_catalog import read_catalog
    from imagefactory.publish.upgrade import Known

    layers = ExpectedImages(project, _pushed_folders(project, pushed)).record()
    with open_repository(project) as repository:
        catalog = read_catalog(repository).catalog
        known = Known.of(project, catalog, shared_results(project.root))
        day, notes = night_notes(catalog, known, lambda digest: contents_in_registry(repository, digest))
    page = history_page(catalog, repository.reference.name)
    summary = bounded(f"{notes}\n{page}")
    if dry_run:
        print_summary(summary)
        return
    _write_summary(summary)
    files = {"README.md": page} | ({f"notes/{day}.md": notes} if day else {})
    if layers is not None:
        files[project.handed_on_layers.relative_to(project.root).as_posix()] = layers
    made = GitHub.from_environment().commit(RECORDS, files, "Record what was published\n")
    print(made or "nothing new")


@command("ci", base=BASE)
def changes(project: Project, base: str) -> None:
    """List the mods and images that a change affects, and the inputs that changed."""
    from imagefactory.ci.pull_request import find_changes

    found = find_changes(project, base)
    _write_outputs({"mods": " ".join(found.mods), "jobs": json.dumps(found.jobs(project))})
    print_summary(found.markdown())
    if found.faults:
        raise Exit(code=1)


@command("ci", base=BASE)
def check_records(project: Project, base: str) -> None:
    """Rebuild the layers whose records a change adds or edits, from the lock and with an empty cache, and compare."""
    from imagefactory.ci.changed_records import changed_records, check_records

    changed = changed_records(project, base)
    with watching() as watch:
        check_records(project, changed, watch)
    print_summary(f"## Records\n\nNew or changed, and the same when rebuilt: {len(changed)} layers.\n")


@command(
    "ci",
    name="a mod; repeatable (default: all)",
    source="a checkout of vLLM's main branch",
    vllm="the version of the matrix that it counts as (default: nightly)",
)
def report_mods(project: Project, name: list[str], source: str, vllm: str = "nightly", dry_run: bool = False) -> None:
    """Check mods against vLLM's main branch, and open or update an issue for each that fails."""
    from imagefactory.ci.report_mods import findings, report
    from imagefactory.mods.compatibility import check_mods, markdown
    from imagefactory.mods.source_files import FolderSource
    from imagefactory.publish.attest.provenance import read_source
    from imagefactory.publish.github import GitHub

    tree = options.existing("--source", source, folder=True)
    results = check_mods(project, name, [vllm], folder=FolderSource(tree))
    commit = read_source(tree).commit or ""
    print_summary(f"## Mods on {vllm}\n\n{markdown(results)}\n")
    if dry_run:
        for finding in findings(results):
            print(f"{finding.title}\n\n{finding.body(commit)}")
        return
    github = GitHub.from_environment()
    for mod, outcome, number in report(github, results, commit=commit, known=project.mods):
        print(f"{mod}: issue {number} {outcome}")


@command("ci", target=NIGHTLY_TARGETS, dry_run="lock, but commit nothing")
def adopt(project: Project, target: list[str], dry_run: bool = False) -> None:
    """Lock newly compiled wheels, commit the locks to the branch `records`, and start the next run."""
    from imagefactory.ci.needed_compiles import adopt, find_compiles
    from imagefactory.publish.github import RECORDS, GitHub

    cells = _cells_named(project, target, nightly=True)
    with open_repository(project) as repository:
        compiles = find_compiles(project, repository, cells)
    changed = adopt(project, compiles.adopt, say)
    for path in changed:
        print(path)
    if not changed or dry_run:
        return
    github = GitHub.from_environment()
    files = {path: (project.root / path).read_text("utf-8") for path in changed}
    github.commit(RECORDS, files, "Lock what was compiled\n")
    github.start_workflow("nightly.yml")  # finds the new locks


def _cells_named(project: Project, target: list[str], *, nightly: bool = False) -> list[Cell]:
    """Return the cells that targets name; without targets those of a night, or raise an error."""
    from imagefactory.ci.night import nightly_cells

    words = [word for text in target for word in text.split()]
    if words:
        return select(project, words)
    if nightly:
        return nightly_cells(project)
    raise UsageError(
        "unknown-name",
        "No target was named.",
        where="the --target option",
        why="This command has no default target.",
        fix="Name targets: --target 'MODEL@VLLM/ARCH/MACHINE ...'; `./inv ci.plan` lists them.",
    )


def _plan_each(project: Project, target: list[str]) -> Outcomes[Plan]:
    """Plan the named targets; one that cannot be planned does not stop the others."""
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.outcomes import Outcomes

    return Outcomes.of(_cells_named(project, target), lambda cell: make_plan(project, cell), say)


def _pushed_folders(project: Project, named: list[str]) -> list[Path]:
    from imagefactory.publish.handovers import handover_folder

    return [Path(folder) for folder in named] or [handover_folder(project)]


def _write_outputs(values: dict[str, str]) -> None:
    _append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in values.items()))


def _write_summary(text: str) -> None:
    _append("GITHUB_STEP_SUMMARY", text)


def print_summary(text: str) -> None:
    _write_summary(text)
    print(text)


def _append(variable: str, text: str) -> None:
    """Add to a file that GitHub reads, if this is one of its jobs."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
