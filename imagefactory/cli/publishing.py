"""Commands for publishing: push, promote, roll back, list and prune images."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    find_publisher,
    find_signer,
    find_trust,
    open_repository,
    print_json,
    say,
    select,
    select_one,
    show,
    show_rows,
    watching,
    write_outputs,
    write_summary,
)
from imagefactory.cli.failures import exit_refused
from imagefactory.store.progress import count, size

if TYPE_CHECKING:
    from imagefactory.check.smoke.record import Level
    from imagefactory.plan.plan import Plan
    from imagefactory.project.project import Project
    from imagefactory.publish.staging import Outcomes
    from imagefactory.publish.standing import Gate
    from imagefactory.publish.write import Promotion

NIGHTLY = "also set the tag nightly-DATE-MODEL (images of the version `nightly` always get it)"
AGAIN = "promote an image even if it was rolled back"
ANSWERS = "also compare its answers with those of the image that its tag names (default: if the level gpu ran)"


@command()
def push(project: Project, target: list[str]) -> None:
    """Push images under a staging tag; build and send only what the registry does not have."""
    from imagefactory.publish.run import PublishRun
    from imagefactory.publish.staging import stage
    from imagefactory.publish.standing import Gate

    with open_repository(project) as repository:
        gate = Gate(project, repository)
        plans = planned(gate, target)
        with watching() as watch:
            staged = stage(PublishRun(gate, say, watch=watch, pushing=watch), plans)
        for image in staged.finished.values():
            sent = f"{count(image.pushed.count('uploaded'), 'blob')} sent ({size(image.pushed.uploaded)})"
            present = f"{image.pushed.count('present')} already there"
            say(f"pushed {image.plan.target} for {image.plan.platform}: {sent}, {present}")
            print(f"{repository.reference.name}@{image.digest}")
    staged.refuse_failures("pushed")


@command(
    nightly=NIGHTLY,
    again=AGAIN,
    subjects="write the digests of promoted images to this file, as checksums (for actions/attest)",
    scan="attach what Grype found in `sbom --target all` (its JSON) to these images, and to those that tags name",
)
def promote(
    project: Project,
    target: list[str],
    nightly: bool = False,
    again: bool = False,
    subjects: str = "",
    key: str = "",
    answers_changed: str = "",
    unsigned: bool = False,
    scan: str = "",
) -> None:
    """Attach the records in build/smoke to pushed images, sign them, and move the tags of those that passed everything.

    Without a key, images that were signed before are promoted. With --scan and no target, none is.
    """
    from imagefactory.ci import run_summary
    from imagefactory.publish.pipeline import attest, promote
    from imagefactory.publish.run import PublishRun
    from imagefactory.publish.scanning import attach_scans
    from imagefactory.publish.staging import Outcomes, find_staged
    from imagefactory.publish.standing import Gate
    from imagefactory.publish.testing import attach_recorded
    from imagefactory.publish.vulnerabilities import Scan

    checksum_file = options.new_file("--subjects", subjects) if subjects else None
    reason = options.reason("--answers-changed", answers_changed)
    scanned = Scan.read(options.existing("--scan", scan, folder=False)) if scan else None
    signer = find_signer(project, key)
    trust = None if unsigned else find_trust(project, signer=signer)
    with open_repository(project) as repository:
        gate = Gate(project, repository, trust, nightly=nightly, again=again, answers_changed=reason)
        plans = Outcomes() if scanned and not "".join(target).strip() else planned(gate, target)
        run = PublishRun(gate, say, signer)
        attested = find_staged(run, plans).then(partial(attach_recorded, run)).then(partial(attest, run))
        if scanned:
            attested = attach_scans(run, scanned, attested)
        outcome = promote(run, attested)
    # Before `_show`, which ends the command if an image was refused.
    write_outputs({"promoted": str(len(outcome.promoted))})
    write_summary(run_summary.promotion_summary(outcome))
    if checksum_file:
        checksum_file.write_text(run_summary.subjects(outcome, repository.reference.name), "utf-8")
    _show(outcome)


@command(
    needs="smoke",
    nightly=NIGHTLY,
    again=AGAIN,
    retest="run the smoke tests even if this very image has passed them, and measure its answers again",
    answers=ANSWERS,
    level="also test this level, such as gpu; repeatable",
    set="a setting of the server at the level gpu, and of the one whose answers are compared; repeatable",
)
def publish(
    project: Project,
    target: list[str],
    level: list[str],
    set: list[str],
    nightly: bool = False,
    again: bool = False,
    retest: bool = False,
    answers: bool = False,
    answers_changed: str = "",
    key: str = "",
    unsigned: bool = False,
) -> None:
    """Push, smoke-test and sign images, and promote those that pass; an image is not tested twice."""
    from imagefactory.check.smoke.record import levels_named, required_levels
    from imagefactory.launch.prepare import settings_from
    from imagefactory.publish.pipeline import publish
    from imagefactory.publish.run import PublishRun
    from imagefactory.publish.standing import Gate

    reason = options.reason("--answers-changed", answers_changed)
    settings = settings_from(set)
    levels: tuple[Level, ...] = ()
    if any(level):
        arch = select(project, target)[0].arch
        levels = levels_named([*required_levels(project.matrix, arch), *level], project.matrix, arch)
    project.matrix.require_registry()  # before it asks for a key
    signer, trust = find_publisher(project, key, unsigned=unsigned)
    with open_repository(project) as repository:
        gate = Gate(project, repository, trust, nightly=nightly, again=again, answers_changed=reason)
        plans = planned(gate, target)
        with watching() as watch:
            asked = PublishRun(gate, say, signer, watch, pushing=watch, retest=retest, answers=answers)
            run = replace(asked, levels=levels, settings=settings)
            outcome = publish(run, plans)
        _show(outcome)


def planned(gate: Gate, target: list[str]) -> Outcomes[Plan]:
    """Plan the named targets; one that cannot be planned does not stop the others."""
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.staging import Outcomes

    project = gate.project
    return Outcomes.of(select(project, target, gate.tagged_version), lambda cell: make_plan(project, cell), say)


def _show(outcome: Promotion) -> None:
    """Show the tags of promoted images, and fail if an image was refused."""
    from imagefactory.publish.tags import short_digest

    if outcome.promoted:
        rows = (
            (
                *(str(promoted.image.cell), promoted.image.platform, short_digest(promoted.image.digest)),
                *("\n".join(promoted.named), "\n".join(promoted.moved)),
            )
            for promoted in outcome.promoted
        )
        show_rows(rows, "target", "platform", "image", "for ever", "moved here")
    exit_refused(outcome.refused)


@command(
    to="the digest of an image, the start of one, or a day such as 2026-11-05 (default: the previous image)",
    why="the reason, which stays in the history",
)
def rollback(project: Project, target: str = "", to: str = "", why: str = "") -> None:
    """Move a target's tags back to an image published earlier; no image changes."""
    from imagefactory.publish.rollback import rollback
    from imagefactory.publish.stored_catalog import read_catalog
    from imagefactory.publish.tag_owners import tagged_version

    reason = options.reason("--why", why)
    with open_repository(project) as repository:
        published = read_catalog(repository).catalog
        cell = select_one(project, target, partial(tagged_version, project.matrix, published))
        done = rollback(project, repository, cell, to, reason)
        was = f" (was {done.left.digest})" if done.left else ""
        say(f"{', '.join(done.moved)}: {done.image.tag}{was}")
        for tag in done.kept:
            say(f"{tag} stays: that image was never published under it")
        print(f"{repository.reference.name}@{done.image.digest}")


