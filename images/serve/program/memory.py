"""Computes whether a model fits into memory, and which settings would make it fit.

GPU_MEMORY_UTILIZATION is a share of memory that the server takes, whatever the model needs: weights first, the rest
becomes KV cache. `Share` says of which memory, and what else it has to hold. On a GB10 this is also the host's memory.
"""

import math
from typing import NamedTuple

from . import rules

GB = 1_000_000_000


class Constants(NamedTuple):
    """The figures of rules.json."""

    host_reserve: int
    """Reserved for a host with unified memory; 15 to 20 GB have proven safe on a DGX Spark."""
    last_reserve: int
    """Must remain available beside the server's share, for the server's own processes."""
    working: int
    """For activations, CUDA graphs and the CUDA context; enough for all models in matrix.yaml."""
    step: int
    """Suggested context lengths are multiples of this."""
    compression: dict[str, float]
    """The size of a KV cache relative to a 16-bit one, by how the name of its data type begins."""


KNOWN = Constants(**rules.common()["memory"])


class Needs(NamedTuple):
    """The memory that a model needs, in bytes; None where unknown."""

    weights: int | None
    drafter: int
    per_token: int | None
    per_sequence: int
    context: int
    window: int = 0
    """The tokens of the sliding windows in `per_sequence`."""
    passing: int = 0
    """How many more tokens their layers hold while they are computed, of all sequences together."""
    per_passing: int = 0

    def sequence(self, length: int) -> int:
        """Return the cache of a sequence."""
        return self.per_sequence + length * (self.per_token or 0)

    def computing(self, length: int) -> int:
        """Return the cache for what is being computed, beside that of the sequences."""
        return self.per_passing * max(0, min(length - self.window, self.passing))


class Machine(NamedTuple):
    """The memory of a machine."""

    total: int
    free: int
    unified: bool
    stage: int = 0
    """What the server takes of the host's memory beside its share."""


class Share(NamedTuple):
    """What a server understands by its share of the memory."""

    default: float
    """What it takes on its own."""
    of_free: bool = False
    """Whether it is a share of what is free when the server starts, rather than of everything."""
    holds_working: bool = True
    """Whether the share includes the working memory, which otherwise comes on top."""

    def whole(self, machine: Machine) -> int:
        return machine.free if self.of_free else machine.total

    def fixed(self, needs: Needs) -> int:
        """Return what the share has to hold before any KV cache."""
        return (needs.weights or 0) + needs.drafter + (KNOWN.working if self.holds_working else 0)

    @property
    def contents(self) -> str:
        return "weights and working memory" if self.holds_working else "weights"


class Verdict(NamedTuple):
    """How a start uses the memory; if it does not fit, which setting to change and to what."""

    detail: str
    setting: str = ""
    value: str = ""
    allowed: str = ""
    remedy: str = ""


def compression(dtype: str) -> float:
    return next((size for name, size in KNOWN.compression.items() if dtype.startswith(name)), 1.0)


def largest_utilization(machine: Machine, share: Share) -> float:
    """Return the largest GPU_MEMORY_UTILIZATION that leaves the host what it needs, in hundredths."""
    room = machine.free
    if machine.unified:
        room = min(machine.total - KNOWN.host_reserve, machine.free - KNOWN.last_reserve) - machine.stage
    if not share.holds_working:
        room -= KNOWN.working
    return max(0, math.floor(room / share.whole(machine) * 100)) / 100


def largest_length(needs: Needs, share: Share, budget: float) -> int | None:
    """Return the longest context whose KV cache fits into a budget beside the weights."""
    if needs.weights is None or not needs.per_token:
        return None
    room = budget - share.fixed(needs) - needs.per_sequence
    # As long as the window, beyond it by what is being computed, and longer than that.
    inside = min(room / needs.per_token, needs.window)
    room -= inside * needs.per_token
    beyond = min(room / (needs.per_token + needs.per_passing), needs.passing)
    room -= beyond * (needs.per_token + needs.per_passing)
    fitting = max(0, math.floor((inside + beyond + room / needs.per_token) / KNOWN.step) * KNOWN.step)
    return min(fitting, needs.context) if needs.context else fitting


