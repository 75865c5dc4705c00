"""Commands for publishing: licences, SBOMs and signatures of images; push, promote, roll back, list and prune them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    find_publisher,
    find_signer,
    need,
    open_repository,
    print_json,
    say,
    say_written,
    show,
)
from imagefactory.cli.failures import exit_refused
from imagefactory.store.progress import size

if TYPE_CHECKING:
    from imagefactory.plan.plan import Plan
    from imagefactory.project.project import Project
    from imagefactory.publish.outcomes import Outcomes
    from imagefactory.publish.promote import Promotion

NIGHTLY = "also set the tag nightly-DATE-MODEL (images of the version `nightly` always get it)"
AGAIN = "promote an image even if it was rolled back"
UNSIGNED = "promote images that nobody signed too: for a private registry"


@command(help={"target": options.TARGET, "workers": options.WORKERS})
def push(project: Project, target: list[str], workers: str = "") -> None:
    """Push images under a staging tag; build and send only what the registry does not have."""
    from imagefactory.cli.show.live import watching
    from imagefactory.publish.staging import stage

    count = options.processes("--workers", workers)
    plans = _planned(project, target)
    with open_repository(project) as repository:
        with watching() as watch:
            staged = stage(project, repository, plans, watch, say, pushing=watch, workers=count)
        for one in staged.finished.values():
            sent = f"{one.pushed.count('uploaded')} blobs sent ({size(one.pushed.uploaded)})"
            present = f"{one.pushed.count('present')} already there"
            say(f"pushed {one.plan.target} for {one.plan.platform}: {sent}, {present}")
            print(f"{repository.reference.name}@{one.digest}")
    staged.refuse_failures("pushed")


@command(
    help={
        "target": options.TARGET,
        "nightly": NIGHTLY,
        "again": AGAIN,
        "unsigned": UNSIGNED,
        "key": "trust this public key (default: those in keys, and the workflows that may sign)",
    }
)
def promote(
    project: Project,
    target: list[str],
    key: list[str],
    nightly: bool = False,
    again: bool = False,
    unsigned: bool = False,
) -> None:
    """Move tags to pushed images that are locked, audited, signed, and passed the smoke tests of their arch."""
    from imagefactory.publish.attest.signing import find_trust
    from imagefactory.publish.promote import promote
    from imagefactory.publish.staging import find_staged

    if not (unsigned or key):
        need(project.root, "sign")  # a workflow may have signed them
    trust = None if unsigned else find_trust(project, key)
    plans = _planned(project, target)
    with open_repository(project) as repository:
        staged = find_staged(project, repository, plans)
        _show(promote(project, repository, staged, trust, nightly=nightly, again=again))


@command(
    needs="smoke",
    help={
        "target": options.TARGET,
        "nightly": NIGHTLY,
        "again": AGAIN,
        "retest": "run the smoke tests even if this very image has passed them",
        "key": options.SIGNING_KEY,
        "unsigned": UNSIGNED,
    },
)
def publish(
    project: Project,
    target: list[str],
    nightly: bool = False,
    again: bool = False,
    retest: bool = False,
    key: str = "",
    unsigned: bool = False,
) -> None:
    """Push images, smoke-test and sign them, and promote those that pass; what a digest has passed is not repeated."""
    from imagefactory.cli.show.live import watching
    from imagefactory.publish.pipeline import publish

    signer, trust = find_publisher(project, key, unsigned=unsigned)
    plans = _planned(project, target)
    with open_repository(project) as repository:
        with watching() as watch:
            outcome = publish(
                project,
                repository,
                plans,
                watch,
                say,
                signer=signer,
                trust=trust,
                pushing=watch,
                nightly=nightly,
                again=again,
                retest=retest,
            )
        _show(outcome)


@command(
    help={
        "target": options.ONE_TARGET,
        "to": "the digest of an image, the start of one, or a day such as 2026-11-05 (default: the previous image)",
    }
)
def rollback(project: Project, target: str = "", to: str = "") -> None:
    """Move a target's tags back to an image published earlier; no image changes."""
    from imagefactory.project.targets import select_one
    from imagefactory.publish.rollback import rollback

    cell = select_one(project.matrix, target)
    with open_repository(project) as repository:
        done = rollback(project, repository, cell, to)
        was = f" (was {done.left.digest})" if done.left else ""
        say(f"{', '.join(done.moved)}: {done.image.tag}{was}")
        for tag in done.kept:
            say(f"{tag} stays: that image was never published under it")
        print(f"{repository.reference.name}@{done.image.digest}")


@command(help={"target": options.ONE_TARGET, "json": options.JSON})
def history(project: Project, target: str = "", json: bool = False) -> None:
    """List everything published for a target: when, what changed, today's tags, and what is held back from them."""
    from imagefactory.cli.show.tables import history_rows, history_table
    from imagefactory.project.targets import select_one
    from imagefactory.publish.history import read_history
    from imagefactory.publish.tags import short_digest

    cell = select_one(project.matrix, target)
    with open_repository(project) as repository:
        found = read_history(project, repository, cell)
    if json:
        print_json(history_rows(found.lines))
    else:
        show(history_table(found.lines))
    for digest, event in found.held.items():
        since = f"rolled back on {event.time:%Y-%m-%d}"
        say(f"{short_digest(digest)} is held back: {since}; only `./inv promote --again` can tag it again")
    for tag in found.misplaced_tags:
        say(f"{tag} differs from the catalog: the last change was interrupted; run the same command again")


