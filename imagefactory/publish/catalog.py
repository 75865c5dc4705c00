"""The catalog: every published image, and every change of tags.

It is kept in the registry, as `catalog.json` under the tag `catalog`. It is the source of truth for moving tags: they
point where its newest event says, so anybody can finish what was interrupted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from imagefactory.errors import RegistryError
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.artifacts import TITLE, Payload, contents, upload_artifact
from imagefactory.oci.registry.repository import Repository
from imagefactory.oci.registry.tag_writes import claim, replace_tag
from imagefactory.project.cells import Cell, KernelOrigin
from imagefactory.project.locks.files import first_problem
from imagefactory.publish.tags import CATALOG
from imagefactory.store.digests import Digest, Sha256

CATALOG_TYPE: Final = "application/vnd.imagefactory.catalog.v1+json"
_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ImagePart(_Value):
    """One layer of an image, and what distinguishes it from others of that name."""

    key: str
    """The beginning of the layer's key."""
    version: str = ""
    """The version of the package, if the layer is a single package."""


class Published(_Value):
    """An image that passed everything, with what is needed to find and compare it."""

    digest: Digest = Field(pattern=_DIGEST)
    model: str
    version: str
    arch: str
    platform: str
    plan_key: Sha256
    tag: str
    """The tag that never moves."""
    kernels: KernelOrigin
    mods: tuple[str, ...]
    size: int
    """Bytes to pull onto an empty machine."""
    made_of: dict[str, ImagePart]
    """Layer -> what is in it; two images differ where these do."""
    smoke: dict[str, str]
    """Level -> how it ended."""

    @property
    def cell(self) -> Cell:
        return Cell(self.model, self.version, self.arch, self.platform)


class Pointer(_Value):
    """The target of a moving tag: an image, or an index with one image per platform."""

    digest: Digest = Field(pattern=_DIGEST)
    images: dict[str, Digest]
    """Platform -> image."""


class Event(_Value):
    """One change of tags."""

    id: str
    """Identifies this event, also if it is written again."""
    kind: Literal["promote", "rollback"]
    time: AwareDatetime
    image: Digest = Field(pattern=_DIGEST)
    named: tuple[str, ...] = ()
    """Tags that never move again."""
    moved: dict[str, Pointer]
    left: Digest | None = None
    """The image that a rollback moved users away from."""


