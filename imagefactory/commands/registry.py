"""Commands for the registry: push, promote, publish, roll back, list and prune images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit

from imagefactory.commands import options
from imagefactory.commands.command import ONE_TARGET, TARGET, command, need, print_json, say
from imagefactory.commands.workflow import open_repository
from imagefactory.store import sizes

if TYPE_CHECKING:
    from imagefactory.locks.project import Project

NIGHTLY = "also set the tag nightly-DATE-MODEL (images of the version `nightly` always get it)"
AGAIN = "promote an image even if it was rolled back before"


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "workers": "layers to build at the same time (default: the number of cores)",
    },
)
def push(project: Project, target: list[str], workers: str = "") -> None:
    """Push images under a staging tag, building and sending only what the registry does not have."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.live import watching
    from imagefactory.publish.staging import stage

    count = options.whole_number("--workers", workers, least=1, most=options.MOST_AT_ONCE)
    plans = _planned(project, target)
    with open_repository(project) as repository:
        with watching(terminal.err) as watch:
            staged = stage(project, repository, plans, watch, say, pushing=watch, workers=count)
        for one in staged.finished.values():
            sent, there = one.pushed.count("uploaded"), one.pushed.count("present")
            amount = sizes.size(one.pushed.uploaded)
            say(
                f"pushed {one.plan.target} for {one.plan.platform}: {sent} blobs sent ({amount}), {there} there"
            )
            print(f"{repository.reference.name}@{one.digest}")
    staged.refuse_failures("pushed")


@command(iterable=["target"], help={"target": TARGET, "nightly": NIGHTLY, "again": AGAIN})
def promote(project: Project, target: list[str], nightly: bool = False, again: bool = False) -> None:
    """Move tags to pushed images that are locked, audited, and passed the smoke tests their arch requires."""
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged

    plans = _planned(project, target)
    with open_repository(project) as repository:
        staged = find_staged(project, repository, plans)
        _show(promote(project, repository, staged, nightly=nightly, again=again))


@command(
    needs="smoke",
    iterable=["target"],
    help={
        "target": TARGET,
        "nightly": NIGHTLY,
        "again": AGAIN,
        "key": "the private key to sign with (default: FACTORY_SIGNING_KEY, your own key, or the CI job's identity)",
    },
)
def publish(
    project: Project, target: list[str], nightly: bool = False, again: bool = False, key: str = ""
) -> None:
    """Push images, attest and smoke-test them, and promote those that pass."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.live import watching
    from imagefactory.publish.attest.signing import find_signer, signs_as_job
    from imagefactory.publish.pipeline import publish

    if signs_as_job(key):
        need(project.root, "sign")
    plans = _planned(project, target)
    signer = find_signer(project, key)
    with open_repository(project) as repository:
        with watching(terminal.err) as watch:
            outcome = publish(
                project,
                repository,
                plans,
                watch,
                say,
                signer=signer,
                pushing=watch,
                nightly=nightly,
                again=again,
            )
        _show(outcome)


@command(
    help={
        "target": ONE_TARGET,
        "to": "a digest, the start of one, or a day such as 2026-11-05 (default: the image before the current one)",
    }
)
def rollback(project: Project, target: str = "", to: str = "") -> None:
    """Move a target's tags back to an image published earlier; no image is changed."""
    from imagefactory.matrix.targets import select_one
    from imagefactory.publish.rollback import rollback

    cell = select_one(project.matrix, target)
    with open_repository(project) as repository:
        done = rollback(project, repository, cell, to)
        was = f" (was {done.left.digest})" if done.left else ""
        say(f"{', '.join(done.moved)}: {done.image.tag}{was}")
        for tag in done.kept:
            say(f"{tag} stays: that image was never published under it")
        print(f"{repository.reference.name}@{done.image.digest}")


@command(help={"target": ONE_TARGET, "json": "print JSON"})
def history(project: Project, target: str = "", json: bool = False) -> None:
    """List everything published for a target: when, what changed, and which tags point to it today."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.tables import history_rows, history_table
    from imagefactory.matrix.targets import select_one
    from imagefactory.publish.history import read_history

    cell = select_one(project.matrix, target)
    with open_repository(project) as repository:
        found = read_history(project, repository, cell)
    if json:
        print_json(history_rows(found.lines))
    else:
        terminal.out.print(history_table(found.lines))
    for tag in found.astray:
        say(
            f"{tag} is not where the catalog has it: a promotion was interrupted; `invoke promote` finishes it"
        )


@command(
    help={
        "json": "print catalog.json as stored in the registry",
        "markdown": "print the table as Markdown",
    }
)
def catalog(project: Project, json: bool = False, markdown: bool = False) -> None:
    """List the images that can be pulled today: every moving tag and what it points to."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.tables import offers_table
    from imagefactory.publish.catalog_writes import read_catalog
    from imagefactory.publish.history import current_images, current_markdown

    options.at_most_one(json=json, markdown=markdown)
    with open_repository(project) as repository:
        found = read_catalog(repository).catalog
    if json:
        print(found.to_json().decode("utf-8"), end="")
    elif markdown:
        print(current_markdown(repository.reference.name, current_images(found)))
    else:
        terminal.out.print(offers_table(current_images(found)))


@command(
    help={
        "delete": "delete what was found",
        "dry_run": "only list it (the default)",
        "staging": "days to keep images that were pushed but never promoted (default: 14)",
        "nightlies": "days to keep nightlies (default: forever)",
        "keep": "how many published images to keep for each target, newest first (default: all)",
    }
)
def prune(
    project: Project,
    delete: bool = False,
    dry_run: bool = False,
    staging: str = "",
    nightlies: str = "",
    keep: str = "",
) -> None:
    """Delete from the registry what no kept tag reaches; without --delete, only list it."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.tables import pruning_table
    from imagefactory.publish.prune import Policy, prune

    options.at_most_one(delete=delete, dry_run=dry_run)
    days = options.number("--staging", staging)
    policy = Policy(
        staging_days=14.0 if days is None else days,
        nightly_days=options.number("--nightlies", nightlies),
        keep=options.whole_number("--keep", keep, least=1),
    )
    with open_repository(project) as repository:
        found = prune(repository, policy, delete=delete)
    if found.doomed:
        terminal.out.print(pruning_table(found))
    for tag in found.undated:
        say(f"{tag} stays: its age is unknown")
    verb = "deleted" if delete else "would be deleted (--delete does it)"
    say(f"{len(found.doomed)} manifests {verb}, {found.kept} are kept")


def _planned(project: Project, target: list[str]) -> Any:
    from imagefactory.matrix.targets import select
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.outcomes import Outcomes

    return Outcomes({cell: make_plan(project, cell) for cell in select(project.matrix, target)})


def _show(outcome: Any) -> None:
    """Show what got its tags, and exit with the code of the first refusal, if any."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.tables import promoted_table

    if outcome.promoted:
        terminal.out.print(promoted_table(outcome.promoted))
    for error in outcome.refused:
        say(terminal.error_message(error))
    if outcome.refused:
        raise Exit(code=outcome.refused[0].exit_code)