@command(help={"json": "print catalog.json as the registry stores it"})
def catalog(project: Project, json: bool = False) -> None:
    """List the images that can be pulled today: every moving tag and what it points to."""
    from imagefactory.cli.show.tables import offers_table
    from imagefactory.publish.catalog import read_catalog
    from imagefactory.publish.history import current_images

    with open_repository(project) as repository:
        found = read_catalog(repository).catalog
    if json:
        print(found.to_json().decode("utf-8"), end="")
    else:
        show(offers_table(current_images(found)))


@command(
    help={
        "delete": "delete them (default: only list them)",
        "staging": "keep images that were pushed but never promoted for this many days (default: 14)",
        "nightlies": "keep nightlies for this many days (default: forever)",
        "keep": "keep this many published images of each target, the newest (default: all)",
    }
)
def prune(
    project: Project,
    delete: bool = False,
    staging: str = "",
    nightlies: str = "",
    keep: str = "",
) -> None:
    """Delete manifests from the registry that no kept tag reaches; without --delete, only list them."""
    from imagefactory.cli.show.tables import pruning_table
    from imagefactory.publish.prune import Policy, prune

    days = options.number("--staging", staging)
    policy = Policy(
        staging_days=14.0 if days is None else days,
        nightly_days=options.number("--nightlies", nightlies),
        keep=options.whole_number("--keep", keep, least=1),
    )
    with open_repository(project) as repository:
        found = prune(repository, policy, delete=delete)
    if found.deletions:
        show(pruning_table(found))
    for tag in found.undated:
        say(f"{tag} stays: its age is unknown")
    verb = "deleted" if delete else "would be deleted (--delete does it)"
    say(f"{len(found.deletions)} manifests {verb}, {found.kept} are kept")


@command(
    help={
        "target": options.TARGET,
        "json": options.JSON,
        "markdown": options.MARKDOWN,
        "update": "instead, record the licences of newly locked files in locks/licences.toml",
    },
)
def licences(
    project: Project, target: list[str], json: bool = False, markdown: bool = False, update: bool = False
) -> None:
    """Summarise the licences in an image, and name the parts under GPL, LGPL or AGPL."""
    from dataclasses import asdict

    from imagefactory.cli.show import tables
    from imagefactory.plan.make import make_plan
    from imagefactory.project.targets import select
    from imagefactory.publish.attest.licence_record import update_licences
    from imagefactory.publish.attest.licence_summary import summarise

    options.at_most_one(json=json, markdown=markdown, update=update)
    if update:
        path, changed = update_licences(project, say)
        say_written(project, path, changed=changed)
        return
    cells = select(project.matrix, target)
    summaries = [summarise(project, make_plan(project, cell)) for cell in cells]
    if json:
        print_json([asdict(summary) for summary in summaries])
        return
    for summary in summaries:
        if markdown:
            print(tables.licences_markdown(summary))
        else:
            show(tables.licences_table(summary))


@command(help={"target": options.ONE_TARGET})
def sbom(project: Project, target: str = "") -> None:
    """Print the SBOM of an image as CycloneDX, made from its locks."""
    from imagefactory.plan.make import make_plan
    from imagefactory.project.targets import select_one
    from imagefactory.publish.attest.sbom import make_sbom

    cell = select_one(project.matrix, target)
    print(make_sbom(project, make_plan(project, cell)).decode())


@command(
    help={
        "image": "the pushed image: NAME:TAG or NAME@DIGEST",
        "target": options.ONE_TARGET,
        "key": options.SIGNING_KEY,
    },
)
def attest(project: Project, image: str, target: str = "", key: str = "") -> None:
    """Attach an SBOM, provenance and a signature to a pushed image."""
    from imagefactory.project.targets import select_one
    from imagefactory.publish.attest.attachments import attest_pushed

    cell = select_one(project.matrix, target)
    signer = find_signer(project, key)
    say(f"signed with {signer.name}" if signer else "not signed: there is no key and no identity")
    for digest in attest_pushed(project, cell, image, signer):
        print(digest)


def _planned(project: Project, target: list[str]) -> Outcomes[Plan]:
    from imagefactory.plan.make import make_plan
    from imagefactory.project.targets import select
    from imagefactory.publish.outcomes import Outcomes

    return Outcomes({cell: make_plan(project, cell) for cell in select(project.matrix, target)})


def _show(outcome: Promotion) -> None:
    """Show the tags of promoted images, and fail if an image was refused."""
    from imagefactory.cli.show.tables import promoted_table

    if outcome.promoted:
        show(promoted_table(outcome.promoted))
    exit_refused(outcome.refused)
