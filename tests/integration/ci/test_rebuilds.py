"""Independent rebuilds: others build a published image again, say so, and are counted."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import pytest

from imagefactory.ci.rebuilding import Rebuilds, attach_rebuilds, rebuild_published
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest.attachments import attach_all
from imagefactory.publish.attest.image_check import Checked, Finding, check_image, refuse_failing
from imagefactory.publish.attest.keys import default_key_path, new_key_pair, read_private_key
from imagefactory.publish.attest.rebuilds import Rebuild
from imagefactory.publish.attest.signing import KeySigner, Signer, Verifier, find_trust
from imagefactory.publish.staging import Staged
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import commit_all, git
from tests.fixtures.inv import check_failure
from tests.fixtures.local_sigstore import Job, JobSigner, LocalSigstore
from tests.fixtures.platforms import PLATFORM, machine_of
from tests.fixtures.publishing import Publisher
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.servers import Answer, scripted
from tests.fixtures.small_factory import CELL

OTHER = Digest(f"sha256:{'2' * 64}")
TARGET = f"{CELL}/{machine_of(PLATFORM)}"


@dataclass
class PublishedCommit:
    """An image that was published from a commit, signed with the publisher's key."""

    publisher: Publisher
    staged: Staged
    commit: str
    keys: Path

    @property
    def root(self) -> Path:
        return self.publisher.factory.root

    @property
    def result(self) -> Rebuild:
        return Rebuild(self.staged.digest, self.staged.digest, TARGET, self.commit)

    @property
    def trust(self) -> Verifier:
        return find_trust(self.publisher.project)

    def signer(self, name: str) -> KeySigner:
        """Return the signer of a name; the key is new unless the name is known."""
        key = self.keys / f"{name}.key"
        if not key.exists():
            new_key_pair(key, self.root / "rebuilders" / f"{name}.pub")
        return KeySigner(read_private_key(str(key)), name)

    def trust_rebuilders(self, rebuilders: Mapping[str, Mapping[str, str]]) -> None:
        written = json.dumps(rebuilders)
        self.publisher.factory.edit_matrix("\ndefaults:", f"\nrebuilders: {written}\ndefaults:")

    def rebuild(self) -> Rebuilds:
        say = self.publisher.factory.said.append
        return rebuild_published(self.publisher.project, self.publisher.repository, self.trust, say)

    def attach(self, signer: Signer | JobSigner, **changes: Digest) -> str:
        """Attach a signer's result, with changes."""
        repository, result = self.publisher.repository, replace(self.result, **changes)
        [(_, place)] = attach_rebuilds(
            self.publisher.project,
            repository,
            repository,
            [result],
            signer,  # type: ignore[arg-type]
        )
        return place

    def check(self, least: int = 0) -> Checked:
        reference = self.publisher.repository.reference.at(self.staged.digest)
        with Repository.open(reference) as repository:
            project, say = self.publisher.project, self.publisher.factory.said.append
            [checked] = check_image(project, repository, self.trust, say, rebuilders=least)
        return checked


def rebuilds(checked: Checked) -> Finding:
    [finding] = [finding for finding in checked.findings if finding.check == "rebuilds"]
    return finding


@pytest.fixture
def published(publisher: Publisher, tmp_path: Path) -> PublishedCommit:
    """Publish an image from a commit, and then change the checkout so that it plans another one."""
    root, keys = publisher.factory.root, tmp_path / "keys"
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m invoke --search-root "$(dirname "$0")" "$@"\n'
    (root / "inv").write_text(program)
    (root / "inv").chmod(0o755)
    (root / ".gitignore").write_text("/build/\n__pycache__/\n")
    [staged] = publisher.push()
    record = publisher.project.known_layers
    right = record.read_text()
    record.write_text(right.replace(staged.image.layers[-1].digest, OTHER))  # a rebuild must not believe it
    commit = commit_all(root)
    record.write_text(right)
    publisher.vouch(staged)
    assert publisher.promote().refused == []
    publisher.change(64)
    return PublishedCommit(publisher, staged, commit, keys)


def test_an_image_is_rebuilt_from_the_commit_in_its_provenance(published: PublishedCommit) -> None:
    done = published.rebuild()
    assert done == Rebuilds((published.result,), {})
    done.refuse_differences()
    assert git(published.root, "worktree", "list", "--porcelain").count("worktree ") == 1
    # Publish and sign an image from changes that were never committed.
    other = published.publisher.push_tested()
    assert published.publisher.promote().refused == []
    done = published.rebuild()
    assert done.done == (replace(published.result, image=other.digest),)
    assert done.done[0].outcome == "other digest"
    with raises("rebuild-differs", match=f"{published.commit} gives {published.staged.digest}"):
        done.refuse_differences()


def test_rebuilders_are_counted_by_name_and_who_got_another_digest_is_heard(
    published: PublishedCommit,
) -> None:
    one, two = published.signer("one"), published.signer("two")
    published.trust_rebuilders({name: {"key": f"rebuilders/{name}.pub"} for name in ("one", "two")})
    assert rebuilds(published.check()).state == "not checked"
    first = published.attach(one)
    assert published.attach(one) == first
    with raises("rebuild-differs", match=r"rebuilt by 1 other, same digest: one .*2 are required"):
        refuse_failing(published.check(2))
    published.attach(two)
    finding = rebuilds(published.check(2))
    assert finding.state == "ok"
    assert finding.detail.startswith("rebuilt by 2 others, same digest: one (key ")
    assert "two (key " in finding.detail
    refuse_failing(published.check(2))
    published.attach(one, rebuilt=OTHER)
    finding = rebuilds(published.check())
    assert (finding.state, "another digest: one" in finding.detail) == ("failed", True)
    with raises("rebuild-differs"):
        refuse_failing(published.check())


