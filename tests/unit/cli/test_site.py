"""`./inv site` from the command line."""

import json
from pathlib import Path

from tests.fixtures.inv import Inv


def test_site_is_written_and_counted(own_inv: Inv) -> None:
    done = own_inv("site", "--offline")
    assert done.returncode == 0, done.stderr
    folder = own_inv.root / "build" / "site"
    assert done.stdout.strip() == str(folder)
    pages = len(list(folder.rglob("*.html")))
    assert f"{pages} pages, " in done.stderr
    assert len(json.loads((folder / "index.json").read_text())["images"]) > 2


def test_options_are_checked_before_any_work(inv: Inv, places: Path) -> None:
    inv.fails("bad-option", "site", "--offline", "--registry", "a.example/b")
    inv.fails("bad-option", "site", "--offline", "--port", "many")
    inv.fails("output-unusable", "site", "--offline", "--out", str(places / "full"))
    assert [path.name for path in (places / "full").iterdir()] == ["holiday.jpg"]
