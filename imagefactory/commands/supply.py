"""Commands for the supply chain of images: licences, SBOMs, signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.commands import options
from imagefactory.commands.command import ONE_TARGET, TARGET, command, need, print_json, say

if TYPE_CHECKING:
    from imagefactory.locks.project import Project


@command(
    iterable=["target"],
    help={
        "target": TARGET,
        "json": "print JSON",
        "markdown": "print Markdown",
        "update": "record the licences of newly locked files in locks/licences.toml",
    },
)
def licences(
    project: Project, target: list[str], json: bool = False, markdown: bool = False, update: bool = False
) -> None:
    """Summarise the licences in an image, and name the parts under GPL, LGPL or AGPL."""
    from dataclasses import asdict

    from imagefactory.commands.show import tables, terminal
    from imagefactory.matrix.targets import select
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.attest.licence_record import update_licences
    from imagefactory.publish.attest.licence_summary import summarise

    options.at_most_one(json=json, markdown=markdown, update=update)
    if update:
        path, changed = update_licences(project, say)
        say(f"{path.relative_to(project.root)}: {'written' if changed else 'unchanged'}")
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
            terminal.out.print(tables.licences_table(summary))


@command(help={"target": ONE_TARGET})
def sbom(project: Project, target: str = "") -> None:
    """Print the SBOM of an image (CycloneDX), made from its locks."""
    from imagefactory.matrix.targets import select_one
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.attest.sbom import make_sbom

    cell = select_one(project.matrix, target)
    print(make_sbom(project, make_plan(project, cell)).decode())


@command(
    help={
        "image": "a pushed image, NAME:TAG or NAME@DIGEST",
        "target": ONE_TARGET,
        "key": "the private key to sign with (default: FACTORY_SIGNING_KEY, your own key, or the CI job's identity)",
    },
)
def attest(project: Project, image: str, target: str = "", key: str = "") -> None:
    """Attach an SBOM, provenance and a signature to a pushed image."""
    from imagefactory.matrix.targets import select_one
    from imagefactory.publish.attest.attachments import attest_pushed
    from imagefactory.publish.attest.signing import find_signer, signs_as_job

    if signs_as_job(key):
        need(project.root, "sign")
    cell = select_one(project.matrix, target)
    signer = find_signer(project, key)
    say(f"signed with {signer.name}" if signer else "not signed: there is no key and no identity")
    for digest in attest_pushed(project, cell, image, signer):
        print(digest)


@command(
    help={
        "private": "where to write the private key (default: your configuration folder)",
        "public": "where to write the public key (default: keys/signing.pub, which you commit)",
    }
)
def new(project: Project, private: str = "", public: str = "") -> None:
    """Create a key pair for signing images; FACTORY_SIGNING_PASSWORD encrypts the private key."""
    from imagefactory.environment.paths import expand_home
    from imagefactory.publish.attest.keys import default_key_path, new_key_pair
    from imagefactory.publish.attest.signing import TRUSTED

    secret = expand_home(private, "--private").absolute() if private else default_key_path()
    shown = expand_home(public, "--public").absolute() if public else project.root / TRUSTED / "signing.pub"
    new_key_pair(secret, shown)
    print(secret)
    print(shown)
