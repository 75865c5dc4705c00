"""Tests finding locked files on package indexes."""

from pathlib import Path

import pytest

from imagefactory.project.locks.files import LockedSource
from imagefactory.project.locks.indexed_files import indexed_file, offers_of
from imagefactory.store.digests import sha256_of
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes

FILE = "thing-1.0-py3-none-any.whl"
LOCKED = LockedSource(name="thing", version="1.0", file=FILE, sha256=sha256_of(b"right"), size=5)


def index_page(folder: Path, *links: str) -> Indexes:
    """Make an index of one project; a link may end in a hash."""
    page = folder / "thing" / "index.html"
    page.parent.mkdir(parents=True)
    anchors = (f'<a href="{link}">{Path(link.partition("#")[0]).name}</a>' for link in links)
    page.write_text("\n".join(anchors))
    return Indexes(IndexConfig(indexes=(folder.as_uri(),)))


def test_offers_have_the_locked_hash_or_none(tmp_path: Path) -> None:
    right, other = (f"{FILE}#sha256={sha256}" for sha256 in (LOCKED.sha256, sha256_of(b"wrong")))
    indexes = index_page(tmp_path, f"a/{right}", f"b/{other}", f"c/{FILE}", "thing-2.0.tar.gz")
    assert [offer.url.split("/")[-2] for offer in offers_of(LOCKED, indexes)] == ["a", "c"]


def test_indexes_are_queried_only_when_a_location_is_needed() -> None:
    wanted = indexed_file(LOCKED, lambda: pytest.fail("asked too early"))
    assert (wanted.file, wanted.sha256, wanted.size) == (FILE, LOCKED.sha256, 5)
