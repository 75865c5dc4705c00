"""Every failure that a user can meet, each with its own exit code. Above `images.shipped`."""

from __future__ import annotations

from images.shipped.errors import FactoryError, Location, did_you_mean

__all__ = ["FactoryError", "LibraryError", "Location", "did_you_mean"]


class LibraryError(FactoryError):
    """The base class of failures outside of `images.shipped`; every subclass must declare its exit code."""

    def __init_subclass__(cls, *, exit_code: int, about_the_machine: bool = False) -> None:
        super().__init_subclass__()
        cls.exit_code = exit_code
        cls.about_the_machine = about_the_machine
