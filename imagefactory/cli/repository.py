"""Commands for the repository itself: the doctor, generated files, tests."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import command, show

if TYPE_CHECKING:
    from imagefactory.project.project import Project

CHECKS = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "hadolint tests/golden/dockerfiles/*.Dockerfile",
    # Schemas and rules come with the tools, so these work offline.
    "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml",
    "check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml",
    "check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml",
    "check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml",
    "check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml",
    "check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml",
    "zizmor --offline --quiet --no-progress --persona pedantic .github",
)


@command()
def doctor(project: Project) -> None:
    """Check that this machine has what the commands need, and suggest fixes."""
    from imagefactory.cli.command import today
    from imagefactory.cli.doctor import examine
    from imagefactory.cli.show.tables import findings_table

    findings = list(examine(project, today()))
    show(findings_table(findings))
    if any(finding.health == "failed" for finding in findings):
        raise Exit(code=1)


@command()
def docs(project: Project) -> None:
    """Regenerate parts of the documentation: the README's digest, tables and pictures."""
    from imagefactory.cli.show import docs
    from imagefactory.mods.compatibility import check_mods
    from imagefactory.plan.make import make_plan
    from imagefactory.project.targets import select_one

    cell = select_one(project.matrix, "")
    plan = make_plan(project, cell)
    pictures = docs.pictures(project, plan, check_mods(project))
    print(docs.write_digest(project, plan, project.root / "README.md") or f"build {cell} to know its digest")
    for path in docs.write_changed({**docs.with_tables(project.root), **pictures}):
        print(path.relative_to(project.root))


@command(help={"check": "change nothing; fail if a schema is out of date"})
def schemas(project: Project, check: bool = False) -> None:
    """Write the JSON schemas of matrix.yaml, compile.yaml, mod.yaml, plans and benchmark results."""
    from imagefactory.cli.show import docs

    stale = docs.write_changed(docs.schemas(project.root / "docs" / "schemas"), check=check)
    for path in stale:
        print(f"{'out of date' if check else 'written'}: {path.relative_to(project.root)}")
    if check and stale:
        raise Exit(code=1)


@command(
    needs="test",
    help={
        "fast": "linters, type checks and unit tests only",
        "all": "also the tests marked slow, and show which lines no test reaches",
        "match": "run only tests whose names match (pytest -k)",
        "require_engine": "fail if Docker or a registry is missing, or if a test is unexpectedly skipped",
    },
)
def test(
    project: Project, fast: bool = False, all: bool = False, match: str = "", require_engine: bool = False
) -> None:
    """Run linters, type checks and tests; a table at the end lists the skipped tests and why."""
    options.at_most_one(fast=fast, all=all)
    arguments = [
        *("-n", "auto", "--maxprocesses", "4"),
        *(["tests/unit"] if fast else []),
        *(["--cov=imagefactory", "--cov=images", "--cov-report=term"] if all else ["-m", "not slow"]),
        *(["-k", match] if match else []),
        *(["--require-engine"] if require_engine else []),
    ]
    # The tools of this environment, whether it is activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path}
    for line in (*CHECKS, shlex.join(["python", "-m", "pytest", *arguments])):
        print(f"$ {line}", file=sys.stderr, flush=True)
        done = subprocess.run(line, shell=True, cwd=project.root, env=environment, check=False)  # noqa: S602 - lines of our own, with globs
        if done.returncode:
            raise Exit(code=done.returncode)
