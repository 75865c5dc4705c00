"""Pruning: deletes what no kept tag reaches. Published images stay unless a policy says otherwise.

It begins with an inventory of what may have to go: published images that a policy lets go, tags that the catalog does
not explain, indexes and catalogs that others replaced. An index keeps its images. An image keeps what refers to it, and
the `sha256-...` tag that lists these referrers where the registry does not. Pruning by tags alone would break all of
this. Images that stay are not looked at: the number of requests depends on what goes, not on what was ever published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cached_property, partial
from typing import Literal, get_args

from imagefactory.errors import UsageError
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.image_push import PARALLEL
from imagefactory.oci.registry.reference import Descriptor, is_digest
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.publish.catalog import Catalog, now
from imagefactory.publish.github import GitHubPackages
from imagefactory.publish.stored_catalog import CATALOG_TYPE, PREVIOUS, Snapshot, race_lost, read_catalog, write_catalog
from imagefactory.publish.tags import STAGING, nightly_date, staging_tag
from imagefactory.store.digests import Digest
from imagefactory.store.progress import count

_SETTLED = timedelta(days=1)
"""A manifest without a tag that is younger may belong to a push that is still running."""
ManifestKind = Literal["catalog", "index", "image", "list", "attached"]
KINDS: tuple[ManifestKind, ...] = get_args(ManifestKind)
"""In the order of deletion: whatever can still be found is complete."""
_ABOUT = re.compile(r"sha256-([0-9a-f]{64})(\..+)?")
"""The list of referrers of a registry without their API, and cosign's older `sha256-HEX.sig` and `.att`."""


def subject_of(tag: str) -> Digest | None:
    """Return the manifest that a tag exists for, if it is a list of referrers or a signature."""
    match = _ABOUT.fullmatch(tag)
    return Digest(f"sha256:{match[1]}") if match else None


