"""The catalog: every published image, and every change of tags.

It is kept in the registry, as one JSON document under the tag `catalog`. It is the source of truth for moving tags:
they point where its newest event says, so anybody can finish what was interrupted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.dataclasses import dataclass

from imagefactory.errors import RegistryError
from imagefactory.oci.image import Image
from imagefactory.plan.plan import ModelLayer, Plan
from imagefactory.project.cells import Cell, KernelOrigin
from imagefactory.project.wording import first_problem
from imagefactory.publish.tags import KEY_DIGITS, fixed_tag
from imagefactory.store.digests import Digest, Sha256

if TYPE_CHECKING:
    from imagefactory.check.smoke.record import SmokeRecord

FORMAT: Final = 3
_BUNDLES: Final = ("pure-bundle", "platform-bundle")
_STRICT: Final = ConfigDict(extra="forbid")
_Text = Annotated[str, Field(pattern=r"^[ -~]*$", max_length=500)]
"""Nothing that a terminal or a page would take for anything but text."""
_Digest = Annotated[Digest, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True, config=_STRICT)
class ImagePart:
    """One layer of an image, and what distinguishes it from others of that name."""

    name: _Text
    key: _Text
    """The beginning of the layer's key."""
    version: _Text = ""
    """The version of the package, if the layer is a single package; the beginning of the model's commit, if pinned."""


@dataclass(frozen=True, slots=True, config=_STRICT)
class Published:
    """An image that passed everything, with what is needed to find and compare it."""

    digest: _Digest
    model: _Text
    version: _Text
    arch: _Text
    platform: _Text
    plan_key: Annotated[Sha256, Field(pattern=r"^[0-9a-f]{64}$")]
    tag: _Text
    """The tag that never moves."""
    kernels: KernelOrigin
    mods: tuple[_Text, ...]
    size: int
    """Bytes to pull onto an empty machine."""
    made_of: tuple[ImagePart, ...]
    """What is in each layer; two images differ where these do."""
    smoke: dict[_Text, _Text]
    """Level -> how it ended."""

    @property
    def cell(self) -> Cell:
        return Cell(self.model, self.version, self.arch, self.platform)

    @property
    def parts(self) -> dict[str, ImagePart]:
        return {part.name: part for part in self.made_of}

    @classmethod
    def of(cls, plan: Plan, image: Image, smoke: SmokeRecord | None) -> Self:
        """Describe the image of a plan, and how its smoke tests ended."""
        mods = plan.config.labels["imagefactory.mods"]
        return cls(
            digest=image.digest,
            model=plan.model,
            version=plan.version,
            arch=plan.arch,
            platform=plan.platform,
            plan_key=plan.key,
            tag=fixed_tag(plan.cell, plan.key),
            kernels=plan.kernels,
            mods=() if mods == "none" else tuple(mods.split()),
            size=len(image.manifest) + len(image.config) + sum(layer.size for layer in image.layers),
            made_of=parts_of(plan),
            smoke={level: result.outcome for level, result in smoke.levels.items()} if smoke else {},
        )


def parts_of(plan: Plan) -> tuple[ImagePart, ...]:
    """List the parts that tell one image from another, in the order of its layers."""
    parts: dict[str, ImagePart] = {}
    for layer in plan.layers:
        # Names of wheels are NAME-VERSION-TAGS.whl, without other dashes in the first two (PEP 427).
        version = layer.inputs[0].name.split("-")[1] if layer.kind == "wheel" else ""
        if isinstance(layer, ModelLayer):
            version = str(layer.settings.model.get("revision", ""))[:KEY_DIGITS]
        name = layer.kind if layer.kind in _BUNDLES else f"{layer.kind} {layer.name}"
        parts[name] = ImagePart(name, layer.key[:KEY_DIGITS], version)
    return tuple(parts.values())


@dataclass(frozen=True, slots=True, config=_STRICT)
class Pointer:
    """The target of a moving tag: an image, or an index with one image per platform."""

    digest: _Digest
    images: dict[_Text, _Digest]
    """Platform -> image."""


