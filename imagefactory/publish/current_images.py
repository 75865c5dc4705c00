"""What can be pulled today: every moving tag and its image, for people and for web pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from imagefactory.publish.catalog import Catalog, Published


@dataclass(frozen=True)
class CurrentImage:
    """One tag on one platform."""

    tag: str
    image: Published
    since: datetime
    """When the tag was set to this image."""


def current_images(catalog: Catalog) -> list[CurrentImage]:
    """List the images that moving tags point at, in the order of the tags."""
    found: list[CurrentImage] = []
    for tag in sorted(catalog.moving_tags()):
        pointer = catalog.pointer(tag)
        for platform, digest in pointer.images.items() if pointer else ():
            image = catalog.image(digest)
            if image is not None:
                found.append(CurrentImage(tag, image, _since(catalog, tag, platform)))
    return found


def _since(catalog: Catalog, tag: str, platform: str) -> datetime:
    """Find the event that gave a tag its current image for a platform."""
    moves = [event for event in catalog.events if tag in event.moved]
    present = moves[-1].moved[tag].images[platform]
    since = moves[-1].time
    for event in reversed(moves):
        if event.moved[tag].images.get(platform) != present:
            break
        since = event.time
    return since


def markdown(repository: str, found: Iterable[CurrentImage]) -> str:
    """Format the list as a Markdown table."""
    rows = [
        "| tag | platform | vLLM | mods | since | to pull | digest |",
        "|---|---|---|---|---|---:|---|",
    ]
    rows += [
        f"| `{repository}:{offer.tag}` | {offer.image.platform} | {offer.image.vllm} "
        f"| {', '.join(offer.image.mods) or 'none'} | {offer.since:%Y-%m-%d} | {offer.image.size / 1e9:.2f} GB "
        f"| `{offer.image.digest}` |"
        for offer in found
    ]
    return "\n".join(rows)
