"""Commands for what to build: targets, locks, plans, Dockerfiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    plans_of,
    print_json,
    print_summary,
    say,
    say_written,
    select,
    show,
    show_rows,
    warn_of_mods,
)
from imagefactory.cli.failures import exit_refused
from imagefactory.store.progress import count

if TYPE_CHECKING:
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project


@command(
    target=f"{options.TARGETS} (default: all)",
    excluded="list the excluded combinations instead, and why",
)
def targets(project: Project, target: list[str], json: bool = False, excluded: bool = False) -> None:
    """List the images that matrix.yaml defines."""
    from imagefactory.project.cells import exclusions
    from imagefactory.project.project import target_status, unlocked_by_reason
    from imagefactory.project.targets import EVERYTHING
    from imagefactory.store.progress import count

    options.at_most_one(json=json, excluded=excluded)
    if excluded:
        rows = (
            (str(exclusion.cell), exclusion.cell.platform, exclusion.reason) for exclusion in exclusions(project.matrix)
        )
        show_rows(rows, "target", "platform", "excluded because")
        return
    cells = select(project, target or [EVERYTHING])
    described = [target_status(project, cell) for cell in cells]
    if json:
        print_json(described)
        return
    show_rows((row.values() for row in described), *described[0])
    left_out = count(len(exclusions(project.matrix)), "combination")
    say(f"{count(len(described), 'target')}; {left_out} excluded (--excluded says why)")
    for reason, unlocked in unlocked_by_reason(project, cells).items():
        say(f"not locked ({', '.join(unlocked)}): {reason}")


@command(
    target=f"{options.TARGETS} (default: everything locked already, and new versions on the default arch)",
    check="change nothing; fail if the locks do not match matrix.yaml",
    wheel="where several compiled wheels fit, use the one with this key; repeatable",
    models="also pin the models and drafters that have no revision yet; `--upgrade models` pins all of them anew",
    environment="instead, pin the factory's own packages from pyproject.toml (locks/environment/)",
    flags="instead, record the flags of every server version of the matrix, read from its wheel",
    toolchain="instead, pin the compilers for this vLLM version (see `./inv compile`); repeatable",
)
def lock(
    project: Project,
    target: list[str],
    upgrade: list[str],
    wheel: list[str],
    toolchain: list[str],
    check: bool = False,
    models: bool = False,
    environment: bool = False,
    flags: bool = False,
) -> None:
    """Pin the exact files that go into images."""
    from imagefactory.compile.toolchain import CompileProject, check_all_locks, make_toolchain_locks
    from imagefactory.environment.locks import check_environment, lock_environment
    from imagefactory.lock.drift import cells_to_lock
    from imagefactory.lock.flag_records import record_flags
    from imagefactory.lock.hub import refuse_unpinned
    from imagefactory.lock.making import UPGRADE_MODELS, make_locks
    from imagefactory.project.cells import versions_without_reason
    from imagefactory.project.counterparts import refuse_unserved_default
    from imagefactory.project.project import Project
    from imagefactory.publish.attest.licence_record import check_licences

    options.at_most_one(check=check, upgrade=upgrade)
    options.at_most_one(check=check, models=models)
    options.at_most_one(target=target, toolchain=toolchain, flags=flags)
    options.at_most_one(check=check, environment=environment, flags=flags)
    if check:
        say(f"matrix.yaml fits {count(len(check_all_locks(project)), 'lock')}")
        refuse_unserved_default(project)
        check_licences(project)
        say(f"pyproject.toml fits {count(check_environment(project.root), 'lock')} of the factory's own environment")
        return
    if environment:
        for path, changed in lock_environment(project.root, say, upgrade="all" in upgrade):
            say_written(project, path, changed=changed)
        return
    if flags:
        for path, changed in record_flags(project, say):
            say_written(project, path, changed=changed)
        return
    if toolchain:
        cells = []
        results = make_toolchain_locks(CompileProject(project.root), toolchain, upgrade="all" in upgrade, say=say)
    else:
        cells = select(project, target) if target else cells_to_lock(project) or select(project, [])
        results = make_locks(project, cells, upgrade=upgrade, wheels=wheel, models=models, say=say)
    for name in versions_without_reason(project.matrix, (cell.version for cell in cells)):
        say(f"{name} is an older version: `kept` in matrix.yaml should say until when it stays, and what for")
    made = []
    for result in results:
        say_written(project, result.path, changed=result.changed)
        for failure in result.failures:  # at once: what follows takes a while
            say(f"{failure.what} {failure.why}")
        made.append(result)
    # A project reads its locks once; these may be new.
    _update_records(Project(project.root), cells if models or UPGRADE_MODELS in upgrade else [])
    refuse_unpinned([failure for result in made for failure in result.failures])


def _update_records(project: Project, pinned: list[Cell]) -> None:
    """Bring the records of licences and layers in line with new locks, and with models that were pinned for cells."""
    from imagefactory.assemble.assemble import record_models
    from imagefactory.assemble.layer_records import drop_unneeded
    from imagefactory.publish.attest.licence_record import update_licences

    path, changed = update_licences(project, say)
    say_written(project, path, changed=changed)
    repositories = {repo for cell in pinned for repo in project.matrix.models[cell.model].repositories}
    if recorded := record_models(project, repositories):
        say(f"locks/layers.toml: {count(recorded, 'layer')} of models recorded")
    if dropped := drop_unneeded(project):
        say(f"locks/layers.toml: {count(dropped, 'layer')} dropped that no locked target has any more")


@command("models", default=True, called="limits")
def model_limits(project: Project) -> None:
    """List how fast models may be on a DGX Spark, by what each step reads, and how much of that others reached."""
    from imagefactory.check.bench.published import load_published
    from imagefactory.site.figures import limit_rows

    rows = limit_rows(project.matrix, load_published(project.root))
    show_rows(rows, "model", "reads per step", "limit, no drafts", "all accepted", "best published", "of its limit")


@command(
    "models",
    called="describe",
    model="a repository of the model hub, or a folder, with its config.json",
    drafter="also count the weights of this drafter: a repository or a folder",
)
def describe_model(project: Project, model: str, drafter: str = "") -> None:
    """Compute how much memory a model needs, as lines for matrix.yaml."""
    from imagefactory.lock import model_memory

    print(model_memory.describe_model(model, drafter).as_yaml())


@command(
    "news",
    default=True,
    called="releases",
    branch="prepare the change (matrix, locks, flags, mods, docs), and commit it to this branch, made or moved here",
    upgrade=f"with --branch, also {options.UPGRADE.replace(' models,', '')}",
    report="also write what is new to this file: the text of a pull request",
    refused="with --branch, write what cannot be locked to this file (for `ci.report`), instead of failing",
)
def news(project: Project, upgrade: list[str], branch: str = "", report: str = "", refused: str = "") -> None:
    """Say which releases are new on the package index, and what they mean for the models, mods and flags here.

    With --branch it fails if a release cannot be locked; the others are committed all the same.
    """
    import json

    from imagefactory.ci.new_release import prepare
    from imagefactory.ci.news import look
    from imagefactory.ci.report_releases import not_locked
    from imagefactory.cli.show.pictures import pictures
    from imagefactory.docs import generated
    from imagefactory.mods.compatibility import check_mods, write_table
    from imagefactory.project.locks.indexed_files import configured_indexes
    from imagefactory.project.project import Project

    file = options.new_file("--report", report) if report else None
    refused_file = options.new_file("--refused", refused) if refused else None
    if (upgrade or refused) and not branch:
        option = "--upgrade" if upgrade else "--refused"
        fix = "Name a branch, or upgrade in this checkout: `./inv lock --upgrade …`."
        raise options.unfit(option, f"{option} needs --branch.", "Without a branch nothing is locked.", fix)
    if "models" in upgrade:
        why, fix = "They have a branch of their own.", "Run `./inv news.models --branch NAME`."
        raise options.unfit("--upgrade", "`news` does not pin models.", why, fix)
    if branch:
        with _branch(project, branch, "Take what is new on the package index") as folder:
            latest = prepare(Project(folder, project.store), configured_indexes(), upgrade, say)
            prepared = Project(folder, project.store)
            latest.mods = check_mods(prepared)
            write_table(folder / "mods" / "README.md", latest.mods, prepared.mods)
            drawn = pictures(prepared, plans_of(prepared, [])[0], latest.mods)
            generated.write_changed({**generated.with_tables(folder), **drawn})
    else:
        latest = look(project, configured_indexes())
    print_summary(latest.markdown())
    if file:
        file.write_text(latest.markdown(), "utf-8")
    if refused_file:
        refused_file.write_text(json.dumps(latest.refused), "utf-8")
    elif branch:
        exit_refused([*not_locked(latest.refused, "the package index")])
    elif latest.is_news:
        say("next: `./inv news --branch NAME` locks what is new, and tells what it breaks")


@command(
    "news",
    called="models",
    branch="pin what moved, record its layers, and commit both to this branch, made or moved here",
    report="also write what moved to this file: the text of a pull request",
)
def news_of_models(project: Project, branch: str = "", report: str = "") -> None:
    """Say which models moved on the model hub since they were pinned, and what changed in their files."""
    from imagefactory.ci.model_news import look_at_models, take_models
    from imagefactory.cli.show.pictures import pictures
    from imagefactory.docs import generated
    from imagefactory.lock.hub import refuse_unpinned
    from imagefactory.project.project import Project

    file = options.new_file("--report", report) if report else None
    if branch:
        with _branch(project, branch, "Pin the revisions that the model hub has now") as folder:
            before = Project(folder, project.store)
            latest = look_at_models(before, say)
            take_models(before, latest)
            prepared = Project(folder, project.store)
            [plan] = plans_of(prepared, [])
            generated.write_digest(prepared, plan, folder / "README.md")
            generated.write_changed(pictures(prepared, plan, []))
    else:
        latest = look_at_models(project, say)
    print_summary(latest.markdown())
    if file:
        file.write_text(latest.markdown(), "utf-8")
    if len(latest.refused) == latest.asked:  # that is no news of models, but of the hub or the network
        refuse_unpinned([failure for _, failure in latest.refused.values()])


@contextmanager
def _branch(project: Project, branch: str, message: str) -> Iterator[Path]:
    """Yield a worktree; what the block changes there is committed to a branch."""
    from imagefactory.ci.new_release import commit
    from imagefactory.ci.pull_request import git, worktree

    with worktree(project.root, "HEAD", options.filled("--branch", branch)) as folder:
        git(folder, "var", "GIT_COMMITTER_IDENT")  # before the work, not after it
        yield folder
        say(f"committed to the branch {branch}" if commit(folder, message) else "nothing to change")


@command(
    json="print JSON (schema: docs/schemas/plan.schema.json)",
    diff="show what changed since the last build on this machine",
)
def plan(project: Project, target: list[str], json: bool = False, diff: bool = False) -> None:
    """Show what would be built: the layers, their keys, and which of them are cached."""
    from imagefactory.cli.command import today
    from imagefactory.plan.status import diff_plans, last_plan, plan_status
    from imagefactory.project.cells import merged_changes, support_warnings
    from imagefactory.project.counterparts import faults_of

    options.at_most_one(json=json, diff=diff)
    for warning in support_warnings(project.matrix, select(project, target), today()):
        say(f"warning: {warning}")
    warn_of_mods(project)
    plans = plans_of(project, target)
    if json:
        print_json({"plans": [plan.model_dump(mode="json") for plan in plans]})
        return
    for plan in plans:
        if not diff:
            from imagefactory.cli.show.tables import plan_table

            show(plan_table(plan_status(project, plan)))
            if note := project.matrix.models[plan.model].shared_memory:
                print(note)
            for fault in faults_of(project, plan.cell):
                print(f"known fault: {fault}")
            for change in merged_changes(project.matrix, plan.cell):
                print(f"merged: {change}")
        elif (last := last_plan(project.build_folder(plan.cell))) is None:
            print(f"{plan.target}: never built here, so there is nothing to compare with")
        elif changes := diff_plans(last, plan):
            print(plan.target)
            show_rows(((change.name, change.what) for change in changes), "changed", "because")
        else:
            print(f"{plan.target}: nothing changed since the last build")


@command()
def render(project: Project, target: list[str]) -> None:
    """Write a target's Dockerfile."""
    from imagefactory.assemble.engines.docker.dockerfile import write
    from imagefactory.plan.make import make_plan

    for cell in select(project, target):
        print(write(project, make_plan(project, cell, fat=True)).relative_to(project.root))
