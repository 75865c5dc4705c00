"""Renders the `docker run` command and the compose file that start an image."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from imagefactory.environment.paths import expand_home
from imagefactory.errors.serving import KeyFileUnusableError, UnpinnedImageError
from imagefactory.matrix.cells import Cell
from imagefactory.plan.serve.description import Description, image_environment
from imagefactory.plan.serve.image_paths import CACHES, KEY_FILE, MODEL_CACHE

STOP_SECONDS = 30
"""How long a server may take to finish its requests when it is stopped."""
STACK = 64 * 1024 * 1024
HUB_CACHE = "~/.cache/huggingface"


@dataclass(frozen=True)
class Launch:
    """How a container is started."""

    cell: Cell
    image: str
    """A reference that ends in a digest, or an image id."""
    description: Description
    given: Mapping[str, str] = field(default_factory=dict)
    """Settings that differ from the image's defaults."""
    key_file: Path | None = None
    models: str = HUB_CACHE
    """The host's folder of downloaded models."""

    @property
    def container(self) -> str:
        """The name of the container."""
        return f"vllm-{re.sub(r'[^a-zA-Z0-9_.-]', '-', self.cell.model)}"

    @property
    def on_gpu(self) -> bool:
        """Whether the container needs GPUs."""
        return bool(self.description["image"]["capability"])

    @property
    def cache_volume(self) -> str:
        """The volume for compiled kernels; each image has its own, since kernels do not fit other images."""
        found = re.search(r"sha256:([0-9a-f]{12})", self.image)
        return f"imagefactory-{self.cell.slug}-{found.group(1) if found else 'local'}"


def pinned(reference: str) -> str:
    """Return a reference, or raise an error if it may name a different image tomorrow."""
    if not re.search(r"(^|@)sha256:[0-9a-f]{64}$", reference):
        raise UnpinnedImageError(
            f"{reference} does not name its image by digest.",
            where=reference,
            why="A tag can be moved; what others run should be what was tested.",
            fix="Use registry/name@sha256:…, as `invoke push` or `docker image inspect` prints it.",
        )
    return reference


def docker_run(launch: Launch, *, detach: bool = True) -> list[str]:
    """Return the arguments of `docker run`. A key is mounted as a file and never appears among them."""
    return ["docker", "run", *_options(launch, detach=detach), launch.image]


def shell_line(words: list[str]) -> str:
    """Format a command for pasting, one option per line."""
    head, options, image = words[:2], words[2:-1], words[-1]
    lines = [shlex.join(head)]
    position = 0
    while position < len(options):
        width = 2 if position + 1 < len(options) and not options[position + 1].startswith("-") else 1
        lines.append("  " + shlex.join(options[position : position + width]))
        position += width
    return " \\\n".join([*lines, f"  {shlex.quote(image)}"])


def compose(launch: Launch) -> str:
    """Return a compose file. Its .env file can change settings; the key comes from the environment."""
    service: dict[str, Any] = {
        "image": launch.image,
        "container_name": launch.container,
        "network_mode": "host",
        "ipc": "host",
        "ulimits": {"memlock": -1, "stack": STACK},
        "restart": "unless-stopped",
        "stop_grace_period": f"{STOP_SECONDS}s",
        "environment": dict(_compose_environment(launch)),
        "volumes": [f"{launch.models}:{MODEL_CACHE}", f"kernels:{CACHES}"],
    }
    if launch.on_gpu:
        service["deploy"] = {
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}
            }
        }
    document: dict[str, Any] = {
        "services": {"vllm": service},
        "volumes": {"kernels": {"name": launch.cache_volume}},
    }
    if launch.key_file is not None:
        service["secrets"] = ["vllm_api_key"]
        document["secrets"] = {"vllm_api_key": {"environment": "VLLM_API_KEY"}}
    return yaml.safe_dump(document, sort_keys=False, width=120)


def write_key_file(folder: Path, key: str) -> Path:
    """Write an API key to a file that only its owner can read, for mounting into a container."""
    if not key or len(key.split()) != 1:
        raise KeyFileUnusableError(
            "VLLM_API_KEY is empty or holds blanks.",
            where="the environment",
            why="Clients send the key as one word.",
            fix="Make one with `openssl rand -hex 32` and keep it; clients need it, too.",
        )
    path = folder / "vllm_api_key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
    except OSError as error:
        raise KeyFileUnusableError(
            "The API key cannot be written to a file.",
            where=path,
            why=str(error.strerror),
            fix="Make the folder writable, or start without a key.",
        ) from None
    return path


def _options(launch: Launch, *, detach: bool) -> Iterator[str]:
    yield from ("--detach", "--restart", "unless-stopped") if detach else ("--rm",)
    yield from ("--name", launch.container)
    if launch.on_gpu:
        yield from ("--gpus", "all")
    yield from ("--network", "host", "--ipc", "host")
    yield from ("--ulimit", "memlock=-1", "--ulimit", f"stack={STACK}")
    yield from ("--stop-timeout", str(STOP_SECONDS))
    yield from ("--volume", f"{expand_home(launch.models, 'the --models option')}:{MODEL_CACHE}")
    yield from ("--volume", f"{launch.cache_volume}:{CACHES}")
    if launch.key_file is not None:
        yield from ("--volume", f"{launch.key_file}:{KEY_FILE}:ro")
        yield from ("--env", f"VLLM_API_KEY_FILE={KEY_FILE}")
    for name, value in sorted(launch.given.items()):
        if name != "VLLM_API_KEY":
            yield from ("--env", f"{name}={value}")


def _compose_environment(launch: Launch) -> Iterator[tuple[str, str]]:
    if launch.key_file is not None:
        yield "VLLM_API_KEY_FILE", KEY_FILE
    for name, default in (image_environment(launch.description) | dict(launch.given)).items():
        if name == "VLLM_API_KEY":
            continue
        # ${NAME:-default} lets a .env file change it; a default with braces or dollars cannot.
        plain = not re.search(r"[{}$]", default)
        yield name, f"${{{name}:-{default}}}" if plain else default.replace("$", "$$")
