"""Rebuilds what was published, from the commit that its signed provenance names, and says what came out.

A rebuild runs the programs of another commit, so it happens without credentials. Another job, which builds nothing,
signs the results.
"""

import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from imagefactory.ci.pull_request import worktree
from imagefactory.ci.run_summary import cell, page, table
from imagefactory.errors import BuildError, FactoryError, RegistryError, TrustError, UsageError
from imagefactory.oci.registry.reference import is_digest
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.publish.attest import provenance
from imagefactory.publish.attest.attachments import attach_statement, attached_bundles, trusted_statements
from imagefactory.publish.attest.bundles import Statement
from imagefactory.publish.attest.image_check import Checked, check_image, refuse_failing
from imagefactory.publish.attest.rebuilds import PREDICATE_TYPE, Rebuild
from imagefactory.publish.attest.signing import Signer, Verifier
from imagefactory.publish.image_contents import images_of
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tags import short_digest
from imagefactory.store.digests import Digest
from imagefactory.store.progress import Say

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_\w+|PYTHON\w+|PIP_\w+|UV_\w+|FACTORY_DEBIAN_\w+"
    r"|FACTORY_GIT_HOST|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|(HTTPS?|ALL|NO)_PROXY",
    re.IGNORECASE,
)
"""Variables that a build needs. Another commit's programs get no others: no list of secrets would be complete."""
_SECRET = re.compile(r"TOKEN|KEY|PASSW|SECRET|CREDENTIAL|AUTH", re.IGNORECASE)
"""What even those may be named that hold a secret."""


@dataclass(frozen=True)
class Rebuilds:
    """The images that were built again, and those that could not be, with the reasons."""

    done: tuple[Rebuild, ...]
    failed: dict[str, str]

    def to_json(self) -> str:
        return json.dumps([asdict(rebuild) for rebuild in self.done], indent=2) + "\n"

    def markdown(self) -> str:
        rows = [
            (f"`{one.target}`", f"`{short_digest(one.image)}`", one.outcome, f"`{one.commit[:12]}`")
            for one in self.done
        ]
        for name, why in self.failed.items():
            rows.append(("", f"`{name}`", cell(f"could not be rebuilt: {why}"), ""))
        return page("Rebuilds", table("target | image | outcome | commit", rows))

    def refuse_differences(self) -> None:
        """Raise if an image came out differently, or could not be built again."""
        other = [one for one in self.done if one.rebuilt != one.image]
        if not other and not self.failed:
            return
        reasons = [f"{one.target}: {one.commit} gives {one.rebuilt}, published is {one.image}" for one in other]
        raise TrustError(
            "rebuild-differs",
            f"{len(other) + len(self.failed)} of {len(self.done) + len(self.failed)} images were not confirmed.",
            where=", ".join([*(one.image for one in other), *self.failed]),
            why="; ".join([*reasons, *self.failed.values()]),
            fix="Compare the images (`./inv diff`), and tell the publisher: the build is not reproducible, or "
            "the image is not from its commit.",
        )


def rebuild_published(
    project: Project, repository: Repository, trust: Verifier, say: Say, *, tags: Collection[str] = ()
) -> Rebuilds:
    """Rebuild the images that moving tags name in the registry (default: all moving tags), each once."""
    done: list[Rebuild] = []
    failed: dict[str, str] = {}
    digests: dict[Digest, None] = {}
    for tag in sorted(tags or read_catalog(repository).catalog.moving_tags()):
        try:
            images = images_of(repository, repository.require_manifest(tag))
            digests.update({image.digest: None for image, _ in images})
        except FactoryError as error:
            failed[tag] = f"{error.what} {error.why}"
    if not digests and not failed:
        raise UsageError(
            "never-published",
            "There is nothing to rebuild.",
            where=repository.reference.name,
            why="The catalog has no moving tag.",
            fix="Name the repository with the images (--image), or a tag (--tag).",
        )
    with project.store.scratch() as scratch:
        for digest in digests:
            try:
                with Repository.open(repository.reference.at(digest)) as pinned:
                    [checked] = check_image(project, pinned, trust, say)
                # Nobody else's word counts for the commit to build, and none before this one.
                findings = tuple(finding for finding in checked.findings if finding.check != "rebuilds")
                refuse_failing(replace(checked, findings=findings))
                done.append(_rebuild(project, checked, scratch, say))
            except FactoryError as error:
                failed[digest] = f"{error.what} {error.why}"
                say(f"{short_digest(digest)}: {failed[digest]}")
    return Rebuilds(tuple(done), failed)


