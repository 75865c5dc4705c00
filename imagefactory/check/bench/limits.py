"""The speed that memory allows: each step reads the weights once, however many tokens it makes."""

from dataclasses import dataclass
from typing import Final

from imagefactory.check.bench.published import PublishedFigure, PublishedFigures
from imagefactory.project.served_model import Drafter, Memory, ServedModel

GB: Final = 1e9
SPARK: Final = "GB10"
"""The GPU that the limits are of: nobody measured the bandwidth of the others."""


def speed_limit(bandwidth: float, read: float, tokens: float) -> float:
    """Return the most tokens per second, from bytes read per second and per step, and tokens per step."""
    return bandwidth / read * tokens


def read_per_step(memory: Memory, *, drafted: int = 0, own_layer: bool = False) -> float:
    """Return the bytes that a step reads for one user: the weights, and for a draft of so many tokens the drafter.

    Of a mixture of experts it reads the chosen ones. A step verifies the draft and one token more; if each chooses a
    share s of the experts by itself, nobody chooses (1 - s)^tokens of them. Tokens in a row choose more alike than
    that, so that the true limit is a little higher. A drafter that is a layer of the model is as sparse as the model.
    """
    read = active = memory.active_gb or memory.weights_gb
    if memory.experts:
        share = memory.experts.chosen / memory.experts.of
        read += memory.experts.gb * (1 - (1 - share) ** (1 + drafted) - share)
    if drafted:
        read += memory.drafter_gb * (active / memory.weights_gb if own_layer else 1)
    return read * GB


@dataclass(frozen=True)
class Limit:
    """What memory allows."""

    read: float
    """Bytes per step, of all machines together."""
    tokens: float
    """Per step."""
    supposed: bool
    """Whether `tokens` is the whole draft, since nobody says how much of it is accepted."""
    tokens_per_second: float
    share: float | None = None
    """How much of it a published figure reached."""

    @property
    def fewest_tokens(self) -> float:
        """The tokens per step without which the figure could not be."""
        return self.tokens * (self.share or 0)


def model_limits(model: ServedModel, published: PublishedFigures) -> list[Limit]:
    """Return the limits of a model on its Sparks: without a drafter, and if every draft of its drafter is accepted."""
    drafters = (None, *model.drafters[:1])
    found = (_limit(model, published, drafter, drafter.tokens if drafter else 0) for drafter in drafters)
    return [limit for limit in found if limit]


def figure_limit(model: ServedModel, published: PublishedFigures, figure: PublishedFigure) -> Limit | None:
    """Return the limit under the conditions of a figure; None if it is not of one user on a Spark, or has no speed.

    A source that does not say how much it drafted is taken to do as the matrix does with this method.
    """
    if not figure.gpu.endswith(SPARK) or figure.users > 1 or figure.cold or figure.tokens_per_second is None:
        return None
    drafter = next((drafter for drafter in model.drafters if drafter.method == figure.drafter), None)
    drafted = figure.k or (drafter.tokens if drafter else 0)
    if figure.drafted and not drafted:
        return None
    return _limit(model, published, drafter, drafted, figure)


def _limit(
    model: ServedModel,
    published: PublishedFigures,
    drafter: Drafter | None,
    drafted: int,
    figure: PublishedFigure | None = None,
) -> Limit | None:
    bandwidth = published.bandwidths.get(SPARK)
    if model.memory is None or bandwidth is None:
        return None
    read = read_per_step(model.memory, drafted=drafted, own_layer=drafter is not None and drafter.repo == model.repo)
    if figure and figure.read_gb:
        read = figure.read_gb * GB
    accepted = figure.acceptance_length if figure else None
    tokens = accepted or 1.0 + drafted
    rate = speed_limit(bandwidth.measured * GB * model.sparks, read, tokens)
    share = figure.tokens_per_second / rate if figure and figure.tokens_per_second else None
    return Limit(read, tokens, bool(drafted) and accepted is None, rate, share)
