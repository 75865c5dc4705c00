"""Commands for independent rebuilds: build again what others published, and say publicly what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagefactory.cli import options, workflow
from imagefactory.cli.command import command, find_signer, need, say
from imagefactory.errors import TrustError

if TYPE_CHECKING:
    from imagefactory.project.project import Project

_RESULTS = "build/rebuilds.json"
_IMAGE = "the repository with the images (default: `registry` of matrix.yaml)"


@command(
    help={
        "image": _IMAGE,
        "tag": "only what this moving tag names; repeatable (default: all moving tags)",
        "key": "a public key of the publisher to trust; repeatable (default: keys/*.pub)",
        "results": f"write the results to this file (default: {_RESULTS})",
    }
)
def check(project: Project, tag: list[str], key: list[str], image: str = "", results: str = "") -> None:
    """Rebuild published images from the commits in their signed provenance, and compare the digests."""
    from imagefactory.ci.rebuilding import rebuild_published
    from imagefactory.oci.registry.repository import Repository
    from imagefactory.publish.attest.signing import find_trust

    place = options.new_file("--results", results) if results else project.root / _RESULTS
    if not key:
        need(project.root, "sign")  # a workflow may have signed them
    with Repository.open(image or project.matrix.registry) as repository:
        done = rebuild_published(project, repository, find_trust(project, key), say, tags=tag)
    place.parent.mkdir(exist_ok=True)
    place.write_text(done.to_json(), "utf-8")
    workflow.print_summary(done.markdown())
    done.refuse_differences()


@command(
    help={
        "image": _IMAGE,
        "to": "your own repository, for the statements if you may not write to that one (default: FACTORY_REGISTRY)",
        "results": f"the results of `rebuilds.check` (default: {_RESULTS})",
        "key": options.SIGNING_KEY,
    }
)
def attest(project: Project, image: str = "", to: str = "", results: str = "", key: str = "") -> None:
    """Sign the results of rebuilds, and attach them to the images or to a repository of your own."""
    from imagefactory.ci.rebuilding import attach_rebuilds, read_rebuilds
    from imagefactory.oci.registry.repository import Repository

    found = read_rebuilds(
        options.existing("--results", results or str(project.root / _RESULTS), folder=False)
    )
    signer = find_signer(project, key, publisher=False)
    if signer is None:
        raise TrustError(
            "cannot-sign",
            "There is nothing to sign with.",
            where="the --key option",
            why="A statement about a rebuild counts only if it is signed.",
            fix="Make a key with `./inv keys.new`, or run in a GitHub job with `permissions: id-token: write`.",
        )
    own = to or project.matrix.effective_registry
    with (
        Repository.open(image or project.matrix.registry) as repository,
        Repository.open(own) as other,
    ):
        for rebuild, place in attach_rebuilds(project, repository, other, found, signer):
            print(f"{rebuild.target} {rebuild.outcome} {place}")
