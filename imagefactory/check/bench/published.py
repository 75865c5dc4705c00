"""What others published about the speed and quality of models, which is never mixed with our own results."""

import shlex
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from imagefactory.project.data import load_data
from imagefactory.project.locks.files import Frozen

NO_DRAFTER: Final = "none"
_LONG: Final = 1000  # tokens before an answer that slow it down
Positive = Annotated[int, Field(gt=0)]
Figure = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]


class Source(Frozen):
    """Where something was published."""

    title: str
    url: Annotated[str, StringConstraints(pattern=r"^https://\S+$")] = ""
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}(-\d\d(-\d\d)?)?$")] = ""  # empty if the source has none

    def __str__(self) -> str:
        return f"{self.title}, {self.date}" if self.date else self.title


class PublishedFigure(Frozen):
    """A row of somebody's table."""

    source: str
    models: tuple[str, ...]  # the models of matrix.yaml that it is about
    gpu: str
    drafter: str  # its method, or `none`
    k: Positive | None = None  # drafted tokens per step
    kind: str  # of text
    users: Positive = 1
    context: Positive | None = None  # tokens before the answer
    output: Positive | None = None  # tokens of the answer
    conditions: str = ""  # what else the source says about the run
    cold: bool = False  # the first request after a start, which no summary counts
    tokens_per_second: Figure | None = None  # of all users together; the middle if the source has a range alone
    range: tuple[Figure, Figure] | None = None  # the slowest and the fastest answer or run, in tokens per second
    speedup: Figure | None = None  # times as fast as without the drafter
    first_token_ms: Figure | None = None
    per_token_ms: Figure | None = None
    ready_s: Figure | None = None  # from the start of the container
    acceptance_rate: Share | None = None  # accepted by drafted tokens
    acceptance_range: tuple[Share, Share] | None = None
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    """Tokens per step: the accepted ones and the model's own, as in our results. Sources that leave out the model's own
    are converted: 5.5 accepted make 6.5; so are rates: 0.2882 of 8 drafted make 3.31."""
    accepted_at: tuple[tuple[Positive, Share], ...] = ()  # positions of a draft, from 1, and how often each is accepted
    read_gb: Figure | None = None  # what a step read, if the source serves other weights than matrix.yaml has

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        accepts = self.acceptance_length, self.acceptance_range, self.accepted_at
        if not any((self.tokens_per_second, self.speedup, self.first_token_ms, *accepts)):
            raise PydanticCustomError("figure", "a figure needs a speed or an acceptance")
        if self.range and not self.range[0] <= (self.tokens_per_second or 0) <= self.range[1]:
            raise PydanticCustomError("range", "tokens_per_second must be within `range`")
        if self.drafter == NO_DRAFTER and (self.k or self.acceptance_length):
            raise PydanticCustomError("drafter", "without a drafter nothing is drafted or accepted")
        return self

    @property
    def drafted(self) -> bool:
        return self.drafter != NO_DRAFTER

    @property
    def drafted_by(self) -> str:
        return f"{self.drafter} k={self.k}" if self.k else self.drafter

    @property
    def about(self) -> str:
        """The kind of text, and how much comes before the answer if that is long."""
        return f"{self.kind} at {self.context // 1000}K" if self.context and self.context >= _LONG else self.kind

    @property
    def speed(self) -> str:
        """Tokens per second, and the range, in words; empty if the source has none."""
        if self.tokens_per_second is None:
            return ""
        within = " ({:g} to {:g})".format(*self.range) if self.range else ""
        return f"{round(self.tokens_per_second, 1):g}{within}"


class PublishedScore(Frozen):
    """How well a model did in somebody's test."""

    source: str
    models: tuple[str, ...]
    test: str
    score: Figure

    def __str__(self) -> str:
        return f"{self.test} {self.score:g}"


class PublishedStart(Frozen):
    """Settings with which an image starts what an author started."""

    source: str
    target: str
    settings: dict[str, str]
    differs: str = ""  # what is not as the author had it, and why

    @property
    def model(self) -> str:
        return self.target.partition("@")[0].partition("/")[0]

    @property
    def command(self) -> str:
        given = (f"--set {shlex.quote(f'{name}={value}')}" for name, value in self.settings.items())
        return " ".join(("./inv run --target", self.target, *given))


class Bandwidth(Frozen):
    """How fast a GPU reads its memory, in GB per second."""

    source: str
    measured: Figure
    nominal: Figure


class PublishedFigures(Frozen):
    """All published figures."""

    sources: dict[str, Source]
    bandwidths: dict[str, Bandwidth]  # by GPU
    figures: tuple[PublishedFigure, ...]
    scores: tuple[PublishedScore, ...] = ()
    starts: dict[str, PublishedStart] = Field(default_factory=dict)  # by what its author would call it

    def about(self, model: str) -> list[PublishedFigure]:
        return [figure for figure in self.figures if model in figure.models]

    def quality(self, model: str) -> list[PublishedScore]:
        return [score for score in self.scores if model in score.models]


def load_published(root: Path) -> PublishedFigures:
    return load_data(root, "published.yaml", PublishedFigures)
