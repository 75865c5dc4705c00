"""Judges whether two measurements of the panel agree: by the noise between two starts of one image, and by floors.

KL is the divergence of the second side from the first over the likeliest tokens that both know, with the rest as one
token. That is a lower bound: what a server does not report cannot differ.
"""

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from imagefactory.check.answers.result import AnswersResult, Continuation, Window
from imagefactory.check.bench.comparison import MOST
from imagefactory.check.bench.result import BoundTo
from imagefactory.errors import UsageError

Verdict = Literal["same", "changed", "cannot tell"]
Change = Literal["nothing", "code", "drafter", "kernels", "formats"]
FORMATS: Final = (
    "QUANTIZATION",
    "KV_CACHE_DTYPE",
    "DTYPE",
    "ENABLE_TURBOQUANT",
    "TQ_MODE",
    "TQ_KEY_BITS",
    "TQ_VALUE_BITS",
)
"""Settings that change how numbers are kept."""
KERNELS: Final = ("ATTENTION_BACKEND", "ENFORCE_EAGER")
DRAFT_SETTINGS: Final = ("DFLASH_DRAFTER", "DFLASH_NUM_SPEC_TOKENS", "DRAFT_ATTENTION_BACKEND")
SPECULATIVE: Final = "--speculative"  # how the flags of both servers begin that describe a drafter
NOISE: Final = 3.0  # how many times the noise a difference may be
SIGNIFICANT: Final = 0.05  # behaviour differs if chance alone is less likely than that
LEAST: Final = 1e-12  # the least probability that counts
LOWEST, HIGHEST = -1e5, 0.01
"""What a log-probability can be: vLLM says -9999 for an impossible token, and rounding can take one above zero."""


class Floor(NamedTuple):
    """Differences that are no change, whatever the noise."""

    divergence: float  # the mean KL
    other_choices: float  # how often first choices differ
    tie: float  # how far apart, in nats, the two tokens may be where continuations part


# Between 16 and 32, where logits lie, numbers of 16 bits (bf16) are 0.125 apart: two steps are rounding.
ROUNDING: Final = 0.25
FLOORS: Final[dict[Change, Floor]] = {
    # Rounding: the same kernels give the same bits, or nearly.
    "nothing": Floor(1e-8, 0.0005, ROUNDING),
    "code": Floor(1e-8, 0.0005, ROUNDING),
    # The model checks several tokens at once, by other kernels; what it then accepts is exact.
    "drafter": Floor(5e-3, 0.015, ROUNDING),
    "kernels": Floor(5e-3, 0.015, 1.0),
    "formats": Floor(0, 0, 0),
}


@dataclass(frozen=True)
class Figures:
    """How far one measurement is from another."""

    places: int
    divergence: float  # the mean KL in nats
    divergence_p99: float
    same_choice: float  # the share of places with the same likeliest token
    difference: float  # the mean absolute difference of the log-probability of the text's own token
    perplexity: float  # the second side's perplexity, divided by the first's
    same_chat: bool = True  # whether a chat becomes the same tokens, as far as both servers say
    continuations: int = 0
    partings: int = 0  # continuations that differ
    widest: float = 0.0
    """Of the pairs of tokens where they part, the largest difference of the log-probabilities of the two."""
    scenarios: int = 0  # how many were compared
    only_first: tuple[str, ...] = ()  # scenarios that only the first side passed
    only_second: tuple[str, ...] = ()
    chance: float = 1.0  # the probability of so uneven a split if neither side were better: McNemar's exact test
    unsound: int = 0  # places where a side gives something that is no log-probability: NaN, infinity, or above zero


def other_dummies(left: BoundTo, right: BoundTo) -> bool:
    """Whether two servers have other weights because each release generates its own."""
    releases = {(side.server, re.match(r"[\d.]*", side.server_version)[0]) for side in (left, right)}  # type: ignore[index]
    return len(releases) > 1 and "dummy" in {side.settings.get("LOAD_FORMAT") for side in (left, right)}


def refuse_other_dummies(left: BoundTo, right: BoundTo) -> None:
    if other_dummies(left, right):
        raise UsageError(
            "incomparable",
            "These answers cannot be compared.",
            where=f"{left.target} and {right.target}",
            why="With LOAD_FORMAT=dummy every release generates other weights, so the answers have nothing in common.",
            fix="Compare with weights that are on the disk: `./inv answers.example` writes a small model.",
        )


