"""Takes steps with several images, where one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from imagefactory.errors import BuildError, FactoryError
from imagefactory.project.cells import Cell
from imagefactory.store.progress import Say

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Outcomes(Generic[T]):
    """The results of a step, by cell, and the failures of this step and of those before it."""

    finished: dict[Cell, T] = field(default_factory=dict)
    failed: dict[Cell, FactoryError] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Iterable[Cell], step: Callable[[Cell], T], say: Say | None = None) -> Outcomes[T]:
        return Outcomes({cell: cell for cell in cells}).then(step, say)

    def then(self, step: Callable[[T], U], say: Say | None = None) -> Outcomes[U]:
        """Take the next step with everything that has not failed yet; report each failure as it happens."""
        after: Outcomes[U] = Outcomes(failed=dict(self.failed))
        for cell, result in self.finished.items():
            try:
                after.finished[cell] = step(result)
            except FactoryError as error:
                after.failed[cell] = error
                if say is not None:
                    say(f"{cell}/{cell.machine}: {error.what} {error.why}")
        return after

    def refuse_failures(self, doing: str) -> None:
        """Raise if any cell failed: the failure itself if there was only that cell, else one that names them all."""
        if not self.failed:
            return
        first = next(iter(self.failed.values()))
        total = len(self.failed) + len(self.finished)
        if total == 1:
            raise first
        raise BuildError(
            "targets-failed",
            f"{len(self.failed)} of {total} could not be {doing}.",
            where=", ".join(f"{cell}/{cell.machine}" for cell in self.failed),
            why="; ".join(f"{cell}: {error.what} {error.why}" for cell, error in self.failed.items()),
            fix=first.fix,
        )
