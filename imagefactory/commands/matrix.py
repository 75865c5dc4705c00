"""Commands that decide what to build: targets, locks, plans, Dockerfiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import TARGET, TARGETS, command, print_json, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    iterable=["target"],
    help={
        "target": f"{TARGETS} (default: all)",
        "json": "print JSON",
        "excluded": "list the excluded combinations, and why",
    },
)
def targets(project: Project, target: list[str], json: bool = False, excluded: bool = False) -> None:
    """List the images that the matrix defines."""
    from imagefactory.commands.show import tables, terminal
    from imagefactory.locks.target_status import target_status
    from imagefactory.matrix.cells import exclusions
    from imagefactory.matrix.targets import EVERYTHING, select

    options.at_most_one(json=json, excluded=excluded)
    if excluded:
        terminal.out.print(tables.exclusions_table(exclusions(project.matrix)))
        return
    described = [target_status(project, cell) for cell in select(project.matrix, target or [EVERYTHING])]
    if json:
        print_json([vars(target) for target in described])
        return
    terminal.out.print(tables.targets_table(described))
    count = len(exclusions(project.matrix))
    say(f"{len(described)} targets; {count} combinations are excluded (--excluded says why)")


@command(
    iterable=["target", "upgrade", "wheel", "toolchain"],
    help={
        "target": f"{TARGETS} (default: everything locked already)",
        "check": "change nothing; fail if the locks do not match matrix.yaml",
        "upgrade": "upgrade this package (or base, or all) to its newest version; repeatable",
        "wheel": "the key of the compiled wheel to adopt where several fit; repeatable",
        "models": "also pin the current revisions of models and drafters on the model hub",
        "environment": "instead, pin the factory's own packages from pyproject.toml (locks/environment/)",
        "toolchain": "instead, pin the compilers for this vLLM version (see `invoke compile`); repeatable",
    },
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
) -> None:
    """Pin the exact files that images are made of."""
    from imagefactory.compile.toolchain_locks import check_all_locks
    from imagefactory.locks.project import Project, locked_cells
    from imagefactory.matrix.targets import select
    from imagefactory.publish.attest.licence_record import check_licences, update_licences
    from imagefactory.resolve.environment_locks import check_environment, lock_environment
    from imagefactory.resolve.making import make_locks

    options.at_most_one(check=check, upgrade=upgrade)
    options.at_most_one(check=check, models=models)
    options.at_most_one(target=target, toolchain=toolchain)
    if check:
        say(f"{len(check_all_locks(project))} locks match matrix.yaml")
        check_licences(project)
        say(f"{check_environment(project.root)} locks of the factory's own environment match pyproject.toml")
        return
    if environment:
        for path, changed in lock_environment(project.root, say, upgrade="all" in upgrade):
            say(f"{path.relative_to(project.root)}: {'written' if changed else 'unchanged'}")
        return
    if toolchain:
        from imagefactory.compile.toolchain import CompileProject
        from imagefactory.compile.toolchain_locks import make_toolchain_locks

        results = make_toolchain_locks(
            CompileProject(project.root), toolchain, upgrade="all" in upgrade, say=say
        )
    else:
        cells = select(project.matrix, target) if target else locked_cells(project)
        cells = cells or select(project.matrix, [])
        results = make_locks(project, cells, upgrade=upgrade, wheels=wheel, models=models, say=say)
    for result in results:
        state = "written" if result.changed else "unchanged"
        say(f"{result.path.relative_to(project.root)}: {state}")
    # A project reads its locks once; these may be new.
    path, changed = update_licences(Project(project.root), say)
    say(f"{path.relative_to(project.root)}: {'written' if changed else 'unchanged'}")


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "json": "print JSON (schema: docs/schemas/plan.schema.json)",
        "diff": "show which inputs changed since the last build on this machine",
    },
)
def plan(project: Project, target: list[str], json: bool = False, diff: bool = False) -> None:
    """Show what would be built: the layers, their keys, what is cached and what is shared."""
    from imagefactory.matrix.targets import select
    from imagefactory.plan.make import locked_plans, make_plan

    options.at_most_one(json=json, diff=diff)
    cells = select(project.matrix, target)
    plans = [make_plan(project, cell) for cell in cells]
    if json:
        print_json({"plans": [plan.model_dump(mode="json") for plan in plans]})
        return
    from imagefactory.commands.show import tables, terminal
    from imagefactory.plan.changes import diff_plans, last_plan
    from imagefactory.plan.status import plan_status

    if diff:
        for plan in plans:
            last = last_plan(project.build_folder(plan.cell))
            terminal.out.print(plan.target, style="bold")
            terminal.out.print(tables.changes_table(None if last is None else diff_plans(last, plan)))
        return
    others = locked_plans(project)
    for plan in plans:
        terminal.out.print(tables.plan_table(plan_status(project, plan, others)))


@command(iterable=["target"], help={"target": TARGET})
def render(project: Project, target: list[str]) -> None:
    """Write a target's Dockerfile and the description of its build context."""
    from imagefactory.build.engines.docker.dockerfile import write
    from imagefactory.compile.recipe import render
    from imagefactory.matrix.targets import select

    for cell in select(project.matrix, target):
        for path in write(render(project, cell), project.build_folder(cell)):
            print(path.relative_to(project.root))
