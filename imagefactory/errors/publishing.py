"""Failures of publishing: uploading, promoting, going back, pruning."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class NotPromotableError(FactoryError):
    """An image may not get a tag: it was not tested, not audited, or not made from the lock alone."""

    exit_code = 113


class TagTakenError(FactoryError):
    """A tag that never moves names another image already."""

    exit_code = 114


class PromotionLostError(FactoryError):
    """Somebody else published at the same moment, and was first."""

    exit_code = 115


class CatalogError(FactoryError):
    """The registry's catalog cannot be read, or contradicts what is asked of it."""

    exit_code = 116


class NeverPublishedError(FactoryError):
    """There is no published image like the one that was asked for."""

    exit_code = 117


class NotStagedError(FactoryError):
    """The image of a target has not been pushed, or something else is in its place."""

    exit_code = 118


class TagNameError(FactoryError):
    """A name of the matrix would make a tag that registries refuse, or that means two things."""

    exit_code = 119
