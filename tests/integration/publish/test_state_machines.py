"""Publish, roll back and prune in any order on a real registry, with crashes, faults and rivals at any request.

After each step: no tag names anything that is unsigned, untested, incomplete or held back; nothing that a tag or the
catalog reaches is deleted; no event, attachment or fixed tag is lost. Whatever was interrupted, the next run finishes.

FACTORY_TEST_EXAMPLES=400 makes 400 sequences at random instead of the few that are the same in every run.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from imagefactory.errors import FactoryError
from imagefactory.errors.publishing import (
    BeingPrunedError,
    NeverPublishedError,
    NotPromotableError,
    PromotionLostError,
)
from imagefactory.errors.registry import ContentMissingError, RepositoryMissingError
from imagefactory.locks.project import Project
from imagefactory.oci.registry import referrers, tag_writes
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.image_push import Pushable, Pushed, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.attest.attachments import STATEMENTS, attached_bundles
from imagefactory.publish.attest.bundles import MEDIA_TYPE, Bundle, Statement
from imagefactory.publish.attest.keys import new_key_pair, read_private_key
from imagefactory.publish.attest.signing import KeySigner, read_trusted
from imagefactory.publish.catalog import Catalog, Event
from imagefactory.publish.catalog_writes import read_catalog
from imagefactory.publish.history import astray
from imagefactory.publish.outcomes import Outcomes
from imagefactory.publish.promote import promote
from imagefactory.publish.prune import Policy, prune
from imagefactory.publish.rollback import rollback
from imagefactory.publish.smoke_records import attach_record, read_records
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import staging_tag
from imagefactory.store.digests import Digest
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.mishaps import (
    IMAGES,
    MISHAPS,
    RUNS,
    Calm,
    Crash,
    Faults,
    Mishap,
    Prune,
    Publish,
    Rival,
    RollBack,
    Run,
    WatchedWire,
    faults,
)
from tests.fixtures.publishing import REQUIRED, START, PowerCutError, Publisher, smoke_record
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_factory import CELL
from tests.fixtures.small_images import what_is_missing

MOVING = ("tiny-v1.0", "tiny", "latest")
EXAMPLES = int(os.environ.get("FACTORY_TEST_EXAMPLES", "0"))
REFUSALS = (NotPromotableError, NeverPublishedError, BeingPrunedError, RepositoryMissingError)
"""What a command may answer although nothing disturbs it."""


@dataclass
class World:
    """What all sequences share: a registry, a faulty way to it, and images."""

    registry: GuardedRegistry
    proxy: FaultProxy
    project: Project
    pushables: Sequence[tuple[Staged, Pushable]]
    signer: KeySigner
    signed: Sequence[Sequence[bytes]]
    """The signed statements about each image."""
    counts: Counter[str] = field(default_factory=Counter)

    def image(self, number: int) -> Staged:
        return self.pushables[number][0]


class Publishing(RuleBasedStateMachine):
    """One repository, from its first image on."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.calm = self.world.registry.repository()
        self.days = 0
        self.passed: dict[int, bool] = {}
        self.tested: dict[int, datetime] = {}
        self.attached: dict[Digest, set[Digest]] = {one.digest: set() for one, _ in self.world.pushables}
        self.events: dict[str, Event] = {}
        self.fixed: dict[str, Digest] = {}
        self.whole: set[Digest] = set()
        self.held: set[Digest] = set()
        self.interrupted = False

    def teardown(self) -> None:
        self.calm.connection.wire.close()

    # --- what is done ----------------------------------------------------------------------------

    @rule(run=RUNS, mishap=MISHAPS)
    def step(self, run: Run, mishap: Mishap) -> None:
        counts, proxy = self.world.counts, self.world.proxy
        counts["steps"] += 1
        counts[type(mishap).__name__] += 1
        runs = [run, mishap.run] if isinstance(mishap, Rival) else [run]
        with self.repository() as repository:
            end = self.disturbed(run, mishap, repository)
        proxy.choose = lambda _: None
        broken = end in ("crashed", "failed")
        counts[end] += 1
        self.interrupted |= broken
        self.check(runs)
        if broken and not (isinstance(mishap, Crash) and not mishap.resume):
            self.finish(run)

    def disturbed(self, run: Run, mishap: Mishap, repository: Repository) -> str:
        """Run a command while something happens; return how it ended."""
        wire = repository.connection.wire
        assert isinstance(wire, WatchedWire)
        match mishap:
            case Crash(after):
                wire.after, wire.then = after, self.power_cut
            case Rival(after, other):
                wire.after, wire.then = after, partial(self.rival, other)
            case Faults(seed, share):
                self.world.proxy.choose = faults(seed, share)
            case Calm():
                pass
        try:
            self.perform(run, repository)
        except PowerCutError:
            return "crashed"
        except (*REFUSALS, PromotionLostError):
            return "refused"
        except FactoryError as error:
            # A rival may have deleted what this run needs.
            deleted = isinstance(mishap, Rival) and isinstance(error, ContentMissingError)
            if deleted or isinstance(mishap, Faults):
                return "refused" if deleted else "failed"
            raise
        return "done"

    def power_cut(self) -> None:
        raise PowerCutError

    def rival(self, run: Run) -> None:
        with self.repository() as repository, suppress(*REFUSALS, PromotionLostError, ContentMissingError):
            self.perform(run, repository)

    def finish(self, run: Run) -> None:
        """Run an interrupted command again: it must get through, and leave nothing half done."""
        for _ in range(3):
            try:
                self.perform(run, self.calm)
            except PromotionLostError:  # a busy machine may be too slow for the window
                continue
            except REFUSALS:
                pass
            break
        self.check([run])
        catalog = read_catalog(self.calm).catalog
        if not isinstance(run, Prune):
            assert astray(self.calm, catalog, MOVING) == []
            self.interrupted = False
        else:
            assert catalog.doomed == ()

    def perform(self, run: Run, repository: Repository) -> None:
        match run:
            case Publish():
                self.publish(run, repository)
            case RollBack(number):
                to = "" if number is None else self.world.image(number).digest
                rollback(self.world.project, repository, CELL, to)
            case Prune(keep):
                moment = START + timedelta(days=10_000)
                prune(repository, Policy(keep=keep), delete=True, moment=moment)

    def publish(self, run: Publish, repository: Repository) -> None:
        """Take the steps of `invoke publish`."""
        world = self.world
        staged, pushable = world.pushables[run.number]
        push_image(repository, pushable, tag=staging_tag(staged.plan.key))
        if self.passed.get(run.number) != run.passes:  # a new result; otherwise the same record once more
            self.passed[run.number] = run.passes
            self.days += 1
            self.tested[run.number] = START + timedelta(days=self.days)
        failing = () if run.passes else ("serve",)
        started = self.tested[run.number]
        record = smoke_record(staged.digest, staged.plan.key, failing=failing, started=started)
        ours = self.attached[staged.digest]
        ours.add(attach_record(repository, record).digest)
        for bundle in world.signed[run.number]:
            payload = [Payload(MEDIA_TYPE, bundle)]
            ours.add(referrers.attach(repository, staged.pushed.descriptor, MEDIA_TYPE, payload).digest)
        moment = START + timedelta(days=self.days)
        outcomes, trust = Outcomes({CELL: staged}), world.signer.verifier
        outcome = promote(
            world.project, repository, outcomes, trust, nightly=True, again=run.again, moment=moment
        )
        for refusal in outcome.refused:
            raise refusal

    def repository(self) -> Repository:
        """Open the repository through the proxy."""
        name = self.calm.reference.repository
        repository = self.world.registry.repository(name, at=self.world.proxy.address)
        repository.connection.wire = WatchedWire(repository.reference)
        return repository

    # --- what must hold --------------------------------------------------------------------------

    def check(self, runs: Sequence[Run]) -> None:
        catalog = read_catalog(self.calm).catalog
        names = self.calm.tags() if self.calm.resolve("catalog") else []
        tags = {tag: self.calm.resolve(tag) for tag in names if not tag.startswith(("sha256-", "catalog"))}
        users = {tag: digest for tag, digest in tags.items() if not tag.startswith("staging-")}
        present = {
            one.digest for one, _ in self.world.pushables if self.calm.manifest(one.digest) is not None
        }
        reachable = {digest for digest in users.values() if digest} | {
            image.digest for image in catalog.images if any(e.image == image.digest for e in catalog.events)
        }
        reachable -= set(catalog.doomed) - set(self.pointed(catalog))
        for digest in self.attached:
            found = {item.digest for item in referrers.find(self.calm, digest)}
            if digest in reachable or not any(isinstance(run, Prune) for run in runs):
                assert self.attached[digest] <= found or digest not in present
            self.attached[digest] &= found
        for named in {*users.values(), *self.pointed(catalog)}:
            assert named is not None
            self.check_image(named)
        for tag in MOVING:
            pointer = catalog.pointer(tag)
            assert pointer is None or tags.get(tag) == pointer.digest or self.interrupted
        self.check_holds(catalog, runs)
        self.check_records(catalog, users)

    def check_holds(self, catalog: Catalog, runs: Sequence[Run]) -> None:
        """Check that an image that a rollback left came back only where somebody asked for that very image."""
        asked = {
            self.world.image(run.number).digest
            for run in runs
            if isinstance(run, RollBack | Publish) and run.number is not None
            if isinstance(run, RollBack) or run.again
        }
        for event in catalog.events:
            if event.id not in self.events:
                assert event.image not in self.held or event.image in asked
                self.held.discard(event.image)
                self.held |= {event.left} if event.left else set()

    def pointed(self, catalog: Catalog) -> list[Digest]:
        return [pointer.digest for tag in MOVING if (pointer := catalog.pointer(tag))]

    def check_image(self, digest: Digest) -> None:
        """Check that an image is there, complete, tested and signed."""
        if digest not in self.whole:  # nothing deletes blobs
            assert what_is_missing(self.calm, digest) == []
            self.whole.add(digest)
        assert self.calm.resolve(digest) == digest
        staged = next(one for one, _ in self.world.pushables if one.digest == digest)
        assert read_records(self.calm, digest, staged.plan.key) is not None
        signed = [
            statement.predicate_type
            for _, bundle in attached_bundles(self.calm, digest)
            if isinstance(bundle, Bundle)
            for statement, _ in [read_trusted(bundle, self.world.signer.verifier)]
            if statement.subject == digest
        ]
        assert sorted(signed) == sorted(STATEMENTS)

    def check_records(self, catalog: Catalog, users: dict[str, Digest | None]) -> None:
        """Check that no event and no fixed tag was lost, and that every image had passed when it got its tags."""
        ids = {event.id for event in catalog.events}
        promoted = {event.image for event in catalog.events if event.kind == "promote"}
        for identity, event in self.events.items():
            pruned = event.kind == "promote" and event.image not in promoted
            assert identity in ids or pruned
        for image in catalog.images:
            assert all(image.smoke.get(level) == "passed" for level in REQUIRED)
        for tag, digest in self.fixed.items():
            assert users.get(tag) in (digest, None)
            assert tag in users or digest not in promoted or digest in catalog.doomed
        self.fixed = {tag: digest for tag, digest in users.items() if digest and tag not in MOVING}
        self.events = {event.id: event for event in catalog.events}


