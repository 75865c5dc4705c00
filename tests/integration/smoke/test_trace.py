"""Tracing a real container: modules, libraries that C code loads, and programs are noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.smoke.containers import ContainerError
from imagefactory.smoke.trace import Recording, noted_paths

pytestmark = pytest.mark.engine

PROGRAM = "import subprocess, torch; subprocess.run(['true'], check=True)"
PYTHON = "3.11"
SITE = f"/opt/venv/lib/python{PYTHON}/site-packages"


def test_container_notes_modules_libraries_and_programs(tiny_image: str, tmp_path: Path) -> None:
    recording = Recording(tiny_image, PYTHON, tmp_path)
    try:
        recording.run("import", "-c", PROGRAM)
        noted = noted_paths(tmp_path)
        assert f"{SITE}/torch/__init__.py" in noted
        assert any(path.endswith("/torch/lib/libtorch_cpu.so") for path in noted)
        assert any(path.endswith("bin/true") for path in noted)
        with pytest.raises(ContainerError, match="no_such_module"):
            recording.run("failing", "-c", "import no_such_module")
    finally:
        recording.containers.remove_all()
