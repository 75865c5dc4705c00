"""`invoke recipes.export` from the command line."""

from __future__ import annotations

from pathlib import Path

from imagefactory.errors.recipes import NothingToExportError
from tests.fixtures.inv import Inv


def test_export_without_a_known_image_writes_nothing(inv: Inv, tmp_path: Path) -> None:
    done = inv("recipes.export", str(tmp_path / "registry"), "--all")
    assert done.returncode == NothingToExportError.exit_code
    assert not (tmp_path / "registry").exists()