def judge(machine: Machine, needs: Needs, share: Share, utilization: float, length: int | None) -> Verdict:
    """Decide whether a start fits into the memory."""
    most, whole, fixed = largest_utilization(machine, share), share.whole(machine), share.fixed(needs)
    budget = utilization * whole
    asked = length or needs.context
    if utilization > most:
        fitting = largest_length(needs, share, most * whole)
        detail = _too_much(machine, share, utilization)
        remedy = _less(most, fitting, asked)
        return Verdict(detail, "GPU_MEMORY_UTILIZATION", str(utilization), f"up to {most}", remedy)
    if needs.weights is not None and fixed > budget:
        enough = _hundredths(fixed / whole)
        remedy = f"Set GPU_MEMORY_UTILIZATION to {enough} or more."
        if enough > most:
            remedy = "This model is too large for this machine: choose a smaller or more compressed one"
            remedy += f", or set DFLASH_DRAFTER=off to save {_gb(needs.drafter)}." if needs.drafter else "."
        detail = f"{share.contents} need {_gb(fixed)}; {utilization} of {_gb(whole)} is {_gb(budget)}"
        return Verdict(detail, "GPU_MEMORY_UTILIZATION", str(utilization), f"up to {most}", remedy)
    fitting = largest_length(needs, share, budget)
    if fitting is not None and asked and asked > fitting:
        enough = _hundredths((fixed + needs.sequence(asked) + needs.computing(asked)) / whole)
        other = f", or GPU_MEMORY_UTILIZATION={enough} or more" if enough <= most else ""
        detail = f"{asked:,} tokens do not fit into the KV cache: "
        detail += f"{share.contents} ({_gb(fixed)}) leave room for {fitting:,}"
        remedy = f"Set MAX_MODEL_LEN={fitting} or lower{other}."
        return Verdict(detail, "MAX_MODEL_LEN", str(asked), f"up to {fitting}", remedy)
    return Verdict(_fits(machine, needs, share, budget, asked))


def _too_much(machine: Machine, share: Share, utilization: float) -> str:
    whole = share.whole(machine)
    takes = f"{utilization} of {_gb(whole)} takes {_gb(utilization * whole)}"
    if not share.holds_working:
        takes += f", working memory {_gb(KNOWN.working)} more"
    if machine.unified and machine.stage:
        takes += f", the stage of KV_DISK {_gb(machine.stage)}"
    if not machine.unified:
        return f"{takes}, but only {_gb(machine.free)} are free"
    return (
        f"the GPU shares the host's memory: {takes}; "
        f"{_gb(machine.free)} are available, and the host needs {_gb(KNOWN.host_reserve)} of the total"
    )


def _less(most: float, fitting: int | None, asked: int) -> str:
    remedy = f"Set GPU_MEMORY_UTILIZATION={most}" if most > 0 else "Stop other programs that use the memory"
    if fitting is not None and asked > fitting > 0:
        remedy += f" and MAX_MODEL_LEN={fitting}"
    elif fitting is not None and asked:
        remedy += f"; MAX_MODEL_LEN={asked} fits then (up to {fitting:,})"
    return f"{remedy}."


def _hundredths(share: float) -> float:
    return math.ceil(share * 100) / 100


def _fits(machine: Machine, needs: Needs, share: Share, budget: float, asked: int) -> str:
    detail = f"takes {_gb(budget)} of {_gb(machine.total)}, {_gb(machine.free)} available"
    if needs.weights is None or not needs.per_token:
        return detail + "; the model's size is unknown before the download"
    detail += f"; weights {_gb(needs.weights + needs.drafter)}, KV cache "
    room = budget - share.fixed(needs) - needs.computing(asked)
    if not asked:
        return f"{detail}for about {int(room / needs.per_token):,} tokens"
    sequences = room / needs.sequence(asked)
    return f"{detail}for about {int(sequences * asked):,} tokens ({sequences:.1f} sequences of {asked:,})"


def _gb(count: float) -> str:
    return f"{count / GB:.1f} GB"
