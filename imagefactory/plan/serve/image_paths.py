"""Paths in an image: the serve program and other shipped files, the entrypoint, the health check, the caches."""

from pathlib import Path

from imagefactory.project.servers.server import Server

COMPILER = "nvidia-cuda-nvcc"  # the wheel of the CUDA compiler
CUDA_HOME = "usr/local/cuda"

SHARE = "usr/share/imagefactory"
PROGRAM = f"{SHARE}/serve"
SETTINGS = f"{SHARE}/settings.json"
MODS_AT_START = f"/{SHARE}/mods_at_start"
"""The module whose `apply_mods(names, folder)` implements the setting MODS, without `.py`."""
# -I and -S ignore the environment and site-packages, for a start in milliseconds.
ENTRYPOINT = ("/usr/bin/python3", "-I", "-S", f"/{PROGRAM}")
BY_NAME = {
    f"usr/local/bin/{name}": f"/{PROGRAM}/by_name.sh"
    for name in ("check", "download", "health", "help", "pair-test", "settings", "weights")
}
"""Links to the script by which `docker exec CONTAINER health` and the image's other commands work."""
COMMAND: tuple[str, ...] = ()  # without arguments, the image serves its model with its defaults

CACHES = "/var/cache/imagefactory"  # results of compiling and tuning at run time; each image needs its own volume
MODEL_CACHE = "/root/.cache/huggingface"  # downloaded models, shared by all images
KEY_FILE = "/run/secrets/vllm_api_key"

SECOND = 1_000_000_000  # Docker reads nanoseconds
HEALTHCHECK: dict[str, object] = {
    "Test": ["CMD", *ENTRYPOINT, "health"],
    "Interval": 15 * SECOND,
    "Timeout": 10 * SECOND,
    # A first start downloads, compiles and tunes.
    "StartPeriod": 3600 * SECOND,
    "Retries": 2,
}


OFFLINE = {
    # vLLM reports its use from every GPU; the hub's client says what it runs in.
    "DO_NOT_TRACK": "1",
    # Code comes from the lock or is compiled. FlashInfer would fetch it, and vLLM looks whether that can be done.
    "FLASHINFER_CUBINS_REPOSITORY": "file:///nonexistent",
    "FLASHINFER_NO_DOWNLOAD": "1",
}
"""Variables that keep servers from reaching anything but the model hub."""


def cache_environment(server: Server) -> dict[str, str]:
    """Return the variables that put every run-time cache into CACHES, so that one volume makes restarts fast."""
    return {
        "CUDA_CACHE_PATH": f"{CACHES}/cuda",
        "FLASHINFER_WORKSPACE_BASE": f"{CACHES}/flashinfer",
        "HF_HOME": MODEL_CACHE,
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHES}/inductor",
        "TRITON_CACHE_DIR": f"{CACHES}/triton",
        server.cache: f"{CACHES}/{server.name}",
    }


def program_folder(root: Path) -> Path:
    return root / "images" / "serve"


def serve_files(root: Path) -> dict[str, str]:
    """List the files of the serve layer: path in the checkout -> path in the image."""
    program = program_folder(root)
    files = {
        path.relative_to(root).as_posix(): f"{PROGRAM}/{path.relative_to(program).as_posix()}"
        for path in sorted(path for kind in ("py", "json", "sh") for path in program.rglob(f"*.{kind}"))
    }
    files["images/mods/mods_at_start.py"] = f"{MODS_AT_START}.py".lstrip("/")
    package = [root / "images" / "__init__.py", *sorted((root / "images" / "shipped").rglob("*.py"))]
    names = [path.relative_to(root).as_posix() for path in package]
    return files | {name: f"{SHARE}/python/{name}" for name in names}
