"""Commands with which workflows change the repository on GitHub: locks, pull requests and releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, say
from imagefactory.commands.workflow import (
    DRY_RUN,
    TARGETS,
    cells_named,
    open_repository,
    write_outputs,
    write_summary,
)

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(help={"commit": "the commit of the branch `records` (default: its head)"})
def take_locks(project: Project, commit: str = "") -> None:
    """Copy locks from the branch `records` into this checkout where it has none of its own."""
    from imagefactory.publish.automation.commits import take_locks
    from imagefactory.publish.automation.github import GitHub

    sha, written = take_locks(GitHub.from_environment(), project.root, commit)
    write_outputs({"locks": sha})
    for path in written:
        print(path)


@command(iterable=["target"], help={"target": TARGETS, "dry_run": DRY_RUN})
def adopt(project: Project, target: list[str], dry_run: bool = False) -> None:
    """Lock newly compiled wheels, commit the locks to the branch `records`, and start the next run."""
    from imagefactory.publish.automation.commits import RECORDS, commit
    from imagefactory.publish.automation.github import GitHub
    from imagefactory.publish.automation.needed_compiles import adopt, find_compiles
    from imagefactory.publish.automation.night import nightly_cells

    cells = cells_named(project, target) if "".join(target).strip() else nightly_cells(project)
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
    iterable=["upgrade"],
    help={
        "upgrade": "upgrade this package (or base, or all) to its newest version; repeatable (default: all)",
        "body": "write the text for a pull request to this file",
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
    write_summary(text)
    print(text)
    if body_file:
        body_file.write_text(text, "utf-8")


@command(
    help={
        "branch": "the branch to propose from; it is overwritten",
        "title": "the title of the pull request",
        "body": "a file with its text",
        "dry_run": DRY_RUN,
    }
)
def propose(project: Project, branch: str, title: str, body: str, dry_run: bool = False) -> None:
    """Open or update a pull request with what changed in this checkout."""
    from imagefactory.publish.automation.commits import changed_files, propose
    from imagefactory.publish.automation.github import GitHub

    body_file = options.file("--body", body)
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
    write_summary(notes)
    print(notes if dry_run else publish_release(GitHub.from_environment(), tag, notes))
