"""A stub of libcuda to link against: the real one comes with the driver of the machine that runs the image.

The wheels of the CUDA toolkit have no such stub, so we make one with every function that cuda.h declares.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

HEADER = Path("/usr/local/cuda/include/cuda.h")
LINKER = ("-Wl,-soname,libcuda.so.1", "-Wl,--build-id=none")
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu\w+)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu\w+\s+(?:__CUDA_API_PT\w+\()?(cu\w+)", re.MULTILINE)


def names(header: str) -> list[str]:
    """Return the functions of the driver, including the versioned names that macros map them to."""
    found = {*_DECLARED.findall(header), *_RENAMED.findall(header)}
    return sorted(name for name in found if not name.endswith(("_t", "_st")))


def make_stub(folder: Path) -> Path:
    """Compile the stub into a folder; return the folder, which linkers look into."""
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "cuda.c", folder / "libcuda.so"
    text = "".join(f"int {name}(void) {{ return 0; }}\n" for name in names(HEADER.read_text("utf-8")))
    if not library.exists() or not source.exists() or source.read_text("utf-8") != text:
        source.write_text(text, encoding="utf-8")
        subprocess.run(  # noqa: S603 - our own words
            [
                "/usr/bin/gcc",
                "-w",
                "-fno-builtin",
                "-shared",
                "-fPIC",
                *LINKER,
                "-o",
                str(library),
                str(source),
            ],
            check=True,
        )
    return folder
