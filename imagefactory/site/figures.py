"""Sums up what others published about a model's speed: the best, the typical, the conditions, the limit beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from imagefactory.check.bench.limits import GB, SPARK, Limit, figure_limit, model_limits
from imagefactory.check.bench.published import PublishedFigure, PublishedFigures, Source
from imagefactory.project.matrix import Matrix
from imagefactory.project.served_model import ServedModel
from imagefactory.site.choosing import gpu_of


@dataclass(frozen=True)
class Reported:
    """A published figure, where it is from, and the limit under its conditions."""

    figure: PublishedFigure
    source: Source
    limit: Limit | None


@dataclass(frozen=True)
class Speed:
    """What others measured on a GPU with so many users, in tokens per second."""

    gpu: str
    users: int
    slowest: float
    typical: float
    """The middle, which neither a best nor a worst case moves."""
    fastest: float
    sources: tuple[str, ...]
    otherwise: str
    """How they drafted, if not as the image does."""

    @property
    def counts(self) -> float:
        """The speed that orders models; 0 if nobody measured one that drafts as its image does."""
        return 0 if self.otherwise else self.slowest

    @property
    def rounded(self) -> str:
        return "-".join(dict.fromkeys(f"{rate:.0f}" for rate in (self.slowest, self.fastest)))


def reported_of(model: ServedModel, name: str, published: PublishedFigures) -> tuple[Reported, ...]:
    return tuple(
        Reported(figure, published.sources[figure.source], figure_limit(model, published, figure))
        for figure in published.about(name)
    )


def speeds_of(reported: Sequence[Reported], *, drafted: bool) -> dict[str, tuple[Speed, ...]]:
    """Return the speeds by GPU, fewest users first: of the image's weights, drafted as it does, or else as measured."""
    speeds: dict[str, tuple[Speed, ...]] = {}
    counted = [row for row in reported if row.figure.tokens_per_second and not row.figure.cold]
    for gpu in dict.fromkeys(row.figure.gpu for row in counted):
        all_there = [row for row in counted if row.figure.gpu == gpu]
        there = [row for row in all_there if not row.figure.read_gb] or all_there
        alike = [row for row in there if row.figure.drafted == drafted]
        otherwise = "" if alike else "without a drafter" if drafted else "with a drafter"
        by_users: dict[int, list[Reported]] = {}
        for row in alike or there:
            by_users.setdefault(row.figure.users, []).append(row)
        speeds[gpu.lower()] = tuple(_speed(by_users[users], otherwise) for users in sorted(by_users))
    return speeds


def _speed(rows: Sequence[Reported], otherwise: str) -> Speed:
    rates = [row.figure.tokens_per_second or 0 for row in rows]
    return Speed(
        gpu=rows[0].figure.gpu,
        users=rows[0].figure.users,
        slowest=min(rates),
        typical=round(median(rates), 2),
        fastest=max(rates),
        sources=tuple(dict.fromkeys(str(row.source) for row in rows)),
        otherwise=otherwise,
    )


def best_of(reported: Sequence[Reported], gpu: str) -> Reported | None:
    """Return the fastest of one user on a GPU, once the server is warm."""
    alone = [row for row in reported if row.figure.gpu.lower() == gpu.lower() and row.figure.users == 1]
    warm = [row for row in alone if row.figure.tokens_per_second and not row.figure.cold]
    return max(warm, key=lambda row: row.figure.tokens_per_second or 0, default=None)


def limit_rows(matrix: Matrix, published: PublishedFigures) -> Iterator[tuple[str, ...]]:
    """Yield, for each model with known sizes, what a step reads, its limits, and the best of what others published."""
    for name, model in matrix.models.items():
        limits = model_limits(model, published)
        if not limits:
            continue
        reads = dict.fromkeys(f"{limit.read / GB:.1f}" for limit in limits)
        rates = [limit.tokens_per_second for limit in limits]
        best = best_of(reported_of(model, name, published), gpu_of(matrix, name, SPARK))
        accepted = f"{rates[1]:.0f}" if len(rates) > 1 else "-"
        figure = f"{best.figure.speed}: {best.figure.about}, {best.figure.drafted_by}" if best else "-"
        yield name, f"{'-'.join(reads)} GB", f"{rates[0]:.1f}", accepted, figure, _reached(best)


def _reached(best: Reported | None) -> str:
    if best is None or best.limit is None or best.limit.share is None:
        return "-"
    supposed = " with all accepted" if best.limit.supposed else ""
    return f"{best.limit.share:.0%}{supposed}" + (", of other weights" if best.figure.read_gb else "")