class Catalog(_Value):
    """Everything that was published, oldest first."""

    format: Literal[1] = 1
    images: tuple[Published, ...] = ()
    events: tuple[Event, ...] = ()
    deleting: tuple[Digest, ...] = ()
    """Manifests that a prune is about to delete."""
    pruned: int = 0
    """How often a prune deleted something."""

    def image(self, digest: str) -> Published | None:
        return next((image for image in self.images if image.digest == digest), None)

    def owner_of(self, tag: str) -> Digest | None:
        """Return the image that a fixed tag was given to."""
        return next((event.image for event in self.events if tag in event.named), None)

    def pointer(self, tag: str) -> Pointer | None:
        """Return where a moving tag belongs."""
        return next((event.moved[tag] for event in reversed(self.events) if tag in event.moved), None)

    def moving_tags(self) -> set[str]:
        return {tag for event in self.events for tag in event.moved}

    def promotions(self, tags: Iterable[str], platform: str) -> list[Event]:
        """List the promotions that moved any of these tags for a platform, oldest first."""
        wanted = set(tags)
        return [
            event
            for event in self.events
            if event.kind == "promote" and wanted & set(event.moved)
            if (image := self.image(event.image)) and image.platform == platform
        ]

    def tags_of(self, digest: Digest) -> set[str]:
        """List the moving tags that an image was promoted to; only these may name it again."""
        return {
            tag
            for event in self.events
            if event.kind == "promote" and event.image == digest
            for tag, pointer in event.moved.items()
            if digest in pointer.images.values()
        }

    def holds(self, tags: Iterable[str]) -> dict[Digest, Event]:
        """Map the images that are held back from these tags to the rollbacks that hold them.

        An image that a rollback took off a tag stays held there, whatever else is published, until somebody
        points that tag at that very image again.
        """
        wanted = set(tags)
        held: dict[tuple[str, Digest], Event] = {}
        for event in self.events:
            for tag in wanted & event.moved.keys():
                held.pop((tag, event.image), None)
                if event.kind == "rollback" and event.left is not None:
                    held[tag, event.left] = event
        return {digest: event for (_, digest), event in held.items()}

    def current(self, tags: Iterable[str], platform: str) -> Published | None:
        """Return the image that users of these tags get; the first tag that has one decides."""
        pointers = [found for tag in tags if (found := self.pointer(tag)) is not None]
        digests = [pointer.images[platform] for pointer in pointers if platform in pointer.images]
        return self.image(digests[0]) if digests else None

    def with_event(self, event: Event, *images: Published) -> Catalog:
        """Add an event and its new images."""
        known = {image.digest for image in self.images}
        new = tuple(image for image in images if image.digest not in known)
        # Clocks may disagree. The order of the list counts, so times must not contradict it.
        if self.events and event.time < self.events[-1].time:
            event = event.model_copy(update={"time": self.events[-1].time})
        return self.model_copy(update={"images": (*self.images, *new), "events": (*self.events, event)})

    def without(self, digests: Iterable[str]) -> Catalog:
        """Drop images, and their promotions; rollbacks stay, with the descriptions of what they hold back."""
        gone = set(digests)
        held = self.holds(self.moving_tags())
        images = tuple(image for image in self.images if image.digest not in gone or image.digest in held)
        events = tuple(event for event in self.events if event.kind == "rollback" or event.image not in gone)
        return self.model_copy(update={"images": images, "events": events})

    def with_deleting(self, digests: Iterable[Digest]) -> Catalog:
        """Note which manifests are about to be deleted."""
        return self.model_copy(update={"deleting": tuple(sorted({*self.deleting, *digests}))})

    def with_deleted(self, digests: Collection[Digest]) -> Catalog:
        """Note that these manifests are deleted."""
        left = tuple(digest for digest in self.deleting if digest not in digests)
        return self.model_copy(update={"deleting": left, "pruned": self.pruned + 1})

    def since(self, earlier: Catalog) -> tuple[Event, ...]:
        known = {event.id for event in earlier.events}
        return tuple(event for event in self.events if event.id not in known)

    def has_event(self, identity: str) -> bool:
        return any(event.id == identity for event in self.events)

    def without_events(self, identities: Collection[str]) -> Catalog:
        """Remove events that are about to be written again."""
        kept = tuple(event for event in self.events if event.id not in identities)
        return self.model_copy(update={"events": kept})

    def to_json(self) -> bytes:
        return self.model_dump_json(indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise RegistryError(
                "bad-catalog",
                "The catalog cannot be read.",
                where=where,
                why=f"{first_problem(error)}.",
                fix="If a newer factory wrote it, update this checkout; otherwise restore the tag `catalog` to the "
                "manifest that its annotation `imagefactory.previous` names.",
            ) from None


def pointed_at(
    image: Published, current: Pointer | None, known: Mapping[Digest, Published], platforms: Iterable[str]
) -> dict[str, Digest]:
    """Return the image of each platform once a tag points at an image: the other platforms keep theirs."""
    others = {
        platform: digest
        for platform, digest in (current.images.items() if current else ())
        # Skip images that were pruned since, and platforms that the arch no longer has.
        if digest in known and platform in set(platforms)
    }
    return dict(sorted((others | {image.platform: image.digest}).items()))


def now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


ATTEMPTS: Final = 8
PREVIOUS: Final = "imagefactory.previous"
_LARGEST = 64 * 1024 * 1024

CatalogChange = Callable[[Catalog], Catalog]


@dataclass(frozen=True)
class Snapshot:
    """A catalog at one moment, and the digest of its manifest (None before anything is published)."""

    catalog: Catalog
    digest: Digest | None


def read_catalog(repository: Repository) -> Snapshot:
    """Read the catalog of a repository; an empty one if nothing was published yet."""
    manifest = repository.manifest(CATALOG)
    if manifest is None:
        return Snapshot(Catalog(), None)
    where = str(repository.reference.tagged(CATALOG))
    held = [item for item in contents(repository, manifest) if item.media_type == CATALOG_TYPE]
    if len(held) != 1:
        raise RegistryError(
            "bad-catalog",
            "The tag `catalog` does not hold a catalog.",
            where=where,
            why="Its manifest is of another kind.",
            fix="Use a repository of the factory's own (`registry` in matrix.yaml, FACTORY_REGISTRY).",
        )
    digest = held[0].digest
    return Snapshot(Catalog.from_json(repository.blob(digest, _LARGEST), where), manifest.digest)


def write_catalog(
    repository: Repository,
    change: CatalogChange,
    *,
    seen: Snapshot | None = None,
    tags: Collection[str] = (),
    own: Collection[str] = (),
) -> Snapshot:
    """Change the catalog, retrying until nobody interferes.

    Raise if somebody else moved one of `tags`, or pruned the registry, since `seen`.
    `own` names the events that `change` adds: a write that came too late to count may have left them there.
    """
    latest = read_catalog(repository)
    first = seen or latest
    for attempt in range(ATTEMPTS):
        _refuse_lost(repository, first.catalog, latest.catalog.without_events(own), tags)
        # A prune that had our events before it has kept what they need; to refuse now would leave them there.
        pruned = seen is not None and latest.catalog.pruned != seen.catalog.pruned
        if pruned and not all(map(latest.catalog.has_event, own or [""])):
            raise RegistryError(
                "race-lost",
                "Somebody pruned the registry at the same moment.",
                where=str(repository.reference.tagged(CATALOG)),
                why="What this command found there may be deleted.",
                fix="Run it again. No tag was moved.",
            )
        changed = change(latest.catalog.without_events(own))
        annotations = claim() | ({PREVIOUS: latest.digest} if latest.digest else {})
        payload = Payload(CATALOG_TYPE, changed.to_json(), {TITLE: "catalog.json"})
        body = upload_artifact(repository, CATALOG_TYPE, [payload], annotations=annotations)
        written = replace_tag(repository, CATALOG, latest.digest, body, MANIFEST_TYPE)
        if written is not None:
            return Snapshot(changed, written)
        # A random pause, so that two writers do not keep colliding.
        time.sleep(random.uniform(0, repository.window.wait * (attempt + 1)))  # noqa: S311 - not a secret
        latest = read_catalog(repository)
    raise RegistryError(
        "race-lost",
        "The catalog could not be written.",
        where=str(repository.reference.tagged(CATALOG)),
        why=f"{ATTEMPTS} times somebody else wrote it at the same moment, or the registry took longer than "
        f"{repository.window.longest:g} s for a request.",
        fix="Try again when fewer others publish, or when the registry is faster. No tag was moved.",
    )


def _refuse_lost(repository: Repository, first: Catalog, latest: Catalog, tags: Collection[str]) -> None:
    """Raise if somebody else moved one of the tags since the first look."""
    rival = next((event for event in latest.since(first) if set(tags) & set(event.moved)), None)
    if rival is not None:
        both = sorted(set(tags) & set(rival.moved))
        raise RegistryError(
            "race-lost",
            "Another publish won the race.",
            where=", ".join(str(repository.reference.tagged(tag)) for tag in both),
            why=f"A {rival.kind} of {rival.image} moved {', '.join(both)} at {rival.time:%Y-%m-%d %H:%M:%S} UTC.",
            fix="Look at `./inv history`; publish again if yours is newer. No tag was moved.",
        )