@dataclass(frozen=True, slots=True, config=_STRICT)
class Event:
    """One change of tags."""

    id: _Text
    """Identifies this event, also if it is written again."""
    kind: Literal["promote", "rollback"]
    time: AwareDatetime
    image: _Digest
    moved: dict[_Text, Pointer]
    named: tuple[_Text, ...] = ()
    """Tags that never move again."""
    left: _Digest | None = None
    """The image that a rollback moved users away from."""
    answers: _Text = ""
    """What is known about the answers of a promoted image; empty if they were not measured."""
    why: _Text = ""
    """Why somebody rolled back, if they said so."""


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Everything that was published, oldest first."""

    images: tuple[Published, ...] = ()
    events: tuple[Event, ...] = ()
    deleting: tuple[Digest, ...] = ()
    """Manifests that a prune is about to delete."""
    pruned: int = 0
    """How often a prune deleted something."""
    swept: datetime | None = None
    """What was uploaded before, and is not in use, a prune has seen."""

    @cached_property
    def known(self) -> dict[Digest, Published]:
        return {image.digest: image for image in self.images}

    @cached_property
    def owners(self) -> dict[str, Digest]:
        """Fixed tag -> the image that got it first."""
        # Reversed, so that the oldest event is entered last and stays.
        return {tag: event.image for event in reversed(self.events) for tag in event.named}

    @cached_property
    def _moves(self) -> dict[str, list[int]]:
        """Moving tag -> the events that moved it, by their number."""
        moves: dict[str, list[int]] = {}
        for number, event in enumerate(self.events):
            for tag in event.moved:
                moves.setdefault(tag, []).append(number)
        return moves

    @cached_property
    def events_of(self) -> dict[Digest, list[Event]]:
        """The events about each image, oldest first."""
        events: dict[Digest, list[Event]] = {}
        for event in self.events:
            events.setdefault(event.image, []).append(event)
        return events

    def image(self, digest: str) -> Published | None:
        return self.known.get(Digest(digest))

    def made_from(self, digest: Digest, key: Sha256) -> bool:
        """Whether an image of the catalog was made from a plan."""
        image = self.image(digest)
        return image is not None and image.plan_key == key

    def moves(self, tags: Iterable[str]) -> list[Event]:
        """List the events that moved any of these tags, oldest first."""
        numbers = {number for tag in tags for number in self._moves.get(tag, ())}
        return [self.events[number] for number in sorted(numbers)]

    def pointer(self, tag: str) -> Pointer | None:
        """Return where a moving tag belongs."""
        numbers = self._moves.get(tag)
        return self.events[numbers[-1]].moved[tag] if numbers else None

    def moving_tags(self) -> set[str]:
        return set(self._moves)

    def pointers(self) -> list[Pointer]:
        return [self.events[numbers[-1]].moved[tag] for tag, numbers in self._moves.items()]

    def tags_of(self, digest: Digest) -> set[str]:
        """List the moving tags that an image was promoted to; only these may name it again."""
        return {
            tag
            for event in self.events_of.get(digest, ())
            if event.kind == "promote"
            for tag, pointer in event.moved.items()
            if digest in pointer.images.values()
        }

    def holds(self, tags: Iterable[str]) -> dict[Digest, Event]:
        """Map the images that are held back from these tags to the rollbacks that hold them.

        An image that a rollback took off a tag stays held there, whatever else is published, until somebody
        points that tag at that very image again.
        """
        asked = set(tags)
        rollbacks: dict[tuple[str, Digest], Event] = {}
        for event in self.moves(asked):
            for tag in asked & event.moved.keys():
                rollbacks.pop((tag, event.image), None)
                if event.kind == "rollback" and event.left is not None:
                    rollbacks[tag, event.left] = event
        return {digest: event for (_, digest), event in rollbacks.items()}

    def current(self, tags: Iterable[str], platform: str) -> Published | None:
        """Return the image that users of these tags get; the first tag that has one decides."""
        pointers = [pointer for tag in tags if (pointer := self.pointer(tag)) is not None]
        digests = [pointer.images[platform] for pointer in pointers if platform in pointer.images]
        return self.image(digests[0]) if digests else None

    def was_set_back(self, tag: str, platform: str) -> bool:
        """Whether the last change of a tag, for a platform, was a rollback."""
        images = [(event, self.image(event.image)) for event in self.moves([tag])]
        kinds = [event.kind for event, image in images if image and image.platform == platform]
        return kinds[-1:] == ["rollback"]

    def with_event(self, event: Event, *images: Published) -> Catalog:
        # Clocks may disagree. The order of the list counts, so times must not contradict it.
        if self.events and event.time < self.events[-1].time:
            event = dataclasses.replace(event, time=self.events[-1].time)
        new = {image.digest: image for image in images if image.digest not in self.known}
        return self.with_content((*self.images, *new.values()), (*self.events, event))

    def with_content(self, images: Iterable[Published], events: Iterable[Event]) -> Catalog:
        return dataclasses.replace(self, images=tuple(images), events=tuple(events))

    def without(self, digests: Iterable[str]) -> Catalog:
        """Drop images, and their promotions; rollbacks stay, with the descriptions of what they hold back."""
        gone = set(digests)
        held_back = self.holds(self.moving_tags()) if gone else {}
        return self.with_content(
            (image for image in self.images if image.digest not in gone or image.digest in held_back),
            (event for event in self.events if event.kind == "rollback" or event.image not in gone),
        )

    def with_deleting(self, digests: Iterable[Digest]) -> Catalog:
        """Note which manifests are about to be deleted."""
        return dataclasses.replace(self, deleting=tuple(sorted({*self.deleting, *digests})))

    def with_deleted(self, digests: Collection[Digest], swept: datetime | None = None) -> Catalog:
        """Note that these manifests are deleted; where one was an index, its event keeps the image alone."""
        left = tuple(digest for digest in self.deleting if digest not in digests)
        events = tuple(_without_indexes(event, digests) for event in self.events)
        return dataclasses.replace(
            self, events=events, deleting=left, pruned=self.pruned + 1, swept=swept or self.swept
        )

    def indexes(self) -> set[Digest]:
        """List the indexes that moving tags ever pointed at, and no prune deleted."""
        named = {pointer.digest for event in self.events for pointer in event.moved.values()}
        return named - self.known.keys() - {event.image for event in self.events}

    def has_events(self, identities: Collection[str]) -> bool:
        return {*identities} <= {event.id for event in self.events}

    def without_events(self, identities: Collection[str]) -> Catalog:
        """Remove events that are about to be written again."""
        kept = tuple(event for event in self.events if event.id not in identities)
        return self if len(kept) == len(self.events) else self.with_content(self.images, kept)

    def to_json(self) -> bytes:
        numbers: dict[ImagePart, int] = {}
        images = _IMAGES.dump_python(self.images, mode="json", exclude={"__all__": {"made_of"}})
        for document, image in zip(images, self.images, strict=True):
            document["made_of"] = [numbers.setdefault(part, len(numbers)) for part in image.made_of]
        document = {
            "format": FORMAT,
            "parts": [dataclasses.asdict(part) for part in numbers],
            "images": images,
            "events": [
                # Factories that do not know reasons can read a catalog without any.
                {name: value for name, value in event.items() if name != "why" or value}
                for event in _EVENTS_OF.dump_python(self.events, mode="json")
            ],
            "deleting": self.deleting,
            "pruned": self.pruned,
            "swept": self.swept and self.swept.isoformat(),
        }
        return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        try:
            document = _Document.model_validate_json(data)
        except ValidationError as error:
            raise unreadable(where, f"{first_problem(error)}.") from None
        return cls(document.images, document.events, document.deleting, document.pruned, document.swept)


class _Document(BaseModel):
    """The catalog as JSON."""

    model_config = _STRICT

    format: Literal[3]
    parts: tuple[ImagePart, ...] = ()
    """What images are made of: each part once, since most images have most parts in common.

    It stands before `images`, whose validator needs it: pydantic validates fields in the order of their definition.
    """
    images: tuple[Published, ...] = ()
    events: tuple[Event, ...] = ()
    deleting: tuple[_Digest, ...] = ()
    pruned: int = 0
    swept: AwareDatetime | None = None

    @field_validator("images", mode="before")
    @classmethod
    def _put_together(cls, images: list[dict[str, Any]], info: ValidationInfo) -> list[dict[str, Any]]:
        """Replace the numbers of parts with the parts."""
        parts = info.data.get("parts", ())
        try:
            return [image | {"made_of": [parts[number] for number in image["made_of"]]} for image in images]
        except (LookupError, TypeError) as error:
            raise ValueError("it is not known what an image is made of") from error


_IMAGES: Final = TypeAdapter(tuple[Published, ...])
_EVENTS_OF: Final = TypeAdapter(tuple[Event, ...])


def _without_indexes(event: Event, gone: Collection[Digest]) -> Event:
    if all(pointer.digest not in gone or pointer.digest == event.image for pointer in event.moved.values()):
        return event
    moved = {
        tag: dataclasses.replace(pointer, digest=event.image) if pointer.digest in gone else pointer
        for tag, pointer in event.moved.items()
    }
    return dataclasses.replace(event, moved=moved)


def unreadable(where: str, why: str) -> RegistryError:
    """Make the error for a catalog that is damaged, or of another format."""
    return RegistryError(
        "bad-catalog",
        "The catalog cannot be read.",
        where=where,
        why=why,
        fix="If a newer factory wrote it, update this checkout; otherwise restore the tag `catalog` to the "
        "manifest that its annotation `imagefactory.previous` names.",
    )


def pointed_at(
    image: Published, current: Pointer | None, published: Collection[Digest], platforms: Iterable[str]
) -> dict[str, Digest]:
    """Return the image of each platform once a tag points at an image: the other platforms keep theirs."""
    others = {
        platform: digest
        for platform, digest in (current.images.items() if current else ())
        # Skip images that were pruned since, and platforms that the arch no longer has.
        if digest in published and platform in set(platforms)
    }
    # Sorted: the same images always make the same index, with the same digest.
    return dict(sorted((others | {image.platform: image.digest}).items()))


def now() -> datetime:
    return datetime.now(UTC)