@dataclass(frozen=True, slots=True)
class Examined:
    """What matters of a manifest."""

    descriptor: Descriptor
    """As a list of referrers has it."""
    is_index: bool
    needs: tuple[Digest, ...]
    """The images of an index."""
    subject: Digest | None
    size: int
    """The bytes that it refers to."""

    @classmethod
    def find(cls, repository: Repository, name: str) -> Examined | None:
        manifest = repository.manifest(name)
        if manifest is None:
            return None
        try:
            document = manifest.document()
            kind, subject = document.get("artifactType"), document.get("subject")
            notes = document.get("annotations", {}) if kind else {}
            return cls(
                replace(manifest.descriptor(), artifact_type=kind, annotations=notes),
                "manifests" in document,
                tuple(Descriptor.of(child).digest for child in document.get("manifests", ())),
                Descriptor.of(subject).digest if subject else None,
                sum(int(layer["size"]) for layer in document.get("layers", ())),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            where = f"{repository.reference.name}@{manifest.digest}"
            raise repository.error("unusable", where, f"It is no manifest ({type(error).__name__}).") from None

    @property
    def predecessor(self) -> tuple[Digest, ...]:
        """The catalog that a catalog replaced, if any."""
        previous = str(self.descriptor.annotations.get(PREVIOUS))
        return (Digest(previous),) if is_digest(previous) else ()


@dataclass
class Inventory:
    """What was looked at in a repository, and the published images that stay without a look."""

    snapshot: Snapshot
    kept: set[Digest]
    tags: dict[str, Digest] = field(default_factory=dict)
    manifests: dict[Digest, Examined] = field(default_factory=dict)
    referrers: dict[Digest, list[Digest]] = field(default_factory=dict)
    """Manifest -> what is attached to it, by its list of referrers."""

    @property
    def existing(self) -> set[Digest]:
        """The manifests that the repository has, as far as is known."""
        return self.kept | self.manifests.keys()

    @cached_property
    def unlisted(self) -> dict[Digest, list[Digest]]:
        """Manifest -> what says that it is attached to it, but was lost from the list."""
        lost: dict[Digest, list[Digest]] = {}
        for digest, manifest in self.manifests.items():
            subject = manifest.subject
            if subject and digest not in self.referrers.get(subject, ()):
                lost.setdefault(subject, []).append(digest)
        return lost

    @cached_property
    def tags_on(self) -> dict[Digest, list[str]]:
        """Manifest -> the tags that point at it."""
        names: dict[Digest, list[str]] = {}
        for tag in sorted(self.tags):
            names.setdefault(self.tags[tag], []).append(tag)
        return names

    def reach(self, roots: Iterable[Digest]) -> set[Digest]:
        """List manifests and what they keep alive: the images of an index, the attachments of an image."""
        lists: dict[Digest, list[Digest]] = {}
        for tag, listed in self.tags.items():
            subject = subject_of(tag)
            if subject:
                lists.setdefault(subject, []).append(listed)
        reached: set[Digest] = set()
        waiting = list(roots)
        while waiting:
            digest = waiting.pop()
            if digest not in reached:
                reached.add(digest)
                for parts in (self.referrers, lists, self.unlisted):
                    waiting.extend(parts.get(digest, ()))
                if digest in self.manifests:
                    waiting.extend(self.manifests[digest].needs)
        return reached

    def kind(self, digest: Digest) -> ManifestKind:
        manifest = self.manifests[digest]
        if manifest.descriptor.artifact_type == CATALOG_TYPE:
            return "catalog"
        if any(map(subject_of, self.tags_on.get(digest, ()))):
            return "list"
        if manifest.is_index:
            return "index"
        return "attached" if manifest.subject else "image"

    def age(self, digest: Digest, moment: datetime) -> timedelta | None:
        """Return how long ago something was last attached to an image, which has no date itself; None if unknown."""
        attached = [
            self.manifests[artifact] for artifact in self.referrers.get(digest, ()) if artifact in self.manifests
        ]
        dates = [str(manifest.descriptor.annotations.get(referrers.CREATED, "")) for manifest in attached]
        with suppress(ValueError, TypeError):  # no date, or one without a time zone
            return moment - datetime.fromisoformat(max(dates, default=""))
        return None


def take_inventory(
    repository: Repository, policy: Policy, moment: datetime, uploaded: Mapping[Digest, datetime]
) -> Inventory:
    """Examine what may have to go; `uploaded` are manifests without a tag, with the times of their uploads."""
    snapshot = read_catalog(repository)
    catalog = snapshot.catalog
    names = set(repository.tags())
    # Where the tag is gone that never goes, the image may be.
    loose = outdated(catalog, policy, moment) | {image.digest for image in catalog.images if image.tag not in names}
    inventory = Inventory(snapshot, catalog.known.keys() - loose)
    owners = fixed_tags(catalog)
    inventory.tags = {tag: owners[tag] for tag in names & owners.keys() if owners[tag] in loose}
    unexplained = sorted(tag for tag in names - owners.keys() if subject_of(tag) not in inventory.kept)
    has_api = snapshot.digest is None or referrers.has_api(repository, snapshot.digest)
    waiting = {*loose, *catalog.indexes(), *catalog.deleting}
    # What was uploaded just now may be about to get a tag; what is older, an earlier prune has seen.
    until, since = moment - _SETTLED, catalog.swept
    waiting |= {digest for digest, time in uploaded.items() if time < until and (since is None or time > since)}
    with ThreadPoolExecutor(PARALLEL) as pool:

        def look(names: list[str] | list[Digest]) -> dict[str, Digest]:
            looked = zip(names, pool.map(partial(Examined.find, repository), names), strict=True)
            # Where there is none, it was deleted this very moment.
            manifests = {name: manifest for name, manifest in looked if manifest}
            inventory.manifests |= {manifest.descriptor.digest: manifest for manifest in manifests.values()}
            return {name: manifest.descriptor.digest for name, manifest in manifests.items()}

        tagged = look(unexplained)
        inventory.tags |= tagged
        new = [digest for digest in tagged.values() if digest not in inventory.kept]
        seen: set[Digest] = set()
        while new or waiting:
            seen |= waiting
            new += look(sorted(waiting - inventory.manifests.keys())).values()
            examined = [inventory.manifests[digest] for digest in new]
            about = {
                *new,
                *(manifest.subject for manifest in examined if manifest.subject),
            } - inventory.referrers.keys()
            listed = [subject for subject in about if has_api or referrers.fallback_tag(subject) in names]
            lists = pool.map(partial(referrers.find, repository), listed)
            inventory.referrers |= {subject: [] for subject in about} | {
                subject: [artifact.digest for artifact in attached]
                for subject, attached in zip(listed, lists, strict=True)
            }
            waiting = {digest for manifest in examined for digest in (*manifest.needs, *manifest.predecessor)}
            waiting |= {artifact for digest in new for artifact in inventory.referrers[digest]}
            handled = (seen, inventory.kept, inventory.manifests)
            waiting = {digest for digest in waiting if not any(digest in group for group in handled)}
            new = []
    return inventory


def fixed_tags(catalog: Catalog) -> dict[str, Digest]:
    """Map the tags that belong to published images for ever to these images."""
    staged = {staging_tag(image.plan_key): image.digest for image in catalog.images}
    return {tag: digest for tag, digest in (staged | catalog.owners).items() if digest in catalog.known}


@dataclass(frozen=True)
class Policy:
    """What to keep besides everything that tags in use reach."""

    staging_days: float = 14
    """Days that an image stays that was pushed but never promoted."""
    nightly_days: float | None = None
    """Days that nightlies stay; None for ever."""
    keep: int | None = None
    """How many of the newest published images of each target stay; None for all."""
    most: int | None = None
    """How many manifests may go at once; None for any number."""


@dataclass(frozen=True)
class Deletion:
    """A manifest that nothing kept reaches."""

    digest: Digest
    kind: ManifestKind
    tags: tuple[str, ...]
    size: int
    """The bytes it refers to. Some may be shared with what stays."""


@dataclass(frozen=True)
class Pruning:
    """What goes and what stays."""

    deletions: tuple[Deletion, ...]
    kept: int
    undated: tuple[str, ...]
    """Staging tags that stay because their age is unknown."""
    forgotten: tuple[Digest, ...]
    """Images in the catalog that are gone, or about to go."""

    @property
    def announced(self) -> set[Digest]:
        """What goes, or is gone, and might get a tag otherwise: somebody may be pushing it again."""
        return {deletion.digest for deletion in self.deletions if deletion.kind != "catalog"} | {*self.forgotten}


def outdated(catalog: Catalog, policy: Policy, moment: datetime) -> set[Digest]:
    """List the published images that no moving tag names, and that the policy lets go."""
    in_use = {digest for pointer in catalog.pointers() for digest in pointer.images.values()}
    nights: dict[Digest, date] = {}
    for event in catalog.events:
        for day in filter(None, map(nightly_date, event.named)):
            nights[event.image] = max(day, nights.get(event.image, day))
    newer: Counter[Cell] = Counter()
    promoted = [event.image for event in reversed(catalog.events) if event.kind == "promote"]
    going: set[Digest] = set()
    for digest in dict.fromkeys([*promoted, *catalog.known]):  # the newest first
        image = catalog.image(digest)
        if image is None:
            continue
        # What was never a nightly gets a negative age, and so is never too old.
        days = (moment.date() - nights.get(digest, date.max)).days
        old = policy.nightly_days is not None and days > policy.nightly_days
        if digest not in in_use and (old or (policy.keep is not None and newer[image.cell] >= policy.keep)):
            going.add(digest)
        newer[image.cell] += 1
    return going


def plan_pruning(inventory: Inventory, policy: Policy, moment: datetime) -> Pruning:
    catalog = inventory.snapshot.catalog
    old, owners = outdated(catalog, policy, moment), fixed_tags(catalog)
    undated: list[str] = []
    roots = inventory.kept | {pointer.digest for pointer in catalog.pointers()}
    roots |= {digest for digest in catalog.known if digest in inventory.manifests and digest not in old}
    for tag, digest in inventory.tags.items():
        if subject_of(tag):
            continue  # stays or goes with what it is about
        if catalog.image(digest) and (tag.startswith(STAGING) or owners.get(tag) == digest):
            continue  # stays or goes with its image
        if tag.startswith(STAGING):
            age = inventory.age(digest, moment)
            if age is None:
                undated.append(tag)
            if age is not None and age > timedelta(days=policy.staging_days):
                continue
        roots.add(digest)
    newest = inventory.snapshot.digest
    if newest:  # and its predecessor, in case somebody has to go back to it
        roots |= {newest, *inventory.manifests[newest].predecessor}
    kept, existing = inventory.reach(roots), inventory.existing
    deletions = [
        Deletion(digest, inventory.kind(digest), tuple(inventory.tags_on.get(digest, ())), manifest.size)
        for digest, manifest in inventory.manifests.items()
        if digest not in kept
    ]
    stays = existing - {deletion.digest for deletion in deletions}
    return Pruning(
        deletions=tuple(
            sorted(deletions, key=lambda deletion: (KINDS.index(deletion.kind), deletion.tags, deletion.digest))
        ),
        kept=len(kept & existing),
        undated=tuple(sorted(undated)),
        forgotten=tuple(image.digest for image in catalog.images if image.digest not in stays),
    )


def prune(repository: Repository, policy: Policy, *, delete: bool = False, moment: datetime | None = None) -> Pruning:
    """Find what no kept tag reaches, and delete it if asked to."""
    moment = moment or now()
    packages = GitHubPackages.of(repository.reference)
    remove = packages.delete if packages else repository.delete
    inventory = take_inventory(repository, policy, moment, packages.untagged if packages else {})
    pruning = plan_pruning(inventory, policy, moment)
    if not delete:
        return pruning
    if policy.most is not None and len(pruning.deletions) > policy.most:
        raise UsageError(
            "too-many-deletions",
            f"{count(len(pruning.deletions), 'manifest')} would be deleted.",
            where=repository.reference.name,
            why=f"--most allows {policy.most:,}.",
            fix="Look at what they are: the same command without --delete. Nothing was deleted.",
        )
    # Nobody needs old catalogs. Whoever may not delete finds out with them, and leaves no marks on images.
    catalogs = [deletion.digest for deletion in pruning.deletions if deletion.kind == "catalog"]
    for digest in catalogs:
        remove(digest)
    before = inventory.snapshot.catalog
    if pruning.announced:
        _announce(repository, before, before.with_deleting(pruning.announced))
    for digest in (deletion.digest for deletion in pruning.deletions[len(catalogs) :]):  # catalogs come first
        remove(digest)
    gone = {*pruning.announced, *before.deleting}
    # Only GitHub lists what has no tag; elsewhere nothing was swept.
    swept = moment - _SETTLED if packages else None

    def finish(catalog: Catalog) -> Catalog:
        # What lost its mark was forgotten by a write of ours that did not seem to count; if it is there again,
        # somebody has published it since.
        marked = gone & {*catalog.deleting}
        return catalog.without(marked & {*pruning.forgotten}).with_deleted(marked, swept)

    if gone or swept:
        write_catalog(repository, finish)
    remaining = inventory.existing - gone
    for subject, lost in inventory.unlisted.items():
        if subject in remaining:
            referrers.enlist(repository, subject, *(inventory.manifests[artifact].descriptor for artifact in lost))
    return pruning


def _announce(repository: Repository, before: Catalog, marked: Catalog) -> None:
    """Note in the catalog what is about to be deleted, so that nobody gives it a tag meanwhile."""

    def mark(catalog: Catalog) -> Catalog:
        if catalog not in (before, marked):
            what = "Somebody published while the registry was being examined."
            fix = "Run `./inv prune` again. Only old catalogs were deleted."
            raise race_lost(repository, what, "What was unused then may be in use now.", fix)
        return marked

    write_catalog(repository, mark)
