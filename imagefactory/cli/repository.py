"""Commands for the repository itself: the doctor, generated files, tests, the site."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import command, open_repository, plans_of, say, show
from imagefactory.errors import NO_REGISTRY, RegistryError
from imagefactory.store.progress import count

if TYPE_CHECKING:
    from imagefactory.project.project import Project
    from imagefactory.site.stock import RegistryRecords

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


@command(fork="instead, compare the settings of your repository on GitHub with docs/fork.md")
def doctor(project: Project, fork: bool = False) -> None:
    """Check that this machine has what the commands need, and suggest fixes."""
    from imagefactory.cli.command import today
    from imagefactory.cli.doctor import examine
    from imagefactory.cli.doctor_fork import examine_fork
    from imagefactory.cli.show.tables import diagnosis_lines

    findings = list(examine_fork(project) if fork else examine(project, today()))
    show(diagnosis_lines(findings))
    if any(finding.health == "failed" for finding in findings):
        raise Exit(code=1)


@command()
def docs(project: Project) -> None:
    """Regenerate parts of the documentation: JSON schemas, the README's digest, tables and pictures."""
    from imagefactory.cli.show.pictures import pictures
    from imagefactory.docs import generated
    from imagefactory.mods.compatibility import check_mods

    for path in generated.write_changed(generated.schemas(project.root / "docs" / "schemas")):
        print(path.relative_to(project.root))
    [plan] = plans_of(project, [])
    drawn = pictures(project, plan, check_mods(project))
    print(
        generated.write_digest(project, plan, project.root / "README.md") or f"build {plan.target} to know its digest"
    )
    for path in generated.write_changed({**generated.with_tables(project.root), **drawn}):
        print(path.relative_to(project.root))


@command(
    needs="test",
    fast="linters, type checks and unit tests only",
    all="also the tests marked slow",
    require_engine="fail if Docker or a registry is missing, or if a test is unexpectedly skipped",
    only="these tests alone, without linters; pytest's options may follow: 'tests/unit/oci -k gzip'",
)
def test(project: Project, fast: bool = False, all: bool = False, require_engine: bool = False, only: str = "") -> None:
    """Run linters, type checks and tests; the end says which tests were skipped and why."""
    options.at_most_one(fast=fast, all=all, only=only)
    options.at_most_one(require_engine=require_engine, only=only)
    arguments = [
        # More than cores: most integration tests wait for servers. By file, so that fixtures are made once.
        *("-n", "4", "--dist", "loadfile", "--durations", "20", "--durations-min", "5"),
        *(["tests/unit"] if fast else []),
        # All: in the order of conftest.py, which begins with the longest files, and not with those of most tests.
        *(["--no-loadscope-reorder"] if all else ["-m", "not slow"]),
        *(["--require-engine"] if require_engine else []),
    ]
    # The tools of this environment, whether it is activated or not.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path}
    lines = [f"python -m pytest {only}"] if only else [*CHECKS, shlex.join(["python", "-m", "pytest", *arguments])]
    for line in lines:
        print(f"$ {line}", file=sys.stderr, flush=True)
        done = subprocess.run(line, shell=True, cwd=project.root, env=environment, check=False)  # noqa: S602 - lines of our own, with globs
        if done.returncode:
            raise Exit(code=done.returncode)


@command(
    out="the folder to write (default: build/site)",
    registry="read what was published from this repository (default: FACTORY_REGISTRY, or matrix.yaml's)",
    offline="ask no registry; pages then say that nothing is known to be published",
    serve="also serve it on 127.0.0.1 until you press Ctrl-C",
    port="the port for --serve (default: a free one)",
)
def site(
    project: Project, out: str = "", registry: str = "", offline: bool = False, serve: bool = False, port: str = ""
) -> None:
    """Write the catalog as a static site: models, images, mods, advice, status; plain files for any web server."""
    from imagefactory.site.rendering import refuse_foreign, render, site_server, write_site
    from imagefactory.site.site_contents import gather
    from imagefactory.site.stock import take_stock

    options.at_most_one(registry=registry, offline=offline)
    number = options.whole_number("--port", port, least=1, most=65535) or 0
    folder = options.new_folder("--out", out) or project.root / "build" / "site"
    refuse_foreign(folder)
    began = time.monotonic()
    project = replace(project, registry=registry)  # recipes name it too
    contents = gather(take_stock(project, _records(project, offline=offline)))
    for problem in contents.status.problems:
        say(f"- {problem}")
    files = render(contents)
    write_site(files, folder)
    pages = sum(path.endswith(".html") for path in files)
    total = sum(map(len, files.values()))
    seconds = time.monotonic() - began
    say(f"{count(pages, 'page')}, {count(len(files), 'file')}, {total / 1e6:.1f} MB, in {seconds:.1f} s")
    print(folder)
    if serve:
        with site_server(folder, number) as server:
            say(f"http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
            with suppress(KeyboardInterrupt):
                server.serve_forever()


def _records(project: Project, *, offline: bool) -> RegistryRecords:
    from imagefactory.site.stock import RegistryRecords, ask_registry

    if not offline:
        try:
            with open_repository(project) as repository:
                return ask_registry(repository)
        except RegistryError as error:
            if error.name != NO_REGISTRY:
                raise
            say(f"- {error.what} The pages name images that cannot be pulled. {error.why} {error.fix}")
    return RegistryRecords(project.matrix.effective_registry)
