"""The commands that the workflows in .github run, one per step; each can also be run by hand.

In a workflow the results also go where GitHub reads them: GITHUB_OUTPUT and GITHUB_STEP_SUMMARY.
"""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.commands import options
from imagefactory.commands.command import command, need, print_json, say
from imagefactory.commands.workflow import (
    DRY_RUN,
    TARGETS,
    cells_named,
    open_repository,
    plan_each,
    write_outputs,
    write_summary,
)

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    iterable=["target"],
    help={
        "target": f"{TARGETS} (default: everything locked, and every model on the version `nightly`)",
        "json": "print JSON",
        "retry": "retest images that failed their tests",
        "gpu": "a machine with a GPU is available for tests",
        "first": "the registry has no such repository yet: treat everything as missing",
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
    from imagefactory.publish.automation.night import nightly_cells, plan_night
    from imagefactory.publish.automation.run_summary import night_document, night_summary

    cells = cells_named(project, target) if "".join(target).strip() else nightly_cells(project)
    with open_repository(project) as repository:
        night = plan_night(project, repository, cells, retry=retry, gpu=gpu, first=first)
        compiles = find_compiles(project, None if first else repository, cells)
    adopted = tuple(f"{cell}/{cell.machine}" for cell in compiles.adopt)
    night = fitted(replace(night, compiles=tuple(compiles.jobs), adopt=adopted))
    summary = night_summary(night)
    write_outputs(night.outputs())
    write_summary(summary)
    if json:
        print_json(night_document(night))
    else:
        print(summary)


@command(iterable=["target"], help={"target": TARGETS})
def push(project: Project, target: list[str]) -> None:
    """Build and push images; one that fails does not stop the others."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.live import watching
    from imagefactory.publish.staging import stage

    plans = plan_each(project, target)
    with open_repository(project) as repository, watching(terminal.err) as watch:
        staged = stage(project, repository, plans, watch, say)
    for cell, one in staged.finished.items():
        print(f"{cell}/{cell.machine} {one.digest}")
    staged.refuse_failures("pushed")


@command(
    needs="smoke",
    iterable=["target", "level"],
    help={"target": TARGETS, "level": "static, container, serve or gpu (default: what the arch requires)"},
)
def smoke(project: Project, target: list[str], level: list[str]) -> None:
    """Pull and smoke-test pushed images at the levels they have not passed yet; the records go to build/smoke."""
    from imagefactory.publish.pipeline import smoke_test
    from imagefactory.publish.staging import find_staged
    from imagefactory.smoke.levels import levels_named

    plans = plan_each(project, target)
    levels = levels_named(level, project.matrix, cells_named(project, target)[0].arch) if any(level) else ()
    with open_repository(project) as repository:
        tested = find_staged(project, repository, plans).then(
            lambda staged: smoke_test(project, repository, staged, say, levels=levels, must_pass=True), say
        )
    for cell, record in tested.finished.items():
        print(f"{cell}/{cell.machine} {record.summary if record else 'passed earlier'}")
    tested.refuse_failures("tested, or failed")


@command(
    iterable=["target", "records"],
    help={
        "target": TARGETS,
        "records": "a folder of smoke records; repeatable (default: build/smoke)",
        "subjects": "write the digests of promoted images to this file, as checksums (for actions/attest)",
        "key": "the private key to sign with (default: FACTORY_SIGNING_KEY, your own key, or the CI job's identity)",
    },
)
def promote(
    project: Project, target: list[str], records: list[str], subjects: str = "", key: str = ""
) -> None:
    """Attach smoke records, SBOM and provenance to images, and promote those that passed."""
    from imagefactory.commands.show import terminal
    from imagefactory.publish.attest.signing import find_signer, signs_as_job
    from imagefactory.publish.automation.run_summary import promotion_summary
    from imagefactory.publish.automation.run_summary import subjects as subjects_of
    from imagefactory.publish.pipeline import attest
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged
    from imagefactory.smoke.runner import records_below

    if signs_as_job(key):
        need(project.root, "sign")
    folders = [Path(folder) for folder in records] or [project.root / "build" / "smoke"]
    checksum_file = options.new_file("--subjects", subjects) if subjects else None
    signer = find_signer(project, key)
    plans = plan_each(project, target)
    with open_repository(project) as repository:
        attested = find_staged(project, repository, plans).then(
            lambda staged: attest(project, repository, staged, records_below(folders, staged.digest), signer)
        )
        outcome = promote(project, repository, attested)
        checksums = subjects_of(outcome, repository.reference.name)
    summary = promotion_summary(outcome)
    write_summary(summary)
    write_outputs({"promoted": str(len(outcome.promoted))})
    if checksum_file:
        checksum_file.write_text(checksums, "utf-8")
    print(summary)
    for error in outcome.refused:
        say(terminal.error_message(error))
    if outcome.refused:
        raise Exit(code=outcome.refused[0].exit_code)


@command(help={"dry_run": DRY_RUN})
def record(project: Project, dry_run: bool = False) -> None:
    """Write the history page and the catalog to the branch `records`."""
    from imagefactory.publish.automation.commits import RECORDS, commit
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.run_summary import history_page
    from imagefactory.publish.catalog_writes import read_catalog

    with open_repository(project) as repository:
        catalog = read_catalog(repository).catalog
        page = history_page(catalog, repository.reference.name)
    write_summary(page)
    if dry_run:
        print(page)
        return
    files = {"README.md": page, "catalog.json": catalog.to_json().decode()}
    made = commit(GitHub.from_environment(), RECORDS, files, "Record what was published\n")
    print(made or "nothing new")


@command(
    help={
        "plan": "show this plan (the output of `ci.plan --json`)",
        "records": "show the smoke records in this folder, such as build/smoke",
    }
)
def summary(project: Project, plan: str = "", records: str = "") -> None:
    """Print a plan or smoke records as Markdown, and add them to the run's summary."""
    from imagefactory.publish.automation.run_summary import plan_document, smoke_summary
    from imagefactory.smoke.record import SmokeRecord

    texts = [plan_document(Path(plan))] if plan else []
    if records:
        found = sorted(Path(records).rglob("record.json"))
        texts.append(smoke_summary([SmokeRecord.read(path) for path in found]))
    for text in texts:
        write_summary(text)
        print(text)


@command(
    help={
        "needs": "the results of the other jobs, as GitHub's toJSON(needs)",
        "broken": "the number of cells that the plan found broken",
    }
)
def status(project: Project, needs: str, broken: str = "") -> None:
    """Fail if a job of the run failed or was cancelled: the one result that branch rules look at."""
    from imagefactory.publish.automation.run_summary import read_results, refuse_failed_jobs, status_summary

    count = options.whole_number("--broken", broken) or 0
    results = read_results(needs)
    write_summary(status_summary(results))
    print(status_summary(results))
    refuse_failed_jobs(results, count)


@command(
    help={
        "base": "the commit to compare with",
        "json": "print JSON",
    }
)
def changes(project: Project, base: str, json: bool = False) -> None:
    """List the mods and images that a change affects, and the inputs that changed."""
    from imagefactory.publish.automation.pull_request import find_changes

    found = find_changes(project, base)
    write_outputs({"mods": " ".join(found.mods), "jobs": json_.dumps(found.jobs(project))})
    write_summary(found.markdown())
    if json:
        print_json(found.as_json(project))
    else:
        print(found.markdown())
    if found.faults:
        raise Exit(code=1)


@command(
    help={"base": "the commit to compare with", "names": "check these mods instead, separated by spaces"}
)
def check_mods(project: Project, base: str = "", names: str = "") -> None:
    """Check the mods that a change touches against every vLLM version."""
    from imagefactory.mods import readme_table
    from imagefactory.mods.compatibility import check_mods, refuse_broken
    from imagefactory.publish.automation.pull_request import changed_mods

    wanted = names.split() or (changed_mods(project, base) if base else sorted(project.mods))
    if not wanted:
        print("no mod is changed")
        return
    results = check_mods(project, list(wanted))
    text = f"## Mods\n\n{readme_table.markdown(results)}\n"
    write_summary(text)
    print(text)
    refuse_broken(results)


@command(
    iterable=["name"],
    help={
        "name": "a mod; repeatable (default: all)",
        "source": "a checkout of vLLM's main branch",
        "vllm": "the version of the matrix to check it as",
        "dry_run": DRY_RUN,
    },
)
def report_mods(
    project: Project, name: list[str], source: str, vllm: str = "nightly", dry_run: bool = False
) -> None:
    """Check mods against vLLM's main branch, and open or update an issue for each that fails."""
    from imagefactory.mods import readme_table
    from imagefactory.mods.compatibility import check_mods
    from imagefactory.mods.source_files import FolderSource
    from imagefactory.publish.attest.provenance import read_source
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.report_mods import findings, report

    tree = options.folder("--source", source)
    results = check_mods(project, name, [vllm], folder=FolderSource(tree))
    commit = read_source(tree).commit or ""
    text = f"## Mods on {vllm}\n\n{readme_table.markdown(results)}\n"
    write_summary(text)
    print(text)
    if dry_run:
        for finding in findings(results):
            print(f"{finding.title}\n\n{finding.body(commit)}")
        return
    for mod, outcome, number in report(GitHub.from_environment(), results, commit=commit, known=project.mods):
        print(f"{mod}: issue {number} {outcome}")


@command(
    iterable=["target"],
    help={"target": TARGETS, "pulled": "for pulling the images into an engine, instead of for building them"},
)
def room(project: Project, target: list[str], pulled: bool = False) -> None:
    """Check that this machine has enough free disk space for a job."""
    from imagefactory.publish.automation.disk_space import refuse_full, space_needed

    plans = plan_each(project, target)
    plans.refuse_failures("planned")
    needed = space_needed(plans.finished.values(), pulled=pulled)
    free = refuse_full(project.store.root, needed)
    print(f"{free:.1f} GB free, {needed:.1f} GB needed")
