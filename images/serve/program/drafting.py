"""Reports what drafting gains, by the server's metrics: how many drafted tokens are accepted, at which position."""

from collections.abc import Iterator

from .servers.server import Drafts

REPORT_EVERY = 600.0
"""Seconds between reports."""
LOW_ACCEPTANCE = 0.1
ENOUGH = 1000
"""Tokens after which a drafter that has not drafted is not going to."""
PAYS = 0.05
"""A draft token pays if it adds this share to the tokens that a step gives without it.

What a token more costs a step is not measured: next to nothing for one user of a dense model, whose step reads the
weights once; more for experts, which every token chooses for itself, and for many users, whose steps compute.
"""


class Reporter:
    """Decides when to report what."""

    def __init__(self) -> None:
        self.before, self.reported, self.warned = Drafts(), -REPORT_EVERY, False

    def look(self, now: float, drafts: Drafts) -> Iterator[str]:
        """Yield what is new: acceptance every ten minutes, and once that nothing is drafted."""
        if not drafts.drafts and drafts.generated >= ENOUGH and not self.warned:
            self.warned = True
            yield (
                f"WARNING: the drafter has drafted nothing for {drafts.generated:,.0f} tokens: it only takes memory. "
                "See what the server logged about it, or leave it out (DFLASH_DRAFTER=off)"
            )
        if now - self.reported >= REPORT_EVERY:
            self.reported = now
            if lines := list(acceptance(drafts.since(self.before))):
                self.before = drafts
                yield from lines


def acceptance(new: Drafts) -> Iterator[str]:
    """Describe draft acceptance; nothing without drafts."""
    if new.drafts <= 0 or new.tokens <= 0:
        return
    line = (
        f"draft acceptance {new.accepted / new.tokens:.0%}: {new.accepted / new.drafts:.1f} of "
        f"{new.tokens / new.drafts:.0f} tokens per draft ({new.drafts:.0f} drafts)"
    )
    if new.accepted / new.tokens < LOW_ACCEPTANCE:
        line += "; DFLASH_DRAFTER=off may be faster for this kind of text"
    yield line
    if len(new.positions) > 1:
        rates = [accepted / new.drafts for accepted in new.positions]
        shown = ", ".join(f"{number} {rate:.0%}" for number, rate in enumerate(rates, 1))
        paying = f"{paying_tokens(rates)} of {len(rates)} draft tokens pay"
        yield f"accepted by position: {shown}; {paying} (each adds {PAYS:.0%} or more to what a step gives)"


def paying_tokens(rates: list[float]) -> int:
    """Return how many tokens of a draft pay, from the shares of drafts in which each was accepted."""
    # A step gives one token of the model's own, and each draft token as often as it is accepted.
    gives = 1.0
    for number, rate in enumerate(rates):
        if rate < PAYS * gives:
            return number
        gives += rate
    return len(rates)