def figures(left: AnswersResult, right: AnswersResult) -> Figures:
    why = ""
    if left.panel != right.panel:
        why = f"They are of the panel's versions {left.panel} and {right.panel}."
    elif [window.tokens for window in left.windows] != [window.tokens for window in right.windows]:
        why = "The same texts became other tokens: tokenizer or context length differ."
    if why:
        what, fix = "These answers cannot be compared.", "Measure both with one panel, model and MAX_MODEL_LEN."
        raise UsageError("incomparable", what, where="the two sides", why=why, fix=fix)
    every = [place for pair in zip(left.windows, right.windows, strict=True) for place in _places(*pair)]
    pairs = [place for place in every if place.sound] or [_NOWHERE]
    # Rounding can take the divergence of sides that agree below zero.
    divergences = sorted(max(0.0, _divergence(place)) for place in pairs)
    places = len(divergences)
    apart = [place.right_own - place.left_own for place in pairs]
    continued = list(zip(left.continuations, right.continuations, strict=False))
    gaps = [gap for first, second in continued if (gap := _parting(first, second)) is not None]
    writings = [top for side in (left, right) for text in side.continuations for top in text.top]
    return Figures(
        places,
        sum(divergences) / places,
        divergences[min(places - 1, int(0.99 * places))],
        sum(_first(place.left) == _first(place.right) for place in pairs) / places,
        sum(map(abs, apart)) / places,
        math.exp(min(MOST, -sum(apart) / places)),
        not (left.chat and right.chat) or left.chat == right.chat,
        len(continued),
        len(gaps),
        max(gaps, default=0.0),
        *_paired(left, right),
        unsound=sum(not place.sound for place in every) + sum(not _sound(top.values()) for top in writings),
    )


class _Place(NamedTuple):
    """What both sides think of one token of the panel: of itself, and of the likeliest in its place."""

    left_own: float
    right_own: float
    left: Mapping[int, float]
    right: Mapping[int, float]

    @property
    def sound(self) -> bool:
        values = (self.left_own, self.right_own, *self.left.values(), *self.right.values())
        return bool(self.left and self.right) and _sound(values)


_NOWHERE: Final = _Place(0.0, 0.0, {0: 0.0}, {0: 0.0})  # where no place is sound, `unsound` decides


def _places(left: Window, right: Window) -> Iterator[_Place]:
    return map(_Place._make, zip(left.own, right.own, left.top, right.top, strict=True))


def _sound(values: Iterable[float]) -> bool:
    return all(LOWEST <= value <= HIGHEST for value in values)  # NaN compares false


def _first(place: Mapping[int, float]) -> int:
    # A tie goes to the smaller number, on both sides alike.
    return max(place, key=lambda token: (place[token], -token))


def _divergence(place: _Place) -> float:
    shared = [(math.exp(place.left[token]), math.exp(place.right[token])) for token in place.left.keys() & place.right]
    if not shared:
        return math.log(1 / LEAST)  # no likely token in common
    p_rest, q_rest = (max(LEAST, 1 - sum(values)) for values in zip(*shared, strict=True))
    return math.fsum(p * math.log(p / max(q, LEAST)) for p, q in (*shared, (p_rest, q_rest)) if p > 0)


def _paired(left: AnswersResult, right: AnswersResult) -> tuple[int, tuple[str, ...], tuple[str, ...], float]:
    if left.behaviour != right.behaviour:
        return 0, (), (), 1.0
    passed = [{outcome.name: outcome.passed for outcome in side.outcomes} for side in (left, right)]
    both_ran = [name for name in passed[0] if name in passed[1]]
    only_first = tuple(name for name in both_ran if passed[0][name] and not passed[1][name])
    only_second = tuple(name for name in both_ran if passed[1][name] and not passed[0][name])
    fewer, both = min(len(only_first), len(only_second)), len(only_first) + len(only_second)
    # Both tails of a binomial distribution with p = 1/2; an even split counts its middle twice.
    chance = 2 * sum(math.comb(both, count) for count in range(fewer + 1)) / 2**both
    return len(both_ran), only_first, only_second, min(1.0, chance)


