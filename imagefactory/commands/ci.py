"""Commands for the workflows in .github, one per step; each also runs by hand.

In a workflow the results also go to the files that GitHub reads: GITHUB_OUTPUT and GITHUB_STEP_SUMMARY.
"""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.commands import options, workflow
from imagefactory.commands.command import command, find_publisher, open_repository, print_json, say
from imagefactory.commands.failures import exit_refused

if TYPE_CHECKING:
    from imagefactory.locks.project import Project

BASE = "the commit to compare with"


@command(
    help={
        "target": workflow.NIGHTLY_TARGETS,
        "json": options.JSON,
        "retry": "test images again that failed their tests",
        "gpu": "also plan the tests that need a GPU",
        "first": "treat everything as missing: the registry has no such repository yet",
    },
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

    from imagefactory.publish.automation.jobs import fitted
    from imagefactory.publish.automation.needed_compiles import find_compiles
    from imagefactory.publish.automation.night import plan_night
    from imagefactory.publish.automation.run_summary import night_document, night_summary

    cells = workflow.cells_named(project, target, nightly=True)
    with open_repository(project) as repository:
        night = plan_night(project, repository, cells, retry=retry, gpu=gpu, first=first)
        compiles = find_compiles(project, None if first else repository, cells)
    adopted = tuple(f"{cell}/{cell.machine}" for cell in compiles.adopt)
    night = fitted(replace(night, compiles=tuple(compiles.jobs), adopt=adopted))
    summary = night_summary(night)
    workflow.write_outputs(night.outputs())
    workflow.write_summary(summary)
    if json:
        print_json(night_document(night))
    else:
        print(summary)


@command(help={"target": workflow.TARGETS})
def push(project: Project, target: list[str]) -> None:
    """Build and push images, and leave their digests in build/pushed; one that fails does not stop the others."""
    from imagefactory.commands.show.live import watching
    from imagefactory.publish.handovers import handover_folder, write_handover
    from imagefactory.publish.staging import stage

    plans = workflow.plan_each(project, target)
    with open_repository(project) as repository, watching() as watch:
        staged = stage(project, repository, plans, watch, say)
    for cell, one in staged.finished.items():
        write_handover(handover_folder(project), one.plan, one.image)
        print(f"{cell}/{cell.machine} {one.digest}")
    staged.refuse_failures("pushed")


@command(
    needs="smoke",
    help={
        "target": workflow.TARGETS,
        "level": "static, container, serve or gpu (default: what the arch requires)",
        "pushed": workflow.PUSHED,
    },
)
def smoke(project: Project, target: list[str], level: list[str], pushed: list[str]) -> None:
    """Pull and smoke-test pushed images at the levels they have not passed yet; the records go to build/smoke."""
    from imagefactory.publish.pipeline import smoke_test
    from imagefactory.publish.staging import find_staged
    from imagefactory.smoke.levels import levels_named

    plans = workflow.plan_each(project, target)
    arch = workflow.cells_named(project, target)[0].arch
    levels = levels_named(level, project.matrix, arch) if any(level) else ()
    with open_repository(project) as repository:
        tested = find_staged(project, repository, plans, workflow.pushed_folders(project, pushed)).then(
            lambda staged: smoke_test(project, repository, staged, say, levels=levels, must_pass=True), say
        )
    for cell, record in tested.finished.items():
        print(f"{cell}/{cell.machine} {record.summary if record else 'passed earlier'}")
    tested.refuse_failures("tested, or failed")


@command(help={"target": workflow.TARGETS, "pushed": workflow.PUSHED})
def bench(project: Project, target: list[str], pushed: list[str]) -> None:
    """Measure pushed images that passed the gpu level; one that became slower fails it, and gets no tag."""
    from imagefactory.publish.pipeline import bench_pulled
    from imagefactory.publish.staging import find_staged

    plans = workflow.plan_each(project, target)
    with open_repository(project) as repository:
        measured = find_staged(project, repository, plans, workflow.pushed_folders(project, pushed)).then(
            lambda staged: bench_pulled(project, repository, staged, say), say
        )
    lines = [
        f"| {cell}/{cell.machine} | {test.outcome} | {test.message} |"
        for cell, record in measured.finished.items()
        for test in record.levels["gpu"].tests
        if test.name == "throughput"
    ]
    table = ["| target | throughput | why |", "|---|---|---|", *lines]
    workflow.print_summary("\n".join(["## Benchmarks", "", *table, ""]))
    measured.refuse_failures("measured")


@command(
    help={
        "target": workflow.TARGETS,
        "records": "a folder of smoke records; repeatable (default: build/smoke)",
        "pushed": workflow.PUSHED,
        "subjects": "write the digests of promoted images to this file, as checksums (for actions/attest)",
        "key": options.SIGNING_KEY,
        "unsigned": "promote images that nobody signed too: for a private registry",
    },
)
def promote(
    project: Project,
    target: list[str],
    records: list[str],
    pushed: list[str],
    subjects: str = "",
    key: str = "",
    unsigned: bool = False,
) -> None:
    """Attach smoke records to images, sign them, and promote those that passed."""
    from imagefactory.publish.automation import run_summary
    from imagefactory.publish.pipeline import attest
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged
    from imagefactory.smoke.runner import records_below

    folders = [Path(folder) for folder in records] or [project.root / "build" / "smoke"]
    checksum_file = options.new_file("--subjects", subjects) if subjects else None
    signer, trust = find_publisher(project, key, unsigned=unsigned)
    plans = workflow.plan_each(project, target)
    with open_repository(project) as repository:
        attested = find_staged(project, repository, plans, workflow.pushed_folders(project, pushed)).then(
            lambda staged: attest(project, repository, staged, records_below(folders, staged.digest), signer)
        )
        outcome = promote(project, repository, attested, trust)
    workflow.write_outputs({"promoted": str(len(outcome.promoted))})
    if checksum_file:
        checksum_file.write_text(run_summary.subjects(outcome, repository.reference.name), "utf-8")
    workflow.print_summary(run_summary.promotion_summary(outcome))
    exit_refused(outcome.refused)


@command(help={"pushed": workflow.PUSHED, "dry_run": "only print the page"})
def record(project: Project, pushed: list[str], dry_run: bool = False) -> None:
    """Write the history page, the catalog and the digests of layers that were handed on to the branch `records`."""
    from imagefactory.publish.automation.commits import RECORDS, commit
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.run_summary import history_page
    from imagefactory.publish.catalog_writes import read_catalog
    from imagefactory.publish.handovers import Vouchers

    layers = Vouchers(project, workflow.pushed_folders(project, pushed)).record()
    with open_repository(project) as repository:
        catalog = read_catalog(repository).catalog
    page = history_page(catalog, repository.reference.name)
    if dry_run:
        workflow.print_summary(page)
        return
    workflow.write_summary(page)
    files = {"README.md": page, "catalog.json": catalog.to_json().decode()}
    if layers is not None:
        files[project.handed_on_layers.relative_to(project.root).as_posix()] = layers
    made = commit(GitHub.from_environment(), RECORDS, files, "Record what was published\n")
    print(made or "nothing new")


@command(
    help={
        "plan": "show this plan (the output of `ci.plan --json`)",
        "records": "show the smoke records in this folder, such as build/smoke",
    }
)
def summary(project: Project, plan: str = "", records: str = "") -> None:
    """Print a plan or smoke records as Markdown, and add them to the run's page."""
    from imagefactory.publish.automation.run_summary import plan_document, smoke_summary
    from imagefactory.smoke.record import SmokeRecord

    if plan:
        workflow.print_summary(plan_document(Path(plan)))
    if records:
        found = sorted(Path(records).rglob("record.json"))
        workflow.print_summary(smoke_summary([SmokeRecord.read(path) for path in found]))


@command(
    help={
        "needs": "the results of the other jobs: GitHub's toJSON(needs)",
        "broken": "how many targets the plan found broken",
    }
)
def status(project: Project, needs: str, broken: str = "") -> None:
    """Fail if a job of the run failed or was cancelled; branch rules require this one result."""
    from imagefactory.publish.automation.run_summary import read_results, refuse_failed_jobs, status_summary

    count = options.whole_number("--broken", broken) or 0
    results = read_results(needs)
    workflow.print_summary(status_summary(results))
    refuse_failed_jobs(results, count)


@command(help={"base": BASE, "json": options.JSON})
def changes(project: Project, base: str, json: bool = False) -> None:
    """List the mods and images that a change affects, and the inputs that changed."""
    from imagefactory.publish.automation.pull_request import find_changes

    found = find_changes(project, base)
    workflow.write_outputs({"mods": " ".join(found.mods), "jobs": json_.dumps(found.jobs(project))})
    workflow.write_summary(found.markdown())
    if json:
        print_json(found.as_json(project))
    else:
        print(found.markdown())
    if found.faults:
        raise Exit(code=1)


@command(
    help={
        "base": f"{BASE} (default: check all mods)",
        "names": "check these mods instead, separated by spaces",
    }
)
def check_mods(project: Project, base: str = "", names: str = "") -> None:
    """Check the mods that a change touches against every vLLM version."""
    from imagefactory.mods import readme_table
    from imagefactory.mods.compatibility import check_mods, refuse_broken
    from imagefactory.publish.automation.pull_request import changed_mods

    wanted = names.split() or (changed_mods(project, base) if base else sorted(project.mods))
    if not wanted:
        print("no mod changed")
        return
    results = check_mods(project, list(wanted))
    workflow.print_summary(f"## Mods\n\n{readme_table.markdown(results)}\n")
    refuse_broken(results)


@command(help={"base": BASE})
def check_records(project: Project, base: str) -> None:
    """Rebuild the layers whose records a change adds or edits, from the lock and with an empty cache, and compare."""
    from imagefactory.commands.show.live import watching
    from imagefactory.publish.automation.changed_records import changed_records, check_records

    changed = changed_records(project, base)
    with watching() as watch:
        check_records(project, changed, watch)
    workflow.print_summary(
        f"## Records\n\nNew or changed, and the same when rebuilt: {len(changed)} layers.\n"
    )


@command(
    help={
        "name": "a mod; repeatable (default: all)",
        "source": "a checkout of vLLM's main branch",
        "vllm": "the version of the matrix that it counts as (default: nightly)",
        "dry_run": workflow.DRY_RUN,
    },
)
def report_mods(
    project: Project, name: list[str], source: str, vllm: str = "nightly", dry_run: bool = False
) -> None:
    """Check mods against vLLM's main branch, and open or update an issue for each that fails."""
    from imagefactory.mods import readme_table
    from imagefactory.mods.compatibility import check_mods
    from imagefactory.mods.rebasing import advice
    from imagefactory.mods.source_files import FolderSource
    from imagefactory.publish.attest.provenance import read_source
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.report_mods import findings, report

    tree = options.existing("--source", source, folder=True)
    results = check_mods(project, name, [vllm], folder=FolderSource(tree))
    commit = read_source(tree).commit or ""
    workflow.print_summary(f"## Mods on {vllm}\n\n{readme_table.markdown(results)}\n")
    advised = {
        finding.mod: advice(project, finding.mod, vllm, FolderSource(tree))
        for finding in findings(results)
        if finding.kind == "broken"
    }
    if dry_run:
        for finding in findings(results):
            print(f"{finding.title}\n\n{finding.body(commit, advised.get(finding.mod, ''))}")
        return
    github = GitHub.from_environment()
    for mod, outcome, number in report(github, results, commit=commit, known=project.mods, advice=advised):
        print(f"{mod}: issue {number} {outcome}")


@command(
    help={
        "target": workflow.TARGETS,
        "pulled": "the job pulls the images into an engine instead of building them",
    },
)
def room(project: Project, target: list[str], pulled: bool = False) -> None:
    """Check that this machine has enough free disk space for a job."""
    from imagefactory.publish.automation.disk_space import refuse_full, space_needed

    plans = workflow.plan_each(project, target)
    plans.refuse_failures("planned")
    needed = space_needed(plans.finished.values(), pulled=pulled)
    free = refuse_full(project.store.root, needed)
    print(f"{free:.1f} GB free, {needed:.1f} GB needed")


@command(help={"commit": "the commit of the branch `records` (default: its head)"})
def take_locks(project: Project, commit: str = "") -> None:
    """Copy locks from the branch `records` into this checkout where it has none of its own."""
    from imagefactory.publish.automation.commits import take_locks
    from imagefactory.publish.automation.github import GitHub

    sha, written = take_locks(GitHub.from_environment(), project.root, commit)
    workflow.write_outputs({"locks": sha})
    for path in written:
        print(path)


@command(help={"target": workflow.NIGHTLY_TARGETS, "dry_run": "lock, but commit nothing"})
def adopt(project: Project, target: list[str], dry_run: bool = False) -> None:
    """Lock newly compiled wheels, commit the locks to the branch `records`, and start the next run."""
    from imagefactory.publish.automation.commits import RECORDS, commit
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.needed_compiles import adopt, find_compiles

    cells = workflow.cells_named(project, target, nightly=True)
    with open_repository(project) as repository:
        compiles = find_compiles(project, repository, cells)
    changed = adopt(project, compiles.adopt, say)
    for path in changed:
        print(path)
    if not changed or dry_run:
        return
    github = GitHub.from_environment()
    files = {path: (project.root / path).read_text("utf-8") for path in changed}
    commit(github, RECORDS, files, "Lock what was compiled\n")
    github.start_workflow("nightly.yml")  # finds the new locks


@command(
    help={
        "upgrade": f"{options.UPGRADE} (default: all)",
        "body": "write the text of the pull request to this file",
    },
)
def refresh(project: Project, upgrade: list[str], body: str = "") -> None:
    """Update the locks to newer packages, and the matrix to a new vLLM release."""
    from imagefactory.environment.index_config import IndexConfig
    from imagefactory.locks.project import Project
    from imagefactory.mods.compatibility import check_mods
    from imagefactory.publish.automation.refresh import refresh
    from imagefactory.store.indexes import Indexes

    body_file = options.new_file("--body", body) if body else None
    indexes = Indexes(IndexConfig.from_environment())
    refreshed = refresh(project, indexes, upgrade or ["all"], say)
    text = refreshed.body(check_mods(Project(project.root)))
    workflow.print_summary(text)
    if body_file:
        body_file.write_text(text, "utf-8")


@command(
    help={
        "branch": "the branch of the pull request; it is overwritten",
        "title": "the title of the pull request",
        "body": "a file with the text of the pull request",
        "dry_run": workflow.DRY_RUN,
    }
)
def propose(project: Project, branch: str, title: str, body: str, dry_run: bool = False) -> None:
    """Open or update a pull request with what changed in this checkout."""
    from imagefactory.publish.automation.commits import changed_files, propose
    from imagefactory.publish.automation.github import GitHub

    body_file = options.existing("--body", body, folder=False)
    files = changed_files(project.root)
    for path in files:
        print(path)
    if not files or dry_run:
        return
    done = propose(GitHub.from_environment(), branch, files, title=title, body=body_file.read_text("utf-8"))
    print("pull request {}: {}".format(*done) if done else "nothing to propose")


@command(help={"tag": "the tag, such as v0.1.0", "dry_run": "only print the release notes"})
def release(project: Project, tag: str, dry_run: bool = False) -> None:
    """Publish a release of the factory with its section of the changelog."""
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.releases import publish_release, release_notes

    notes = release_notes(project.root, tag)
    workflow.write_summary(notes)
    print(notes if dry_run else publish_release(GitHub.from_environment(), tag, notes))
