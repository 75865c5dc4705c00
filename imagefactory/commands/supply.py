"""Commands for the supply chain of images: licences, SBOMs, signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import command, find_signer, print_json, say, say_written, show

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    iterable=["target"],
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
    from imagefactory.commands.show import tables
    from imagefactory.matrix.targets import select
    from imagefactory.plan.make import make_plan
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
        print_json([summary.data() for summary in summaries])
        return
    for summary in summaries:
        if markdown:
            print(tables.licences_markdown(summary))
        else:
            show(tables.licences_table(summary))


@command(help={"target": options.ONE_TARGET})
def sbom(project: Project, target: str = "") -> None:
    """Print the SBOM of an image as CycloneDX, made from its locks."""
    from imagefactory.matrix.targets import select_one
    from imagefactory.plan.make import make_plan
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
    from imagefactory.matrix.targets import select_one
    from imagefactory.publish.attest.published import attest

    cell = select_one(project.matrix, target)
    signer = find_signer(project, key)
    say(f"signed with {signer.name}" if signer else "not signed: there is no key and no identity")
    for digest in attest(project, cell, image, signer):
        print(digest)
