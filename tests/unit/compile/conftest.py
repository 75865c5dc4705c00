"""What tests of compiles share."""

import shutil
from pathlib import Path

import pytest

from imagefactory.compile.toolchain import CompileProject
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY


@pytest.fixture
def project(tmp_path: Path) -> CompileProject:
    """A checkout with its own store, to compile in without Docker."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    for name in ("locks", "mods", "images"):
        (root / name).symlink_to(REPOSITORY / name)
    return CompileProject(root, Store(tmp_path / "store"))
