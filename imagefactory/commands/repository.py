"""The repository itself: its health, its generated files, its tests."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig

from invoke.context import Context
from invoke.exceptions import Exit

from imagefactory.commands.checkout import checkout_root
from imagefactory.commands.command import command

CHECKS = (
    "ruff check .",
    "ruff format --check .",
    "mypy",
    "hadolint tests/golden/dockerfiles/*.Dockerfile",
    # Schemas and rules that come with the tools: neither asks anybody else.
    "check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml",
    "check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml",
    "check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml",
    "check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml",
    "check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml",
    "check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml",
    "zizmor --offline --quiet --no-progress --persona pedantic .github",
)


@command()
def doctor(context: Context) -> None:
    """Look at this machine: Python, uv, engine, index, mirror, cache, disk, each with a remedy."""
    from imagefactory.commands.show import terminal
    from imagefactory.locks.project import Project
    from imagefactory.resolve.doctor import examine

    findings = list(examine(Project(checkout_root())))
    terminal.out.print(terminal.findings_table(findings))
    if any(finding.health == "failed" for finding in findings):
        raise Exit(code=1)


@command()
def docs(context: Context) -> None:
    """Write the generated parts of the documentation anew: the README's digest, settings tables, pictures."""
    from imagefactory.commands.show import pictures, readme, settings_docs
    from imagefactory.locks.project import Project
    from imagefactory.matrix.targets import select_one
    from imagefactory.mods.compatibility import check_mods
    from imagefactory.plan.make import make_plan

    project = Project(checkout_root())
    cell = select_one(project.matrix, "")
    plan = make_plan(project, cell)
    drawn = pictures.draw(project, plan, check_mods(project))
    print(
        readme.write_digest(project, plan, checkout_root() / "README.md")
        or f"build {cell} to know its digest"
    )
    for path in (
        *settings_docs.update(checkout_root()),
        *pictures.write(checkout_root() / "docs" / "pictures", drawn),
    ):
        print(path.relative_to(checkout_root()))


@command(help={"check": "change nothing; fail when a schema is out of date"})
def schemas(context: Context, check: bool = False) -> None:
    """Write the JSON schemas of matrix.yaml and of plans."""
    from imagefactory.commands.show.schemas import write_schemas

    stale = write_schemas(checkout_root() / "docs" / "schemas", check=check)
    print(
        "\n".join(
            f"{'out of date' if check else 'written'}: {path.relative_to(checkout_root())}" for path in stale
        )
    )
    if check and stale:
        raise Exit(code=1)


@command(
    needs="test",
    help={
        "require_engine": "fail when Docker or a registry is missing, and at any skip that is not listed",
        "fast": "unit tests only",
        "match": "run only tests whose name matches (pytest -k)",
    },
)
def test(context: Context, require_engine: bool = False, fast: bool = False, match: str = "") -> None:
    """Run linters, type checks and tests; a table at the end says what was skipped, and why."""
    options = [
        *("-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup"),
        *(["tests/unit"] if fast else []),
        *(["--require-engine"] if require_engine else []),
        *(["-k", match] if match else []),
    ]
    # The tools of this environment, whether it is activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    with context.cd(str(checkout_root())):
        for line in (*CHECKS, shlex.join(["python", "-m", "pytest", *options])):
            print(f"$ {line}", file=sys.stderr, flush=True)
            context.run(line, env={"PATH": path}, pty=sys.stdout.isatty(), in_stream=False)
