"""How publications look on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from imagefactory.publish.current_images import CurrentImage
from imagefactory.publish.history import Line
from imagefactory.publish.promote import Promoted
from imagefactory.publish.prune import Pruning
from imagefactory.publish.tags import short_digest
from imagefactory.store.sizes import size

_SHOWN_CHANGES = 4


def history_table(lines: Iterable[Line]) -> Table:
    """List what was published, the newest last."""
    table = Table("when (UTC)", "what", "image", "vLLM", "mods", "tags today", "changed", box=None)
    for line in lines:
        table.add_row(
            f"{line.time:%Y-%m-%d %H:%M}",
            line.kind,
            short_digest(line.image.digest),
            line.image.vllm,
            " ".join(line.image.mods) or "none",
            Text("\n".join(line.now) or "-", "bold green" if line.now else "dim"),
            "\n".join(_shortened(line.changed)),
        )
    return table


def history_rows(lines: Iterable[Line]) -> list[dict[str, object]]:
    """Describe the same as plain values."""
    return [
        {
            "time": line.time.isoformat(),
            "kind": line.kind,
            "digest": line.image.digest,
            "tag": line.image.tag,
            "platform": line.image.platform,
            "vllm": line.image.vllm,
            "mods": list(line.image.mods),
            "moved": list(line.moved),
            "now": list(line.now),
            "changed": list(line.changed),
        }
        for line in lines
    ]


def offers_table(found: Iterable[CurrentImage]) -> Table:
    """List what there is to pull."""
    table = Table("tag", "platform", "image", "vLLM", "mods", "since", "to pull", box=None)
    for offer in found:
        image = offer.image
        mods = " ".join(image.mods) or "none"
        day = f"{offer.since:%Y-%m-%d}"
        table.add_row(
            offer.tag, image.platform, short_digest(image.digest), image.vllm, mods, day, size(image.size)
        )
    return table


def promoted_table(promoted: Iterable[Promoted]) -> Table:
    """List images with the tags that they got."""
    table = Table("target", "platform", "image", "for ever", "moved here", box=None)
    for one in promoted:
        image = one.image
        table.add_row(
            str(image.cell),
            image.platform,
            short_digest(image.digest),
            "\n".join(one.named),
            "\n".join(one.moved),
        )
    return table


def pruning_table(pruning: Pruning) -> Table:
    """List what goes."""
    table = Table("what", "digest", "bytes", "tags", box=None)
    for item in pruning.doomed:
        table.add_row(item.kind, short_digest(item.digest), size(item.size), "\n".join(item.tags))
    return table


def _shortened(changes: Sequence[str]) -> list[str]:
    more = len(changes) - _SHOWN_CHANGES
    return [*changes[:_SHOWN_CHANGES], *([f"and {more} more"] if more > 0 else [])]