def _rebuild(project: Project, checked: Checked, scratch: Path, say: Say) -> Rebuild:
    """Build a published image again with the programs, matrix and locks of its commit."""
    commit = _fetch(project, checked)
    target = f"{checked.cell}/{checked.cell.machine}" if checked.cell else ""
    say(f"rebuilding {target} from {commit}")
    with worktree(project.root, commit) as checkout:
        # The record says what should come out; without it nothing can be taken from there.
        (checkout / "locks" / "layers.toml").unlink(missing_ok=True)
        (scratch / "build").mkdir(exist_ok=True)
        (checkout / "build").symlink_to(scratch / "build")  # beside the cache, whose layers it links to
        command = [str(checkout / "inv"), "build", "--target", target]
        where = passed_on(os.environ) | {"FACTORY_CACHE": str(scratch / "cache")}
        try:
            done = subprocess.run(  # noqa: S603 - the program of a commit that the publisher signed
                command, cwd=checkout, env=where, capture_output=True, text=True, check=False
            )
            result, said = (done.stdout.split() or [""])[-1], done.stderr
        except OSError as error:
            result, said = "", f"{error}"
    if is_digest(result) and not done.returncode:
        return Rebuild(checked.digest, Digest(result), target, commit)
    told = re.search(r"^  why: +(.+)", said, re.MULTILINE)
    why = told[1] if told else (said.strip().splitlines() or ["It printed no digest."])[-1]
    fix = "Check the commit out and run `./inv build` there."
    raise _failed(f"{target} could not be rebuilt.", f"commit {commit}", why, fix)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the programs of another commit get of an environment."""
    return {name: value for name, value in environment.items() if _NEEDED.fullmatch(name) and not _SECRET.search(name)}


def _fetch(project: Project, checked: Checked) -> str:
    """Return the commit that an image was built from, after fetching it if this clone does not have it."""
    commit = checked.commit or ""
    why = f"Its provenance names {f'the commit {commit}' if commit else 'no commit'}."
    if _COMMIT.fullmatch(commit):
        git = ["git", "-C", str(project.root)]
        unattended = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}  # GitHub asks for a password where nothing is
        fetch = [*git, "fetch", "--quiet", "--depth=1", project.matrix.source, commit]
        for command in ([*git, "cat-file", "-e", f"{commit}^{{commit}}"], fetch):
            done = subprocess.run(  # noqa: S603 - a commit is 40 or 64 hex digits
                command, env=unattended, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return commit
            why = (done.stderr.strip().splitlines() or [why])[-1]
    fix = f"Fetch it from {project.matrix.source}, or ask the publisher for it."
    raise _failed("The commit of an image is not available.", checked.reference, why, fix)


def _failed(what: str, where: Path | str, why: str, fix: str) -> BuildError:
    return BuildError("run-failed", what, where=where, why=why, fix=fix)


def read_rebuilds(path: Path) -> list[Rebuild]:
    try:
        found = [Rebuild(**entry) for entry in json.loads(path.read_text("utf-8"))]
        wrong = [one for one in found if not (is_digest(one.image) and is_digest(one.rebuilt))]
        if not wrong:
            return found
        why = f"{wrong[0]} has no digest."
    except (OSError, ValueError, TypeError) as error:
        why = f"{error}"
    raise _failed("The results of rebuilds cannot be read.", path, why, "Run `./inv rebuilds.check` to write them.")


def attach_rebuilds(
    project: Project, repository: Repository, own: Repository, results: Iterable[Rebuild], signer: Signer
) -> list[tuple[Rebuild, str]]:
    """Sign results and attach them to the images, or in a repository of one's own; return where each is."""
    run = provenance.read_run(project.matrix.source)
    attached: list[tuple[Rebuild, str]] = []
    for result in results:
        statement = result.statement(repository.reference.name, run)
        try:
            place = _attach(repository, repository, statement, signer)
        except RegistryError as error:
            denied = error.name in {"access-denied", "credentials-refused"}
            if not denied or own.reference.name == repository.reference.name:
                raise
            place = _attach(repository, own, statement, signer)
        attached.append((result, place))
    return attached


def _attach(repository: Repository, place: Repository, statement: Statement, signer: Signer) -> str:
    """Attach a statement, unless this signer said the same before."""
    there = attached_bundles(place, statement.subject)
    for digest, said in trusted_statements(there, signer.verifier):
        about = (said.predicate_type, said.subject, said.predicate.get("rebuilt"))
        if about == (PREDICATE_TYPE, statement.subject, statement.predicate["rebuilt"]):
            return str(place.reference.at(digest))
    subject = repository.require_manifest(statement.subject).descriptor()
    return str(place.reference.at(attach_statement(place, subject, statement, signer)))
