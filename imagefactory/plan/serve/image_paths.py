"""How the serve program lies in an image: its files, the entrypoint, the health check, the caches."""

from __future__ import annotations

from pathlib import Path

COMPILER = "nvidia-cuda-nvcc"
"""The wheel whose presence makes an image able to compile."""


CUDA_HOME = "usr/local/cuda"


SHARE = "usr/share/imagefactory"
PROGRAM = f"{SHARE}/serve"
SETTINGS = f"{SHARE}/settings.json"
# -I and -S: nothing of the environment and no site-packages; a start in milliseconds.
ENTRYPOINT = ("/usr/bin/python3", "-I", "-S", f"/{PROGRAM}")
COMMAND: tuple[str, ...] = ()
"""Without arguments the image serves its model in the recommended shape."""

CACHES = "/var/cache/imagefactory"
"""Everything that is compiled or tuned at run time; a volume of its own per image, since it holds for one only."""
MODEL_CACHE = "/root/.cache/huggingface"
"""Downloaded models; any number of images share it."""
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
    """Point every run-time cache into one folder, so that one volume makes the second start fast."""
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
    """Say where the program is in a checkout."""
    return root / "images" / "serve"
