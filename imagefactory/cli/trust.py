"""Commands about what is in images and who vouches for them: licences, SBOMs, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, plans_of, print_json, say, say_written, select, show

if TYPE_CHECKING:
    from imagefactory.project.project import Project


@command(update="instead, record the licences of newly locked files in locks/licences.toml")
def licences(
    project: Project, target: list[str], json: bool = False, markdown: bool = False, update: bool = False
) -> None:
    """Summarise the licences in an image, and name the parts under GPL, LGPL or AGPL."""
    from dataclasses import asdict

    from imagefactory.cli.show import tables
    from imagefactory.publish.attest.components import components_of, summarise_parts
    from imagefactory.publish.attest.licence_record import update_licences

    options.at_most_one(json=json, markdown=markdown, update=update)
    if update:
        path, changed = update_licences(project, say)
        say_written(project, path, changed=changed)
        return
    summaries = [summarise_parts(plan.target, components_of(project, plan)) for plan in plans_of(project, target)]
    if json:
        print_json([asdict(summary) for summary in summaries])
        return
    for summary in summaries:
        if markdown:
            print(tables.licences_markdown(summary))
        else:
            show(tables.licences_table(summary))


@command()
def sbom(project: Project, target: list[str]) -> None:
    """Print the SBOM of an image as CycloneDX, made from its locks; of several images, a list of their packages."""
    from imagefactory.plan.make import make_plan
    from imagefactory.publish.attest.sbom import make_sbom, package_list

    cells = select(project, target)
    if len(cells) == 1:
        print(make_sbom(project, make_plan(project, cells[0])).decode())
    else:
        print(package_list(project, filter(project.is_locked, cells)).decode())


@command(
    "keys",
    private="write the private key to this file (default: in your configuration folder)",
    public="write the public key to this file (default: keys/signing.pub, which you commit)",
)
def new(project: Project, private: str = "", public: str = "") -> None:
    """Create a key pair for signing images; FACTORY_SIGNING_PASSWORD encrypts the private key."""
    from imagefactory.publish.attest.keys import default_key_path, new_key_pair
    from imagefactory.publish.attest.signing import TRUSTED

    secret = options.path("--private", private) or default_key_path()
    shown = options.path("--public", public) or project.root / TRUSTED / "signing.pub"
    new_key_pair(secret, shown)
    print(secret)
    print(shown)
    say("The first is secret: keep a copy elsewhere. Commit the second: it says whose signatures count.")
