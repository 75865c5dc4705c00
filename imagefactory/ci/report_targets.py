"""Which targets are not well after a night, and what to report about each: the registry knows, whatever a job said."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from imagefactory.ci.issues import Finding
from imagefactory.ci.jobs import Need, Night, Trouble, Work
from imagefactory.ci.run_summary import cell
from imagefactory.errors import CheckError, clean
from imagefactory.store.progress import count

_LEFT: Final[dict[Need, str]] = {
    "image": "was not pushed",
    "smoke": "was pushed, but its tests left no record",
    "gpu": "was pushed, but its tests on a GPU left no record",
    "promote": "passed its tests, but got no tags",
}
"""What a night did not do for a target that it had work for, by the first step that is left."""
_ENDS: Final = (
    "A later night closes this issue: once a change is merged that mends the target, or the same image passes in a run "
    "of `nightly` with `retry`. `exclude` in matrix.yaml gives the target up."
)


def unwell(night: Night, tried: Collection[str]) -> list[Trouble]:
    """List targets that no night will publish as they are, and those that this one tried to publish and did not."""
    lasting = [trouble for trouble in (*night.broken, *night.held) if not trouble.decided]
    return [*lasting, *(_unfinished(work) for work in night.works if work.target in tried)]


def _unfinished(work: Work) -> Trouble:
    step = work.needs[0]
    if work.refused and step == "promote":
        return work.refused
    image = work.refused.image if work.refused else ""
    fix = f"Read the log of the job `{step}`. The next night continues there."
    return Trouble(work.target, f"{work.cell} {_LEFT[step]}.", f"The night began because: {work.reason}.", fix, image)


def target_findings(registry: str, troubles: Iterable[Trouble]) -> list[Finding]:
    """Describe targets for a maintainer: the failing line, the image, and what to do."""

    def text(trouble: Trouble) -> str:
        # Nothing in an indented line is markup, a link or a mention.
        parts = [cell(trouble.what), f"    {clean(trouble.why)}", f"Next: {cell(trouble.fix)}", _ENDS]
        image = [f"Image: `{registry}@{trouble.image}`. Its tags stay where they are."] if trouble.image else []
        return "\n\n".join([*parts[:2], *image, *parts[2:]])

    return [
        Finding(
            trouble.target,
            f"{trouble.target} is not published",
            text(trouble),
            [trouble.what, trouble.why, trouble.image],
        )
        for trouble in troubles
    ]


def over(night: Night, looked_at: Collection[str], every: Collection[str]) -> Callable[[str], str]:
    """Say why a target that is not unwell needs no issue any more; nothing, if that is not known."""
    waiting = {*(work.target for work in night.works), *(trouble.target for trouble in night.waiting)}
    rolled_back = {trouble.target for trouble in night.held if trouble.decided}

    def why(target: str) -> str:
        if target not in every:
            return "No night builds it any more."
        if target in rolled_back:
            return "A rollback holds this image back: somebody decided."
        return "It is published." if target in looked_at and target not in waiting else ""

    return why


def not_published(registry: str, troubles: Sequence[Trouble]) -> Iterator[CheckError]:
    """Yield the error that keeps a night red, if anything does."""
    if troubles:
        yield CheckError(
            "not-published",
            f"{count(len(troubles), 'target')} cannot be published.",
            where=registry,
            why="; ".join(f"{trouble.target}: {clean(trouble.why)}" for trouble in troubles),
            fix="Each has an issue that says what to do. Nights stay red until all are published, or given up.",
        )
