"""Publishing, promoting, rolling back and pruning: 104, 113 to 119, 202 to 204, 216, 217 and 225."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class NotPromotableError(LibraryError, exit_code=113):
    """An image must not get a tag: it was not tested, not audited, or not built from the lock alone."""


class UnsignedError(LibraryError, exit_code=225):
    """An image that passed everything else is not signed by anybody who is trusted."""


class TagTakenError(LibraryError, exit_code=114):
    """A tag that never moves already points at another image."""


class PromotionLostError(LibraryError, exit_code=115):
    """Another process published at the same time and finished first."""


class CatalogError(LibraryError, exit_code=116):
    """The registry's catalog cannot be read, or contradicts the request."""


class NeverPublishedError(LibraryError, exit_code=117):
    """No published image matches the request."""


class NotStagedError(LibraryError, exit_code=118):
    """The image of a target has not been pushed."""


class TagNameError(LibraryError, exit_code=119):
    """A name in the matrix would produce a tag that registries reject, or an ambiguous one."""


class BeingPrunedError(LibraryError, exit_code=104):
    """An image must not get a tag: a prune is deleting it."""


class UnvouchedError(LibraryError, exit_code=202):
    """Neither a record nor a hand-over says which image a target has."""


class HandoverError(LibraryError, exit_code=203):
    """What a job handed on about an image cannot be read, or contradicts the plan, the record or another job."""


class RecordRefutedError(LibraryError, exit_code=204):
    """A rebuild gives another layer or wheel than a record says, or nothing gives it at all."""


class HeldBackError(NotPromotableError, exit_code=216):
    """An image must not get a tag: a rollback left it."""


class SwappedImageError(LibraryError, exit_code=217):
    """The registry has another image than the one that was built."""
