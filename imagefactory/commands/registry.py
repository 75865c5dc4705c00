"""Commands for the registry: push, promote, publish, roll back, list and prune images."""

from __future__ import annotations

from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit

from imagefactory.commands import options
from imagefactory.commands.checkout import checkout_root
from imagefactory.commands.command import TARGET, command, need, print_json, say
from imagefactory.store import sizes

ONE_TARGET = "which image, as MODEL[@VLLM][/ARCH[/MACHINE]] (default: the matrix's first)"
NIGHTLY = "also set the day's tag, nightly-DATE-MODEL (images of the version `nightly` get it anyway)"
AGAIN = "also promote an image that was rolled back from"


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "workers": "layers that are built at the same time (default: the number of cores)",
    },
)
def push(context: Context, target: list[str], workers: str = "") -> None:
    """Upload images by digest, under a staging tag; what the registry has is neither built nor sent."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.live_build import watching
    from imagefactory.publish.staging import stage

    count = options.whole_number("--workers", workers, least=1, most=options.MOST_AT_ONCE)
    project, plans = _planned(target)
    with _repository(project) as repository:
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
def promote(context: Context, target: list[str], nightly: bool = False, again: bool = False) -> None:
    """Move tags to pushed images that are locked, audited and passed the smoke tests that their arch requires."""
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged

    project, plans = _planned(target)
    with _repository(project) as repository:
        staged = find_staged(project, repository, plans)
        _show(promote(project, repository, staged, nightly=nightly, again=again))


@command(
    needs="smoke",
    iterable=["target"],
    help={
        "target": TARGET,
        "nightly": NIGHTLY,
        "again": AGAIN,
        "key": "a private key file to sign with (default: FACTORY_SIGNING_KEY, or the identity of a GitHub job)",
    },
)
def publish(
    context: Context, target: list[str], nightly: bool = False, again: bool = False, key: str = ""
) -> None:
    """Push, test the pulled image, attach SBOM and provenance, and promote it if it passed."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.live_build import watching
    from imagefactory.publish.attest.signing import find_signer, signs_as_job
    from imagefactory.publish.pipeline import publish

    if signs_as_job(key):
        need("sign")
    project, plans = _planned(target)
    signer = find_signer(project, key)
    with _repository(project) as repository:
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
        "to": "a digest or the beginning of one, or a date such as 2026-11-05 (default: the previous image)",
    }
)
def rollback(context: Context, target: str = "", to: str = "") -> None:
    """Point a target's moving tags at an image that was published earlier; images are not touched."""
    from imagefactory.publish.rollback import rollback

    project, [cell] = _selected([target] if target else [], one=True)
    with _repository(project) as repository:
        done = rollback(project, repository, cell, to)
        was = f" (was {done.left.digest})" if done.left else ""
        say(f"{', '.join(done.moved)}: {done.image.tag}{was}")
        for tag in done.kept:
            say(f"{tag} stays: that image was never published under it")
        print(f"{repository.reference.name}@{done.image.digest}")


@command(help={"target": ONE_TARGET, "json": "print JSON"})
def history(context: Context, target: str = "", json: bool = False) -> None:
    """List what was published of a target: when, what changed, and which tags point at it today."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.publications import history_rows, history_table
    from imagefactory.publish.history import read_history

    project, [cell] = _selected([target] if target else [], one=True)
    with _repository(project) as repository:
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
        "markdown": "print the table as Markdown, for a web page",
    }
)
def catalog(context: Context, json: bool = False, markdown: bool = False) -> None:
    """List what can be pulled today: every moving tag and its image."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.publications import offers_table
    from imagefactory.publish import current_images
    from imagefactory.publish.catalog_writes import read_catalog

    options.at_most_one(json=json, markdown=markdown)
    project, _ = _selected(["all"])
    with _repository(project) as repository:
        found = read_catalog(repository).catalog
    if json:
        print(found.to_json().decode("utf-8"), end="")
    elif markdown:
        print(current_images.markdown(repository.reference.name, current_images.current_images(found)))
    else:
        terminal.out.print(offers_table(current_images.current_images(found)))


@command(
    help={
        "delete": "delete what was found; without it, nothing changes",
        "dry_run": "change nothing, which is the default",
        "staging": "days to keep images that were pushed but never promoted (default: 14)",
        "nightlies": "days to keep nightlies (default: forever)",
        "keep": "how many of the newest published images of each target to keep (default: all)",
    }
)
def prune(
    context: Context,
    delete: bool = False,
    dry_run: bool = False,
    staging: str = "",
    nightlies: str = "",
    keep: str = "",
) -> None:
    """Delete from the registry what no kept tag reaches."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.publications import pruning_table
    from imagefactory.publish.prune import Policy, prune

    options.at_most_one(delete=delete, dry_run=dry_run)
    days = options.number("--staging", staging)
    policy = Policy(
        staging_days=14.0 if days is None else days,
        nightly_days=options.number("--nightlies", nightlies),
        keep=options.whole_number("--keep", keep, least=1),
    )
    project, _ = _selected(["all"])
    with _repository(project) as repository:
        found = prune(repository, policy, delete=delete)
    if found.doomed:
        terminal.out.print(pruning_table(found))
    for tag in found.undated:
        say(f"{tag} stays: its age is unknown")
    verb = "deleted" if delete else "would be deleted (--delete does it)"
    say(f"{len(found.doomed)} manifests {verb}, {found.kept} are kept")


def _selected(target: list[str], *, one: bool = False) -> tuple[Any, list[Any]]:
    from imagefactory.locks.project import Project
    from imagefactory.matrix.targets import select, select_one

    project = Project(checkout_root())
    wanted = target or [next(iter(project.matrix.models))]
    if one:
        return project, [select_one(project.matrix, wanted[0])]
    return project, select(project.matrix, wanted)


def _planned(target: list[str]) -> tuple[Any, Any]:
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.outcomes import Outcomes

    project, cells = _selected(target)
    return project, Outcomes({cell: make_plan(project, cell) for cell in cells})


def _repository(project: Any) -> Any:
    from imagefactory.oci.registry.repository import Repository

    return Repository.open(project.matrix.effective_registry)


def _show(outcome: Any) -> None:
    """Show what got its tags, and exit with the code of the first refusal, if any."""
    from imagefactory.commands.show import terminal
    from imagefactory.commands.show.publications import promoted_table

    if outcome.promoted:
        terminal.out.print(promoted_table(outcome.promoted))
    for error in outcome.refused:
        say(terminal.error_message(error))
    if outcome.refused:
        raise Exit(code=outcome.refused[0].exit_code)