def test_strangers_and_the_publisher_are_not_counted(published: PublishedCommit) -> None:
    published.signer("one")
    published.trust_rebuilders({"one": {"key": "rebuilders/one.pub"}, "itself": {"key": "keys/signing.pub"}})
    published.attach(published.publisher.signer)
    published.attach(published.signer("stranger"), rebuilt=OTHER)
    checked = published.check()
    assert rebuilds(checked).state == "not checked"
    uncounted = [finding.detail for finding in checked.findings if finding.state == "not counted"]
    assert len(uncounted) == 2
    assert any("signed by the publisher" in detail for detail in uncounted)
    assert any("signed with another key" in detail for detail in uncounted)


def test_a_rebuilder_cannot_publish(published: PublishedCommit) -> None:
    """Sign all of an image's statements with the key of a rebuilder: they are not the publisher's."""
    one = published.signer("one")
    published.trust_rebuilders({"one": {"key": "rebuilders/one.pub"}})
    [staged] = published.publisher.push()
    publisher = published.publisher
    attach_all(publisher.repository, publisher.project, staged.plan, staged.pushed.descriptor, one)
    published.staged = staged
    published.attach(one)
    checked = published.check()
    assert rebuilds(checked).state == "ok"
    with raises("no-trusted-signature"):
        refuse_failing(checked)


def test_statements_can_be_in_a_registry_of_ones_own_and_one_that_fails_is_named(
    published: PublishedCommit, guarded_registry: GuardedRegistry
) -> None:
    one, project = published.signer("one"), published.publisher.project
    name = published.publisher.repository.reference.repository
    with (
        guarded_registry.repository(name, "reader") as theirs,
        guarded_registry.repository() as own,
        scripted(lambda _: Answer(status=HTTPStatus.FORBIDDEN)) as failing,
    ):
        [(_, place)] = attach_rebuilds(project, theirs, own, [published.result], one)
        assert place.startswith(own.reference.name)
        with raises("access-denied"):
            attach_rebuilds(project, theirs, theirs, [published.result], one)
        gone = f"{failing.address}/two/own"
        published.signer("two")
        places = {"one": own.reference.name, "two": gone}
        published.trust_rebuilders(
            {name: {"key": f"rebuilders/{name}.pub", "statements": at} for name, at in places.items()}
        )
        checked = published.check()
    assert rebuilds(checked).state == "ok"
    assert any(gone in finding.detail for finding in checked.findings)


def test_workflows_of_other_repositories_are_counted_once_each(
    published: PublishedCommit, sigstore: LocalSigstore
) -> None:
    workflow = ".github/workflows/rebuild.yml"
    fork = Job("https://git.example/fork", workflow)
    jobs = {"fork": fork, "again": replace(fork, ref="refs/heads/next"), "own": Job(workflow=workflow)}
    published.trust_rebuilders({name: {"identity": job.identity} for name, job in jobs.items()})
    for job in jobs.values():
        published.attach(JobSigner(sigstore, job))
    checked = published.check()
    assert rebuilds(checked).detail == f"rebuilt by 1 other, same digest: fork (identity {fork.identity})"
    assert [finding.state for finding in checked.findings].count("not counted") == 2


def test_an_image_that_nobody_signed_is_not_rebuilt(published: PublishedCommit) -> None:
    key = published.root / "keys" / "signing.pub"
    aside = key.rename(key.with_suffix(".aside"))
    done = published.rebuild()
    assert done.done == ()
    assert "not signed by anybody who is trusted" in done.failed[published.staged.digest]
    with raises("rebuild-differs", match="1 of 1 images were not confirmed"):
        done.refuse_differences()
    aside.rename(key)
    # A tag that was moved by hand is followed: users get its image, whatever the catalog says.
    [other] = published.publisher.push()
    repository = published.publisher.repository
    repository.put_manifest(other.image.manifest, MANIFEST_TYPE, "latest")
    done = rebuild_published(
        published.publisher.project, repository, published.trust, print, tags=["latest", "missing"]
    )
    assert done.done == ()
    assert "does not have that content" in done.failed["missing"]
    assert "Nobody signed the image" in done.failed[other.digest]
    with raises("rebuild-differs", match="2 of 2"):
        done.refuse_differences()


def test_an_empty_repository_confirms_nothing(publisher: Publisher) -> None:
    project = publisher.project
    publisher.push()
    with raises("never-published", match="nothing to rebuild"):
        rebuild_published(project, publisher.repository, find_trust(project), print)


def test_the_commands_rebuild_attest_and_count(published: PublishedCommit) -> None:
    image = published.publisher.repository.reference
    published.signer("one")
    published.trust_rebuilders({"one": {"key": "rebuilders/one.pub"}})
    done = published.publisher.invoke("rebuilds.check", "--image", image.name)
    assert done.returncode == 0, done.stderr
    assert "same digest" in done.stdout
    attest = ("rebuilds.attest", "--image", image.name)
    default_key_path().unlink()
    assert "nothing to sign with" in check_failure(published.publisher.invoke(*attest))
    done = published.publisher.invoke(*attest, FACTORY_SIGNING_KEY=str(published.keys / "one.key"))
    assert done.stdout.startswith(f"{TARGET} same digest {image.name}@sha256:"), done.stderr
    verify = ("verify", "--image", str(image.at(published.staged.digest)), "--rebuilders")
    done = published.publisher.invoke(*verify, "1")
    assert done.returncode == 0, done.stderr
    assert "rebuilt by 1 other, same digest: one (key " in done.stderr
    check_failure(published.publisher.invoke(*verify, "2"), "rebuild-differs")