def _parting(left: Continuation, right: Continuation) -> float | None:
    """Return how far apart two continuations' first different tokens are to either side; None if they are equal.

    Until there both sides saw the same. A token that a side does not list is one that it finds impossible.
    """
    for left_token, right_token, *tops in zip(left.tokens, right.tokens, left.top, right.top, strict=False):
        if left_token != right_token:
            values = [[place.get(token, math.log(LEAST)) for token in (left_token, right_token)] for place in tops]
            gaps = [abs(first - second) for first, second in values if _sound((first, second))]
            return max(gaps, default=math.log(1 / LEAST))
    return None if len(left.tokens) == len(right.tokens) else -math.log(LEAST)


def change(left: AnswersResult, right: AnswersResult) -> Change:
    """Return what differs most between two sides: how numbers are kept, the kernels, or code alone."""
    first, second = left.bound, right.bound

    def settings(names: Iterable[str]) -> bool:
        return any(first.settings.get(name) != second.settings.get(name) for name in names)

    def kernels(side: AnswersResult) -> tuple[object, ...]:
        bound, machine = side.bound, side.machine
        chips = {gpu.name for gpu in machine.gpus} or {machine.platform}
        return bound.server, bound.server_version, bound.target.partition("/")[2], chips

    if settings((*FORMATS, "MODEL_PATH")) or not (first.settings.get("MODEL_PATH") or _same_model(first, second)):
        return "formats"
    flags, other_flags = (_flags(side.settings.get("EXTRA_ARGS", "")) for side in (first, second))
    if settings(KERNELS) or flags[0] != other_flags[0] or kernels(left) != kernels(right):
        return "kernels"
    if settings(DRAFT_SETTINGS) or flags[1] != other_flags[1]:
        return "drafter"
    return "nothing" if first.digest == second.digest and first.settings == second.settings else "code"


def _same_model(first: BoundTo, second: BoundTo) -> bool:
    # An image of another checkout does not say its revision.
    revisions = first.model_revision, second.model_revision
    return first.model == second.model and (revisions[0] == revisions[1] or "" in revisions)


def _flags(text: str) -> tuple[list[str], list[str]]:
    """Split flags of a server into those about a drafter, which come second, and all others, each with its values."""
    groups: tuple[list[str], list[str]] = ([], [])
    drafts = False
    for word in words_of(text):
        drafts = word.startswith(SPECULATIVE) if word.startswith("--") else drafts
        groups[drafts].append(word)
    return groups


def words_of(text: str) -> list[str]:
    """Split flags as a shell does; what no shell takes, at its blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def judge(what: Change, measured: Figures, noise: Figures | None) -> tuple[Verdict, str]:
    # Before anything else: a server that computes nonsense also differs from itself.
    if measured.unsound:
        return "changed", f"in {measured.unsound} places a side gives no log-probability, but NaN, infinity or the like"
    # Noise as large as the effect of other kernels would hide any change.
    if noise is None or noise.divergence > FLOORS["kernels"].divergence:
        differ = f"two starts of one image differ by KL {noise.divergence:.1e}" if noise else "the noise is not known"
        return "cannot tell", f"{differ}: measure the first side twice, on a quiet machine"
    most = max(NOISE * noise.divergence, FLOORS[what].divergence)
    often = max(NOISE * (1 - noise.same_choice), FLOORS[what].other_choices)
    tie = max(NOISE * noise.widest, FLOORS[what].tie)
    differing = 1 - measured.same_choice
    only_first, only_second = (", ".join(names) or "none" for names in (measured.only_first, measured.only_second))
    reasons = {
        "numbers are kept in another way, or the model is another: that is never the same": what == "formats",
        "a chat becomes other tokens: the chat template differs": not measured.same_chat,
        f"KL {measured.divergence:.1e} is above {most:.1e}": measured.divergence > most,
        f"{differing:.2%} of the first choices differ, more than {often:.2%}": differing > often,
        f"{measured.partings} of {measured.continuations} continuations part, one where the two tokens are "
        f"{measured.widest:.2g} nats apart, more than {tie:.2g}": measured.widest > tie,
        f"behaviour differs (p = {measured.chance:.2g}): only the first side passes {only_first}, "
        f"only the second {only_second}": measured.chance < SIGNIFICANT,
    }
    why = next((reason for reason, holds in reasons.items() if holds), "")
    return ("changed", why) if why else ("same", f"KL {measured.divergence:.1e} is within {most:.1e}")
