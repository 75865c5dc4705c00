"""Commands for the workflows in .github, one per step; each also runs by hand.

In a workflow the results also go to the files that GitHub reads: GITHUB_OUTPUT and GITHUB_STEP_SUMMARY.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    open_repository,
    print_json,
    print_summary,
    say,
    select,
    today,
    watching,
    write_outputs,
    write_summary,
)
from imagefactory.cli.failures import exit_refused
from imagefactory.cli.publishing import ANSWERS, planned
from imagefactory.errors import FactoryError
from imagefactory.store.progress import count

if TYPE_CHECKING:
    from imagefactory.ci.issues import Finding, Kind
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project

TARGETS = "what to act on; repeatable, or several separated by spaces"
UNWRITTEN = "GITHUB_REPOSITORY and GITHUB_TOKEN are not both set, so nothing is written; it would be:"
NIGHTLY_TARGETS = f"{TARGETS} (default: everything locked, and every model on grafts and on the version `nightly`)"


@command(
    "ci",
    target=NIGHTLY_TARGETS,
    retry="test images again that failed their tests",
    gpu="also plan the tests that need a GPU",
    first="treat everything as missing: the registry has no such repository yet",
)
def plan(
    project: Project, target: list[str], json: bool = False, retry: bool = False, gpu: bool = False, first: bool = False
) -> None:
    """Compare the plans with the registry and list the jobs still to do, each with its reason."""
    from dataclasses import replace

    from imagefactory.ci.jobs import fitted
    from imagefactory.ci.night import find_compiles, plan_night
    from imagefactory.ci.run_summary import night_summary

    cells = _nightly(project, target)
    with open_repository(project) as repository:
        night = plan_night(project, repository, cells, retry=retry, gpu=gpu, first=first)
        compiles = find_compiles(project, None if first else repository, cells)
    unlocked = tuple(cell.full_target for cell in compiles.unlocked)
    waiting = tuple(cell for cell in night.waiting if cell.target not in unlocked)
    night = fitted(replace(night, compiles=tuple(compiles.jobs), unlocked=unlocked, waiting=waiting))
    summary = night_summary(night)
    write_outputs(night.outputs())
    if json:
        write_summary(summary)
        print_json(night.as_json())
    else:
        print_summary(summary)


@command(
    "ci",
    needs="smoke",
    target=TARGETS,
    level="static, container, serve or gpu (default: what the arch requires)",
    bench="also measure what passed; an image that became slower fails, and gets no tag",
    answers=ANSWERS,
)
def smoke(project: Project, target: list[str], level: list[str], bench: bool = False, answers: bool = False) -> None:
    """Pull and smoke-test pushed images at the levels they have not passed yet; the records go to build/smoke."""
    from imagefactory.check.smoke.record import SmokeRecord, levels_named
    from imagefactory.check.smoke.runner import records_here
    from imagefactory.ci.run_summary import smoke_summary
    from imagefactory.publish.answers import measure_answers
    from imagefactory.publish.run import PublishRun
    from imagefactory.publish.staging import Staged, find_staged
    from imagefactory.publish.standing import Gate
    from imagefactory.publish.testing import bench_pulled, smoke_test

    arch = select(project, target)[0].arch
    levels = levels_named(level, project.matrix, arch) if any(level) else ()

    def test(staged: Staged) -> SmokeRecord | None:
        record = smoke_test(run, staged)
        if answers or (record and "gpu" in record.passed):
            measure_answers(run, staged)
        return bench_pulled(run, staged) if bench and record else record

    with open_repository(project) as repository:
        run = PublishRun(Gate(project, repository), say, levels=levels, must_pass=True)
        pushed = find_staged(run, planned(run.gate, target))
        tested = pushed.then(test, say)
    records = [record for image in pushed.finished.values() for record in records_here(project, image.digest)]
    print_summary(smoke_summary(records))  # also of images that failed
    tested.refuse_failures("tested, or failed")


@command("ci", target=TARGETS)
def attach(project: Project, target: list[str]) -> None:
    """Attach the records in build/smoke to pushed images, passed or not; `promote` finds them there."""
    from imagefactory.publish.run import PublishRun
    from imagefactory.publish.staging import find_staged
    from imagefactory.publish.standing import Gate
    from imagefactory.publish.testing import attach_recorded

    with open_repository(project) as repository:
        run = PublishRun(Gate(project, repository), say)
        attached = find_staged(run, planned(run.gate, target)).then(partial(attach_recorded, run), say)
    attached.refuse_failures("given their records")


@command("ci")
def record(project: Project) -> None:
    """Commit the history page and the night's notes to the branch `records`; without a token, print them."""
    from imagefactory.check.bench.result import shared_results
    from imagefactory.ci.run_summary import bounded, history_page, night_notes
    from imagefactory.publish.dossier import Dossier
    from imagefactory.publish.github import RECORDS, GitHub
    from imagefactory.publish.image_contents import contents_in_registry
    from imagefactory.publish.stored_catalog import read_catalog
    from imagefactory.publish.upgrade import Known

    with open_repository(project) as repository:
        catalog = read_catalog(repository).catalog
        background = Known.of(project, catalog, shared_results(project.root))
        day, notes = night_notes(
            catalog, background, lambda digest: contents_in_registry(Dossier.read(repository, digest))
        )
    page = history_page(catalog, repository.reference.name)
    write_summary(bounded(f"{notes}\n{page}"))
    files = {"README.md": page} | ({f"notes/{day}.md": notes} if day else {})
    github = GitHub.find()
    if github is None:
        say(UNWRITTEN)
        print("\n".join(f"{path}:\n\n{text}" for path, text in files.items()))
        return
    print(github.commit(RECORDS, files, "Record what was published\n") or "nothing new")


