"""The arithmetic of memory: what the server takes, what it needs, and which numbers would fit.

vLLM takes GPU_MEMORY_UTILIZATION of the whole memory, whatever the model needs of it: weights and working memory
first, the rest is KV cache. On a GB10 that memory is the host's own, so what is taken there is missing here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

GB = 1_000_000_000
HOST_RESERVE = 16 * GB
"""What a host with unified memory keeps: 15 to 20 GB have proven safe on a DGX Spark."""
LAST_RESERVE = 4 * GB
"""What must still be available once the server has its share; vLLM's own processes live from it."""
WORKING = 4 * GB
"""Activations, CUDA graphs, CUDA context: a round figure, on the safe side for the models of the matrix."""
STEP = 1024
"""Context lengths are suggested in multiples of this."""

COMPRESSION = {"fp8": 0.5, "int8": 0.5, "nvfp4": 0.28, "int4": 0.28}
TURBOQUANT = {"k8v4": 0.39, "4bit_nc": 0.27, "k3v4_nc": 0.24, "3bit_nc": 0.21}


class Needs(NamedTuple):
    """What a model needs, in bytes; None where unknown."""

    weights: int | None
    drafter: int
    per_token: int | None
    per_sequence: int
    context: int


class Machine(NamedTuple):
    """The memory that a server can take from."""

    total: int
    free: int
    unified: bool


class Verdict(NamedTuple):
    """Whether it fits; if not, which setting to change and to what."""

    fits: bool
    detail: str
    setting: str = ""
    value: str = ""
    largest: str = ""
    remedy: str = ""


def compression(dtype: str) -> float:
    """Return how much of a 16-bit KV cache a format needs."""
    if dtype.startswith("turboquant_"):
        return TURBOQUANT.get(dtype.removeprefix("turboquant_"), 0.4)
    return next((factor for name, factor in COMPRESSION.items() if dtype.startswith(name)), 1.0)


def largest_utilization(machine: Machine) -> float:
    """Return the largest GPU_MEMORY_UTILIZATION that leaves the host what it needs, in hundredths."""
    room = machine.free
    if machine.unified:
        room = min(machine.total - HOST_RESERVE, machine.free - LAST_RESERVE)
    return max(0, math.floor(room / machine.total * 100)) / 100


def largest_length(needs: Needs, budget: float) -> int | None:
    """Return the longest context whose KV cache fits into a budget beside the weights."""
    if needs.weights is None or not needs.per_token:
        return None
    room = budget - needs.weights - needs.drafter - WORKING - needs.per_sequence
    fitting = max(0, math.floor(room / needs.per_token / STEP) * STEP)
    return min(fitting, needs.context) if needs.context else fitting


def judge(machine: Machine, needs: Needs, utilization: float, length: int | None) -> Verdict:
    """Decide whether a start fits into the memory."""
    most = largest_utilization(machine)
    budget = utilization * machine.total
    asked = length or needs.context
    if utilization > most:
        return _too_much(machine, needs, utilization, most, asked)
    fixed = (needs.weights or 0) + needs.drafter + WORKING
    if needs.weights is not None and fixed > budget:
        enough = math.ceil(fixed / machine.total * 100) / 100
        return Verdict(
            fits=False,
            detail=f"weights and working memory need {_gb(fixed)}; "
            f"{utilization} of {_gb(machine.total)} is {_gb(budget)}",
            setting="GPU_MEMORY_UTILIZATION",
            value=str(utilization),
            largest=f"up to {most}",
            remedy=f"Set GPU_MEMORY_UTILIZATION to {enough} or more."
            if enough <= most
            else "This model does not fit on this machine: choose a smaller or more compressed one, "
            "or set DFLASH_DRAFTER=off if that is what is missing.",
        )
    fitting = largest_length(needs, budget)
    if fitting is not None and asked and asked > fitting:
        return Verdict(
            fits=False,
            detail=f"{asked} tokens do not fit into the KV cache: after weights and working memory "
            f"({_gb(fixed)}) there is room for {fitting}",
            setting="MAX_MODEL_LEN",
            value=str(asked),
            largest=f"up to {fitting}",
            remedy=f"Set MAX_MODEL_LEN={fitting} or lower" + _or_raise(machine, needs, asked, most),
        )
    return Verdict(fits=True, detail=_fits(machine, needs, budget, fixed, asked))


def _too_much(machine: Machine, needs: Needs, utilization: float, most: float, asked: int) -> Verdict:
    budget = utilization * machine.total
    if machine.unified:
        detail = (
            f"the GPU shares the host's memory: {utilization} of {_gb(machine.total)} takes {_gb(budget)}; "
            f"{_gb(machine.free)} are available and the host needs {_gb(HOST_RESERVE)} of the whole to stay usable"
        )
    else:
        detail = f"{utilization} of {_gb(machine.total)} takes {_gb(budget)}, but only {_gb(machine.free)} are free"
    fitting = largest_length(needs, most * machine.total)
    remedy = f"Set GPU_MEMORY_UTILIZATION={most}" if most > 0 else "Stop what else uses the memory"
    if fitting is not None and asked > fitting > 0:
        remedy += f" and MAX_MODEL_LEN={fitting}"
    elif fitting is not None and asked:
        remedy += f"; MAX_MODEL_LEN={asked} fits then (up to {fitting})"
    return Verdict(
        fits=False,
        detail=detail,
        setting="GPU_MEMORY_UTILIZATION",
        value=str(utilization),
        largest=f"up to {most}",
        remedy=remedy + ".",
    )


def _or_raise(machine: Machine, needs: Needs, asked: int, most: float) -> str:
    whole = (
        (needs.weights or 0) + needs.drafter + WORKING + needs.per_sequence + asked * (needs.per_token or 0)
    )
    enough = math.ceil(whole / machine.total * 100) / 100
    return f", or GPU_MEMORY_UTILIZATION={enough} or more." if enough <= most else "."


def _fits(machine: Machine, needs: Needs, budget: float, fixed: int, asked: int) -> str:
    detail = f"takes {_gb(budget)} of {_gb(machine.total)}, {_gb(machine.free)} available"
    if needs.weights is None or not needs.per_token:
        return detail + "; the model's size is not known before it is downloaded"
    tokens = int((budget - fixed) / needs.per_token)
    detail += f"; weights {_gb(needs.weights + needs.drafter)}, KV cache for about {tokens} tokens"
    return detail + (f" ({tokens / asked:.1f} sequences of {asked})" if asked else "")


def _gb(count: float) -> str:
    return f"{count / GB:.1f} GB"