@command()
def history(project: Project, target: str = "") -> None:
    """List everything published for a target: when, what changed, today's tags, and what a rollback holds back."""
    from imagefactory.cli.show.tables import history_table
    from imagefactory.publish.history import read_history
    from imagefactory.publish.stored_catalog import read_catalog
    from imagefactory.publish.tag_owners import tagged_version
    from imagefactory.publish.tags import short_digest

    with open_repository(project) as repository:
        published = read_catalog(repository).catalog
        cell = select_one(project, target, partial(tagged_version, project.matrix, published))
        past = read_history(project, repository, published, cell)
    show(history_table(past.lines))
    for digest, event in past.held.items():
        since = f"rolled back on {event.time:%Y-%m-%d}{f' ({event.why})' if event.why else ''}"
        release = f"`./inv promote --again` or `./inv rollback --to {short_digest(digest)}`"
        say(f"{short_digest(digest)} is held back: {since}; only {release} can tag it again")
    if past.vulnerabilities:
        say(f"known vulnerabilities of today's image: {past.vulnerabilities}")
    for reason in past.left_out:
        say(reason)
    for tag in past.misplaced_tags:
        say(f"{tag} differs from the catalog: the last change was interrupted; run the same command again")


@command(
    from_="what you run: a digest, image ID or the start of one, TAG[@YYYY-MM-DD], or a locked version such as 0.28.0",
    to="another one to compare with (default: what you would get today)",
    target="with versions: MODEL[/ARCH[/MACHINE]] (default: the first model)",
)
def upgrade(project: Project, from_: str, to: str = "", target: str = "", json: bool = False) -> None:
    """Show what changes between two images of a model, whether you must act, and how to go back."""
    from imagefactory.check.bench.result import shared_results
    from imagefactory.publish.owned_image import find_pair
    from imagefactory.publish.upgrade import Known, compare_contents, markdown

    options.filled("--from", from_)
    before, after, catalog = find_pair(project, select_one(project, target), from_, to)
    comparison = compare_contents(before, after, Known.of(project, catalog, shared_results(project.root)))
    if json:
        print_json(comparison.as_json())
    else:
        print(markdown(comparison), end="")


