"""Finds locked wheels and source archives on the configured package indexes."""

from collections.abc import Callable
from zipfile import BadZipFile, ZipFile

import requests

from imagefactory.project.locks.files import LockedSource, LockedWheel
from imagefactory.store.downloads import Wanted
from imagefactory.store.http import RangeFile
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes, WheelLocation


def configured_indexes() -> Indexes:
    return Indexes(IndexConfig.from_environment())


def offers_of(locked: LockedWheel | LockedSource, indexes: Indexes) -> list[WheelLocation]:
    """List where a locked file is offered; an offer without a hash counts, since the download is checked anyway."""
    return [
        offer
        for offer in indexes.files(locked.name)
        if offer.file == locked.file and offer.sha256 in (None, locked.sha256)
    ]


def open_in_place(locked: LockedWheel | LockedSource, indexes: Indexes, session: requests.Session) -> ZipFile | None:
    """Open a wheel where an index has it, to read parts of it.

    Return None unless the index states its hash and the server supports range requests: what is read in parts is not
    hashed, so somebody has to vouch for it.
    """
    vouched = next((offer for offer in offers_of(locked, indexes) if offer.sha256 == locked.sha256), None)
    if vouched is None:
        return None
    try:
        return ZipFile(vouched.local or RangeFile(vouched.url, session))
    except (OSError, BadZipFile):  # errors from requests are OSErrors, too
        return None


def indexed_file(locked: LockedWheel | LockedSource, indexes: Callable[[], Indexes] = configured_indexes) -> Wanted:
    """Describe a locked file for download; the indexes are asked only if the store does not have it."""

    def locations() -> list[str]:
        return [offer.url for offer in offers_of(locked, indexes())]

    return Wanted(locked.file, locked.sha256, locked.size, locations)
