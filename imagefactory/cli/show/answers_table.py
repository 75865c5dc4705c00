"""The table of a comparison of answers."""

from __future__ import annotations

from rich.table import Table

from imagefactory.check.answers.comparison import Figures
from imagefactory.cli.show.tables import table


def figures_table(found: Figures, noise: Figures | None) -> Table:
    """Show how far two sides are apart, beside two starts of the first."""
    rows = [("between the sides", found), *([("between two starts of the first", noise)] if noise else [])]
    return table(
        (
            (
                name,
                str(one.places),
                f"{one.divergence:.1e}",
                f"{one.divergence_p99:.1e}",
                f"{one.same_choice:.2%}",
                f"{one.difference:.1e}",
                f"{one.perplexity:.5f}",
                f"{one.continuations - one.partings} of {one.continuations}",
            )
            for name, one in rows
        ),
        *("", ">tokens", ">KL", ">KL p99", ">same choice", ">|Δ log p|", ">perplexity ratio", ">same continuations"),
    )


def behaviour_line(found: Figures) -> str:
    """Say how many scenarios only one side passed, and which."""
    sides = {"first": found.only_first, "second": found.only_second}
    told = [f"only the {side}: {', '.join(names)}" for side, names in sides.items() if names]
    apart = len(found.only_first) + len(found.only_second)
    return "; ".join([f"{apart} of {found.scenarios} scenarios differ (p = {found.chance:.2g})", *told])
