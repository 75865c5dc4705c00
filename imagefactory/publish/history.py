"""Reads the catalog: what was published when, what changed, and what can be pulled today."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from imagefactory.check.answers.record import NOT_MEASURED
from imagefactory.errors import UsageError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.server_versions import version_key
from imagefactory.publish.catalog import Catalog, Event, ImagePart, Published
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tag_owners import moving_tags
from imagefactory.publish.tags import LATEST, fixed_tag, names_image, staging_tag
from imagefactory.store.digests import Digest, Sha256


@dataclass(frozen=True)
class Line:
    """One change in what users of a target get."""

    time: datetime
    kind: Literal["promote", "rollback"]
    image: Published
    now: tuple[str, ...]
    """Moving tags that point at it today."""
    changed: tuple[str, ...]
    """How it differs from the image that users had before."""
    held: bool
    """Whether it is held back from these tags today: a rollback took it off."""
    answers: str
    """What is known about its answers, and why they were allowed to change."""
    why: str = ""
    """The reason that somebody gave for a rollback."""


@dataclass(frozen=True)
class History:
    """What was published of a cell, what is held back, and its tags that are not where the catalog has them."""

    lines: list[Line]
    held: dict[Digest, Event]
    """Image -> the rollback that took it off the tags; also for images that were deleted since."""
    misplaced_tags: list[str]
    vulnerabilities: str
    """What is known about those of the image that the tags name; empty if it was not scanned."""
    left_out: tuple[str, ...]
    """Why records that are attached to it do not count."""


@dataclass(frozen=True)
class CurrentImage:
    """The image that a moving tag names for one platform."""

    tag: str
    image: Published
    since: datetime
    """When the tag was set to this image."""


def read_history(project: Project, repository: Repository, catalog: Catalog, cell: Cell) -> History:
    """Read the history of a cell, and check where its tags really point."""
    tags = moving_tags(project.matrix, catalog, cell)
    lines = history(catalog, tags, cell.platform)
    if not lines:
        raise UsageError(
            "never-published",
            f"{cell} was never published.",
            where=repository.reference.name,
            why=f"The catalog has no image for {cell.platform} under {', '.join(tags)}.",
            fix=f"`./inv publish --target {cell.full_target}` publishes it; `./inv catalog` lists what is published.",
        )
    current = catalog.current(tags, cell.platform) or lines[-1].image
    dossier = Dossier.read(repository, current.digest)
    scan_line = dossier.scan_line
    named = {tag: repository.resolve(tag) for tag in tags}
    return History(lines, catalog.holds(tags), misplaced_tags(named, catalog, tags), scan_line, dossier.left_out)


def history(catalog: Catalog, tags: Sequence[str], platform: str) -> list[Line]:
    """List what users of these tags got, oldest first."""
    lines: list[Line] = []
    held_back = catalog.holds(tags)
    answers: dict[Digest, str] = {}
    before: Published | None = None
    for event in catalog.moves(tags):
        image = catalog.image(event.image)
        if image is None or image.platform != platform:
            continue
        if event.answers:
            answers[image.digest] = event.answers  # a rollback returns to what was known
        lines.append(
            Line(
                time=event.time,
                kind=event.kind,
                image=image,
                now=tuple(tag for tag in event.moved if catalog.current([tag], platform) == image),
                changed=changes(before, image),
                held=image.digest in held_back,
                answers=answers.get(image.digest, NOT_MEASURED),
                why=event.why,
            )
        )
        before = image
    return lines


def steps(catalog: Catalog) -> Iterator[tuple[Event, Published, Published | None]]:
    """Iterate over all changes, oldest first: each with its image, and the one that users of its tags had before."""
    had: dict[tuple[str, str], Published] = {}
    for event in catalog.events:
        image = catalog.image(event.image)
        if image is None:
            continue
        places = [(tag, image.platform) for tag in event.moved]  # the most specific tag first
        yield event, image, next((had[place] for place in places if place in had), None)
        had |= dict.fromkeys(places, image)


def changes(before: Published | None, image: Published) -> tuple[str, ...]:
    """Describe how one image differs from another, in a few words per difference."""
    if before is None:
        return ("first",)
    if before.digest == image.digest:
        return ("the same image",)
    differences: list[str] = []
    if before.version != image.version:
        differences.append(f"{before.cell.runs} → {version_key(image.version)}")
    differences += [f"mod {name} added" for name in image.mods if name not in before.mods]
    differences += [f"mod {name} gone" for name in before.mods if name not in image.mods]
    parts, old_parts = image.parts, before.parts
    for layer in sorted({part.name for part in {*image.made_of} ^ {*before.made_of}}):
        old, new = old_parts.get(layer), parts.get(layer)
        listed = layer.startswith("mod ") and (old is None or new is None)
        if not listed:
            differences.append(change_of(layer.removeprefix("wheel "), old, new))
    return tuple(differences) or ("configuration",)


def change_of(name: str, old: ImagePart | None, new: ImagePart | None) -> str:
    if old is None or new is None:
        return f"{name} {'gone' if new is None else 'added'}"
    if old.version != new.version:
        return f"{name} {old.version or 'unpinned'} → {new.version or 'unpinned'}"
    return f"{name} changed"


def misplaced_tags(named: Mapping[str, Digest | None], catalog: Catalog, tags: Iterable[str]) -> list[str]:
    """List tags that do not point where the catalog says: a promotion was interrupted, or somebody moved them."""
    recorded = {tag: pointer.digest for tag in tags if (pointer := catalog.pointer(tag)) is not None}
    return [tag for tag, digest in recorded.items() if named.get(tag) != digest]


def current_images(catalog: Catalog) -> list[CurrentImage]:
    images: list[CurrentImage] = []
    for tag in sorted(catalog.moving_tags()):
        moves = catalog.moves([tag])
        for platform, digest in moves[-1].moved[tag].images.items():
            image, since = catalog.image(digest), moves[-1].time
            for event in reversed(moves):
                if event.moved[tag].images.get(platform) != digest:
                    break
                since = event.time
            if image is not None:
                images.append(CurrentImage(tag, image, since))
    return images


def check_tag(
    project: Project, repository: Repository, cell: Cell, key: Sha256, image: Digest, *, planned: bool
) -> tuple[Literal["ok", "failed", "not checked"], str] | None:
    """Check that a tag may name an image of a cell, and that the catalog has it there; None without a tag.

    Nobody signs the catalog, and a mirror can serve an older one beside older tags. So a tag that moves is right only
    if this checkout has `planned` the same image.
    """
    reference = repository.reference
    tag = reference.tag or ("" if reference.digest else LATEST)
    if not tag:
        return None
    fits = names_image(project.matrix, tag, cell, key)
    if not fits:
        mismatch = f"{tag} is a tag of another image than {cell}"
        return ("not checked", f"{tag} is not a tag of the factory") if fits is None else ("failed", mismatch)
    if reference.digest or tag == staging_tag(key):
        return "ok", f"{tag} is a tag of this target"
    catalog = read_catalog(repository).catalog
    pointer = catalog.pointer(tag)
    listed = pointer.images.get(cell.platform, "none for it") if pointer else catalog.owners.get(tag)
    if listed not in (None, image):
        return "failed", f"{tag} was moved: for {cell.platform}, the catalog has {listed}"
    if listed == image and (planned or tag == fixed_tag(cell, key)):
        return "ok", f"{tag}, as the catalog has it and {'this checkout plans it' if planned else 'its name says'}"
    unsigned = f"{tag}, as the catalog has it; nobody signs that, and this checkout plans another image than this one"
    return "not checked", unsigned if listed else f"the catalog of this repository does not have {tag}"
