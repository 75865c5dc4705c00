"""The flags found in a server's sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Flags:
    """Flags with their values, those without a value, and environment variables."""

    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)

    def add(self, names: Iterable[str], values: Iterable[str], *, switch: bool = False) -> None:
        """Add a flag under all its names."""
        known = tuple(sorted(set(values)))
        for name in names:
            self.flags[name] = known
            if switch:
                self.switches.add(name)
