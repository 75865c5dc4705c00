"""Where things are in an image: the serve program, the entrypoint, the health check, the caches."""

from __future__ import annotations

from pathlib import Path

COMPILER = "nvidia-cuda-nvcc"
"""The wheel that an image needs to compile kernels."""


CUDA_HOME = "usr/local/cuda"


SHARE = "usr/share/imagefactory"
PROGRAM = f"{SHARE}/serve"
SETTINGS = f"{SHARE}/settings.json"
# -I and -S: nothing of the environment and no site-packages; a start in milliseconds.
ENTRYPOINT = ("/usr/bin/python3", "-I", "-S", f"/{PROGRAM}")
COMMAND: tuple[str, ...] = ()
"""Without arguments, the image serves its model with the recommended settings."""

CACHES = "/var/cache/imagefactory"
"""Everything that is compiled or tuned at run time; each image needs a volume of its own for it."""
MODEL_CACHE = "/root/.cache/huggingface"
"""Downloaded models, shared by any number of images."""
KEY_FILE = "/run/secrets/vllm_api_key"

SECOND = 1_000_000_000
HEALTHCHECK: dict[str, object] = {
    "Test": ["CMD", *ENTRYPOINT, "health"],
    "Interval": 15 * SECOND,
    "Timeout": 10 * SECOND,
    # A first start downloads, compiles and tunes; failures within this time do not count.
    "StartPeriod": 3600 * SECOND,
    "Retries": 4,
}


def cache_environment() -> dict[str, str]:
    """Return the variables that put every run-time cache into one folder, so that one volume makes restarts fast."""
    return {
        "CUDA_CACHE_PATH": f"{CACHES}/cuda",
        "FLASHINFER_WORKSPACE_BASE": f"{CACHES}/flashinfer",
        "HF_HOME": MODEL_CACHE,
        "PYTHONPYCACHEPREFIX": f"{CACHES}/pycache",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHES}/inductor",
        "TRITON_CACHE_DIR": f"{CACHES}/triton",
        "VLLM_CACHE_ROOT": f"{CACHES}/vllm",
    }


def program_folder(root: Path) -> Path:
    """Return the folder of the serve program in a checkout."""
    return root / "images" / "serve"
