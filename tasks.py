"""The factory's commands: each parses, calls the library and prints. `invoke --list` shows them all."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

from imagefactory.errors import FactoryError

ROOT = Path(__file__).resolve().parent
CHECKS = ("ruff check .", "ruff format --check .", "mypy", "shellcheck inv .ci/run")
TARGET = "what to act on: MODEL[@VLLM][/ARCH[/MACHINE]], a glob, or all; may be given several times"


def command(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Make a task whose failures are shown as messages with their own exit code, not as tracebacks."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            try:
                function(context, *args, **kwargs)
                sys.stdout.flush()
            except FactoryError as error:
                from imagefactory.console import err, error_message

                # Long paths stay whole, so that they can be copied.
                err.print(error_message(error), soft_wrap=True)
                raise Exit(code=error.exit_code) from None
            except BrokenPipeError:
                # The reader (head, less) went away; that is its right.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

        return task(**options)(run)

    return decorate


@command(
    iterable=["target"],
    help={"target": TARGET, "json": "print JSON", "excluded": "list what is excluded, and why"},
)
def targets(context: Context, target: list[str], json: bool = False, excluded: bool = False) -> None:
    """List the images that the matrix stands for."""
    from imagefactory import console
    from imagefactory.cells import exclusions
    from imagefactory.project import Project
    from imagefactory.targets import EVERYTHING, select

    project = Project(ROOT)
    if excluded:
        console.out.print(console.exclusions_table(exclusions(project.matrix)))
        return
    cells = select(project.matrix, target or [EVERYTHING])
    if json:
        _print_json(console.target_rows(project, cells))
        return
    console.out.print(console.targets_table(project, cells))
    count = len(exclusions(project.matrix))
    console.err.print(f"{len(cells)} targets; {count} combinations are excluded (--excluded says why)")


@command(
    iterable=["target", "upgrade"],
    help={
        "target": f"{TARGET}; default: everything that is locked already, and the default target",
        "check": "change nothing; fail when matrix.yaml and the locks disagree",
        "upgrade": "take the newest version of this package (or base, or all); may be given several times",
        "models": "also look up and pin the revisions of models and drafters on the model hub",
    },
)
def lock(
    context: Context, target: list[str], upgrade: list[str], check: bool = False, models: bool = False
) -> None:
    """Pin the exact files that images are made of."""
    from imagefactory import console
    from imagefactory.locking import check_locks, locked_cells, make_locks
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    if check:
        console.err.print(f"{len(check_locks(project))} locks agree with matrix.yaml")
        return
    cells = select(project.matrix, target) if target else locked_cells(project)
    if not cells:
        cells = select(project.matrix, [next(iter(project.matrix.models))])
    for result in make_locks(project, cells, upgrade=upgrade, models=models, say=console.err.print):
        state = "written" if result.changed else "unchanged"
        console.err.print(f"{result.path.relative_to(ROOT)}: {state}")


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "json": "print the plans as JSON (schemas/plan.schema.json)",
        "diff": "say which input changed since the last build here",
    },
)
def plan(context: Context, target: list[str], json: bool = False, diff: bool = False) -> None:
    """Explain what would be built: the layers, their keys, what is cached and what is shared."""
    from imagefactory.plan import make_plan
    from imagefactory.project import Project
    from imagefactory.targets import select

    project = Project(ROOT)
    cells = select(project.matrix, target or [next(iter(project.matrix.models))])
    plans = [make_plan(project, cell) for cell in cells]
    if json:
        _print_json({"plans": [plan.model_dump(mode="json") for plan in plans]})
        return
    from imagefactory import console
    from imagefactory.locking import locked_cells
    from imagefactory.planview import diff_plans, last_plan, shared_download

    if diff:
        for plan in plans:
            last = last_plan(project.build_folder(plan.cell))
            console.out.print(plan.target, style="bold")
            console.out.print(console.changes_table(None if last is None else diff_plans(last, plan)))
        return
    others = [make_plan(project, cell) for cell in locked_cells(project) if project.is_locked(cell)]
    for plan in plans:
        console.out.print(console.plan_table(project, plan, shared_download(plan, others)))


@command()
def doctor(context: Context) -> None:
    """Look at this machine: Python, uv, engine, index, mirror, cache, disk, each with a remedy."""
    from imagefactory import console
    from imagefactory.doctor import examine
    from imagefactory.project import Project

    findings = list(examine(Project(ROOT)))
    console.out.print(console.findings_table(findings))
    if any(finding.health == "failed" for finding in findings):
        raise Exit(code=1)


@command(help={"check": "change nothing; fail when a schema is out of date"})
def schemas(context: Context, check: bool = False) -> None:
    """Write the JSON schemas of matrix.yaml and of plans."""
    from imagefactory.schemas import write_schemas

    stale = write_schemas(ROOT / "schemas", check=check)
    print("\n".join(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}" for path in stale))
    if check and stale:
        raise Exit(code=1)


@command(
    help={
        "require_engine": "fail instead of skipping when Docker or a registry is missing",
        "fast": "unit tests only",
        "match": "run only tests whose name matches (pytest -k)",
    }
)
def test(context: Context, require_engine: bool = False, fast: bool = False, match: str = "") -> None:
    """Run linters, type checks and tests."""
    options = [
        *(["tests/unit"] if fast else []),
        *(["--require-engine"] if require_engine else []),
        *(["-k", match] if match else []),
    ]
    # The tools of this environment, whether it is activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    with context.cd(str(ROOT)):
        for line in (*CHECKS, shlex.join(["python", "-m", "pytest", *options])):
            print(f"$ {line}", file=sys.stderr, flush=True)
            context.run(line, env={"PATH": path}, pty=sys.stdout.isatty(), in_stream=False)


def _print_json(value: object) -> None:
    # ASCII, so that the bytes do not depend on the terminal's encoding.
    print(json.dumps(value, indent=2))


namespace = Collection(targets, lock, plan, doctor, schemas, test)
