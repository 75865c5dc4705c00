"""Starts an image for GPUs on a CPU, to serve the tiny model; what that takes comes from the tests, not the image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from imagefactory.build.layers.tiny_model import tiny_model
from imagefactory.plan.serve.served import GENERATED_MODELS

TINY: Final = f"{GENERATED_MODELS}/tiny"
_PLACE: Final = "/tmp/on-cpu"  # noqa: S108 - in a container of our own
_BROUGHT: Final = (
    "tests/smoke/on_cpu/serve.sh",
    "tests/smoke/on_cpu/cpu_shim.py",
    "tests/container/with_driver_stub.sh",
)


def on_cpu(root: Path, folder: Path, variables: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return options of `docker run`, and arguments after the image; the model is written to `folder`."""
    model = folder / "tiny"
    model.mkdir(parents=True)
    for name, data in tiny_model().items():
        (model / name).write_bytes(data)
    mounts = {model: TINY} | {root / path: f"{_PLACE}/{Path(path).name}" for path in _BROUGHT}
    options = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}:ro")]
    for name, value in {**variables, "MODEL_PATH": TINY}.items():
        options += ["--env", f"{name}={value}"]
    return (*options, "--entrypoint", "/bin/sh"), (f"{_PLACE}/serve.sh",)