@command(json="print the whole catalog")
def catalog(project: Project, json: bool = False) -> None:
    """List the images that can be pulled today: every moving tag and what it points to."""
    from imagefactory.publish.history import current_images
    from imagefactory.publish.stored_catalog import read_catalog
    from imagefactory.publish.tags import short_digest

    with open_repository(project) as repository:
        published = read_catalog(repository).catalog
    if json:
        print(published.to_json().decode("utf-8"), end="")
        return
    rows = (
        (
            *(current.tag, current.image.platform, short_digest(current.image.digest), current.image.version),
            *(" ".join(current.image.mods) or "none", f"{current.since:%Y-%m-%d}", size(current.image.size)),
        )
        for current in current_images(published)
    )
    show_rows(rows, "tag", "platform", "image", "version", "mods", "since", "to pull")


@command(
    delete="delete them (default: only list them)",
    staging="keep images that were pushed but never promoted for this many days (default: 14)",
    nightlies="keep nightlies for this many days (default: forever)",
    keep="keep this many published images of each target, the newest (default: all)",
    most="delete nothing if it would be more manifests than this (default: any number)",
)
def prune(
    project: Project, delete: bool = False, staging: str = "", nightlies: str = "", keep: str = "", most: str = ""
) -> None:
    """Delete manifests from the registry that no kept tag reaches; without --delete, only list them."""
    from imagefactory.publish.prune import Policy, prune
    from imagefactory.publish.tags import short_digest

    days = options.number("--staging", staging)
    policy = Policy(
        staging_days=14.0 if days is None else days,  # 0 is a choice, too
        nightly_days=options.number("--nightlies", nightlies),
        keep=options.whole_number("--keep", keep, least=1),
        most=options.whole_number("--most", most),
    )
    with open_repository(project) as repository:
        pruned = prune(repository, policy, delete=delete)
    if pruned.deletions:
        rows = (
            (manifest.kind, short_digest(manifest.digest), size(manifest.size), "\n".join(manifest.tags))
            for manifest in pruned.deletions
        )
        show_rows(rows, "what", "digest", "bytes", "tags")
    for tag in pruned.undated:
        say(f"{tag} stays: its age is unknown")
    verb = "deleted" if delete else "would be deleted (--delete does it)"
    say(f"{count(len(pruned.deletions), 'manifest')} {verb}, {pruned.kept:,} kept")