@pytest.fixture
def world(
    publisher: Publisher,
    guarded_registry: GuardedRegistry,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    monkeypatch.setattr(tag_writes, "WINDOW_HERE", 0.1)
    pushables = []
    for number in range(IMAGES):
        publisher.change(1000 + number)
        [built] = publisher.factory.build()
        plan, image = built.plan, built.image
        descriptor = publisher.push()[0].pushed.descriptor
        staged = Staged(plan, image, Pushed(image.digest, descriptor, {}, 0))
        pushables.append((staged, Pushable.of_image(image, publisher.project.store.blob)))
    key = publisher.factory.folder / "key"
    new_key_pair(key, key.with_suffix(".pub"))
    signer = KeySigner(read_private_key(str(key)), "the test's")
    signed = [
        [signer.sign(Statement(kind, {}, staged.digest, "a test")) for kind in STATEMENTS]
        for staged, _ in pushables
    ]
    return World(guarded_registry, fault_proxy, publisher.project, pushables, signer, signed)


def test_publishing_survives_crashes_faults_and_rivals(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = type("Machine", (Publishing,), {"world": world})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 10,
            stateful_step_count=25,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            print_blob=False,
            phases=[Phase.generate],  # a failure comes with its steps; making them fewer takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    requests, injected = world.proxy.account.requests.total(), world.proxy.account.faults.total()
    told = ", ".join(f"{name.lower()} {count}" for name, count in sorted(world.counts.items()))
    with capsys.disabled():
        print(f"\n{requests} requests, {injected} faults; {told}")  # noqa: T201 - what was covered
    assert world.counts["steps"] >= 100
    assert min(world.counts[kind] for kind in ("Crash", "Rival", "Faults", "done", "refused")) > 0
    assert injected > 0
