"""A site is written whole or not at all, and only where nothing else is."""

from __future__ import annotations

from pathlib import Path

from imagefactory.site.writing import write_site
from tests.fixtures.failures import raises

FILES = {"index.html": b"1", "index.json": b"{}", "feed.xml": b"", "models/a.html": b"a"}


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_site_replaces_an_earlier_one(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "site"
    write_site(FILES | {"models/old.html": b"old"}, folder)
    write_site(FILES, folder)
    assert contents(folder) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["site"]
    assert folder.stat().st_mode & 0o777 == 0o755


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    write_site(FILES, tmp_path)
    assert contents(tmp_path) == FILES


def test_folder_with_something_else_is_left_alone(places: Path) -> None:
    with raises("output-unusable", match="holiday"):
        write_site(FILES, places / "full")
    with raises("output-unusable"):
        write_site(FILES, places / "file")
    assert contents(places / "full") == {"holiday.jpg": b""}


def test_failure_half_way_leaves_the_old_site(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_site(FILES, folder)
    with raises("output-unusable"):
        write_site({"index.html": b"2", "index.html/x": b""}, folder)
    assert contents(folder) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