@command(
    "ci",
    target=NIGHTLY_TARGETS,
    tried="the targets that this night had work for: without tags now, they are not well",
    refused="instead, report what `news --refused` wrote to this file",
)
def report(project: Project, target: list[str], tried: list[str], refused: str = "") -> None:
    """Keep one issue for each target that cannot be published, and fail if there is any.

    Without a token, the issues are printed.
    """
    from imagefactory.ci import report_releases
    from imagefactory.ci.night import nightly_cells, plan_night
    from imagefactory.ci.report_targets import not_published, over, target_findings, unwell
    from imagefactory.ci.run_summary import unwell_summary

    options.at_most_one(target=target, refused=refused)
    options.at_most_one(tried=tried, refused=refused)
    if refused:
        file = options.existing("--refused", refused, folder=False)
        releases = report_releases.read_refused(file)
        failures = report_issues("release", report_releases.release_findings(releases), lambda _: report_releases.OVER)
        exit_refused([*report_releases.not_locked(releases, "the package index"), *failures])
        return
    cells = _nightly(project, target)
    with open_repository(project) as repository:
        night = plan_night(project, repository, cells)
    troubles = unwell(night, " ".join(tried).split())
    print_summary(unwell_summary(night.registry, troubles))
    looked_at, every = ({cell.full_target for cell in listed} for listed in (cells, nightly_cells(project)))
    failures = report_issues("target", target_findings(night.registry, troubles), over(night, looked_at, every))
    exit_refused([*not_published(night.registry, troubles), *failures])


def report_issues(kind: Kind, findings: Sequence[Finding], over: Callable[[str], str]) -> list[FactoryError]:
    """Match GitHub's issues with what was found; return what GitHub failed with, which must not hide the findings."""
    from imagefactory.ci.issues import Reporter
    from imagefactory.ci.run_summary import plain
    from imagefactory.publish.attest.provenance import read_run
    from imagefactory.publish.github import GitHub

    try:
        github = GitHub.find()
        if github is None:
            say(UNWRITTEN)
            print("\n\n".join(f"# {finding.title}\n\n{plain(finding.text)}" for finding in findings) or "no issue")
            return []
        reporter = Reporter(github, kind, today(), read_run("").invocation or "")
        for subject, outcome, number in reporter.report(findings, over):
            print(f"{subject}: issue {number} {outcome}")
    except FactoryError as error:
        return [error]
    return []


@command("ci", base="the commit to compare with", rebuild="instead, rebuild the layers whose records it adds or edits")
def changes(project: Project, base: str, rebuild: bool = False) -> None:
    """List the mods and images that a change affects, and the inputs that changed.

    --rebuild uses an empty cache, and fails if a record of a layer is not what its lock gives.
    """
    from imagefactory.ci.pull_request import changed_records, check_records, find_changes

    if rebuild:
        changed = changed_records(project, base)
        with watching() as watch:
            check_records(project, changed, watch)
        print_summary(f"## Records\n\nNew or changed, and the same when rebuilt: {count(len(changed), 'layer')}.\n")
        return
    difference = find_changes(project, base)
    write_outputs({"mods": " ".join(difference.mods), "jobs": json.dumps(difference.jobs(project))})
    print_summary(difference.markdown())
    if any(target.fault for target in difference.affected):
        raise Exit(code=1)


@command("ci", target=NIGHTLY_TARGETS)
def lock(project: Project, target: list[str]) -> None:
    """Lock the compiled wheels in the registry, record the layers, and propose both in a pull request."""
    from imagefactory.ci.night import find_compiles, lock_compiled
    from imagefactory.publish.github import GitHub

    cells = _nightly(project, target)
    with open_repository(project) as repository:
        unlocked = find_compiles(project, repository, cells).unlocked
    if not unlocked:
        print("nothing new")
        return
    with watching() as watch:
        changed = lock_compiled(project, unlocked, watch, say)
    targets = "\n".join(f"- {cell.full_target}" for cell in unlocked)
    print(GitHub.from_environment().propose("compiled", changed, "Lock what was compiled", targets) or "nothing new")


def _nightly(project: Project, target: list[str]) -> list[Cell]:
    """Return the cells that targets name; without any, those of a night."""
    from imagefactory.ci.night import nightly_cells

    return select(project, target) if "".join(target).strip() else nightly_cells(project)
