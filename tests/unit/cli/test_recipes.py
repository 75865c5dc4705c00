"""`./inv recipes.export` from the command line."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.failures import refused
from tests.fixtures.inv import Inv


def test_export_without_a_known_image_writes_nothing(inv: Inv, tmp_path: Path) -> None:
    done = inv("recipes.export", str(tmp_path / "registry"), "--all")
    assert refused(done, "nothing-to-export")
    assert not (tmp_path / "registry").exists()
