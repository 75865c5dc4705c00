"""What tests of compiles share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagefactory.compile.toolchain import CompileProject
from imagefactory.matrix.targets import host_machine
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import REPOSITORY


@pytest.fixture
def project(tmp_path: Path) -> CompileProject:
    """A checkout with its own store, whose cuobjdump prints the library itself."""
    root = tmp_path / "checkout"
    root.mkdir()
    shutil.copy(REPOSITORY / "matrix.yaml", root)
    for name in ("locks", "mods", "images"):
        (root / name).symlink_to(REPOSITORY / name)
    project = CompileProject(root, Store(tmp_path / "store"))
    tool = project.tool_lock.find("nvidia-cuda-cuobjdump", host_machine())
    cuobjdump = project.store.root / "tools" / tool.sha256 / "cuobjdump"
    cuobjdump.parent.mkdir(parents=True)
    cuobjdump.write_text('#!/bin/sh\ncat "$1"\n')
    cuobjdump.chmod(0o755)
    return project
