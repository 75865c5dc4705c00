"""Human-readable sizes."""

from __future__ import annotations


def size(count: int) -> str:
    """Return a human-readable size."""
    if count >= 1_000_000_000:  # noqa: PLR2004 - one GB
        return f"{count / 1e9:.2f} GB"
    if count >= 1_000_000:  # noqa: PLR2004 - one MB
        return f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.1f} kB" if count else "-"
