"""Lists the links that make the CUDA wheels look like an installed toolkit.

vLLM, FlashInfer and Triton compile kernels at run time and expect nvcc and its libraries where an installed toolkit
has them: below CUDA_HOME, in lib64, under names without a version. The wheels have everything, but in
site-packages/nvidia/cu13/lib, under versioned names.
"""

from __future__ import annotations

from imagefactory.oci.entry import Entry, EntryKind, ImagePath
from imagefactory.plan.plan import ToolkitSettings
from imagefactory.plan.serve.image_paths import CUDA_HOME

_LIBRARIES = {
    "cublas": 13,
    "cublasLt": 13,
    "cudart": 13,
    "cufft": 12,
    "curand": 10,
    "cusolver": 12,
    "cusparse": 12,
    "nvJitLink": 13,
    "nvrtc": 13,
}
"""The libraries of CUDA 13 and their major versions."""


def toolkit_links(settings: ToolkitSettings) -> list[Entry]:
    """Return the links, sorted by path."""
    wheels = f"{settings.venv}/lib/python{settings.python}/site-packages/nvidia/cu13"
    links = {CUDA_HOME: f"/{wheels}", f"{wheels}/lib64": "lib"}
    links |= {f"{wheels}/lib/lib{name}.so": f"lib{name}.so.{major}" for name, major in _LIBRARIES.items()}
    return [
        Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target)
        for path, target in sorted(links.items())
    ]
