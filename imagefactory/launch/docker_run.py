"""Renders the `docker run` command and the compose file that start an image, with its key in a file of the user."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagefactory.errors import TrustError, UsageError
from imagefactory.launch.rendering import render_yaml, yaml_text
from imagefactory.plan.serve.description import Description, image_environment
from imagefactory.plan.serve.image_paths import CACHES, KEY_FILE, MODEL_CACHE
from imagefactory.project.cells import Cell
from imagefactory.project.servers.server import KEY_SETTINGS
from imagefactory.serve_program import SIMILAR
from imagefactory.store.paths import expand_home

STOP_SECONDS = 30  # how long a server may take to finish its requests when it is stopped
IN_COMPOSE = {"HOST": "SERVER_HOST", "MODEL": "SERVER_MODEL", "PORT": "SERVER_PORT", "NODE_RANK": "SERVER_NODE_RANK"}
"""What a .env file calls settings with names that shells and other programs export, too."""
STACK = 64 * 1024 * 1024  # bytes; with memlock=-1, what NVIDIA's containers of PyTorch ask for
HUB_CACHE = "~/.cache/huggingface"
TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
"""Containers get it from the user's environment, by name: no command or file of ours has its value."""


@dataclass(frozen=True)
class Launch:
    """How a container is started."""

    cell: Cell
    image: str  # a reference that ends in a digest, or an image id
    description: Description
    given: Mapping[str, str] = field(default_factory=dict)  # settings other than the image's defaults; no key
    key_file: Path | None = None  # the host's file with the API key; None for a server without one
    models: str = HUB_CACHE  # the host's folder of downloaded models
    mounts: Mapping[str, str] = field(default_factory=dict)
    """More of the host's files and folders, with their places in the container; it can only read them."""
    with_token: bool = False  # whether the user's environment has a token for the model hub
    with_limits: bool = True  # whether to raise memlock and stack, as GPUs need; rootless engines may not
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()  # devices of the host that the container gets besides GPUs

    @property
    def container(self) -> str:
        return f"{self.cell.server}-{re.sub(r'[^a-zA-Z0-9_.-]', '-', self.cell.model)}"

    @property
    def on_gpu(self) -> bool:
        return bool(self.description["image"]["capability"])

    @property
    def names(self) -> list[str]:
        settings = image_environment(self.description) | dict(self.given)
        names = [name for name in settings.get("SERVED_MODEL_NAME", "").split(",") if name]
        return names or [settings.get("MODEL_PATH") or settings["MODEL"]]

    @property
    def port(self) -> str:
        """The server's port, as other services of a compose file read it."""
        return variable("PORT", (image_environment(self.description) | dict(self.given))["PORT"])

    @property
    def limits(self) -> dict[str, int]:
        return {"memlock": -1, "stack": STACK} if self.on_gpu and self.with_limits else {}

    @property
    def cache_volume(self) -> str:
        """The volume for compiled kernels; each image has its own, since kernels do not fit other images."""
        digest = re.search(r"sha256:([0-9a-f]{12})", self.image)
        return f"imagefactory-{self.cell.slug}-{digest.group(1) if digest else 'local'}"

    @property
    def kv_volume(self) -> str:
        return kv_volume(self.cell)


def kv_volume(cell: Cell) -> str:
    """Return the volume for KV_DISK; a newer image takes over the same one, and reads what fits it."""
    return f"imagefactory-kv-{cell.slug}"


def pinned(reference: str) -> str:
    """Return a reference, or raise an error if it may name a different image tomorrow."""
    if not re.search(r"(^|@)sha256:[0-9a-f]{64}$", reference):
        raise UsageError(
            "unpinned-image",
            f"{reference} does not name its image by digest.",
            where=reference,
            why="A tag can be moved; what others run should be what was tested.",
            fix="Use registry/name@sha256:…, as `./inv push` or `docker image inspect` prints it.",
        )
    return reference


def docker_run(launch: Launch, *, detach: bool = True) -> list[str]:
    """Return the arguments of `docker run`. A key is mounted as a file and never appears among them."""
    lifetime = ("--detach", "--restart", "unless-stopped") if detach else ("--rm",)
    return ["docker", "run", *lifetime, "--name", launch.container, *_options(launch), launch.image]


def docker_once(launch: Launch, *arguments: str) -> list[str]:
    """Return the arguments of a `docker run` that does something else in the same surroundings, and ends."""
    return ["docker", "run", "--rm", *_options(launch), launch.image, *arguments]


def shell_line(words: list[str]) -> str:
    head, options, image = words[:2], words[2:-1], words[-1]
    lines = [shlex.join(head)]
    position = 0
    while position < len(options):
        # An option and its value stay on one line.
        width = 2 if position + 1 < len(options) and not options[position + 1].startswith("-") else 1
        lines.append("  " + shlex.join(options[position : position + width]))
        position += width
    return " \\\n".join([*lines, f"  {shlex.quote(image)}"])


def compose(launch: Launch) -> str:
    return compose_text(compose_document(launch))


def compose_text(document: Mapping[str, Any]) -> str:
    """Write a compose file, which begins with what its reader has to know."""
    # Earlier versions know no `content` of a config.
    comments = [f"# Needs Docker Compose {'2.23.1' if 'configs' in document else '2'} or later."]
    if any("sha256:" not in service["image"] for service in document["services"].values()):
        comments.append("# Tags may move: `./inv lock --upgrade companions` pins the images of others by digest.")
    return "\n".join([*comments, block_text(document)])


def block_text(document: Mapping[str, Any]) -> str:
    return yaml_text(document, "|", 120)


def compose_document(launch: Launch) -> dict[str, Any]:
    """Return a compose file. Its .env file can change settings, and set a key if there is no key file."""
    return render_yaml(
        "compose.yaml",
        launch=launch,
        environment=dict(_compose_environment(launch)),
        stop_seconds=STOP_SECONDS,
        model_cache=MODEL_CACHE,
        caches=CACHES,
    )


def _options(launch: Launch) -> Iterator[str]:
    for name, value in launch.labels.items():
        yield from ("--label", f"{name}={value}")
    if launch.on_gpu:
        yield from ("--gpus", "all")
    # Processes of a server share tensors in /dev/shm, which Docker limits to 64 MB by default.
    yield from ("--network", "host", "--ipc", "host")
    for device in launch.devices:
        yield from ("--device", device)
    for limit, most in launch.limits.items():
        yield from ("--ulimit", f"{limit}={most}")
    yield from ("--stop-timeout", str(STOP_SECONDS))
    yield from ("--volume", f"{expand_home(launch.models, 'the --models option')}:{MODEL_CACHE}")
    yield from ("--volume", f"{launch.cache_volume}:{CACHES}")
    if folder := launch.given.get("KV_DISK"):
        yield from ("--volume", f"{launch.kv_volume}:{folder}")
    for path, place in launch.mounts.items():
        yield from ("--volume", f"{path}:{place}:ro")
    if launch.key_file is not None:
        yield from ("--volume", f"{launch.key_file}:{KEY_FILE}:ro")
        yield from ("--env", f"VLLM_API_KEY_FILE={KEY_FILE}")
    if launch.with_token:
        yield from ("--env", TOKEN)
    for name, value in sorted(launch.given.items()):
        yield from ("--env", f"{name}={value}")


def _compose_environment(launch: Launch) -> Iterator[tuple[str, str | None]]:
    if launch.key_file is not None:
        yield "VLLM_API_KEY_FILE", KEY_FILE
    else:
        # Without a value, compose hands on what the shell or the .env file sets, if anything.
        yield from ((name, None) for name in KEY_SETTINGS)
    yield TOKEN, None
    for name, default in (image_environment(launch.description) | dict(launch.given)).items():
        yield name, variable(name, default)


def variable(name: str, default: str) -> str:
    """Return what has compose look for a setting in the .env file or the shell."""
    # Compose reads no default with braces, dollars or line breaks.
    if re.search(r"[{}$\n]", default):
        return default.replace("$", "$$")
    return f"${{{IN_COMPOSE.get(name, name)}:-{default}}}"


def find_key_file(folder: Path, given: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """Return the file with the API key, or None if no key was given; a key given as text is written to `folder`.

    Settings win over the environment. A key that is given but empty is refused: the server would be open.
    """
    for where, values in (("the --set option", given), ("the environment", environment)):
        names = [name for name in KEY_SETTINGS if name in values]
        if len(names) > 1:
            fix = f"Leave out one of them, preferably {names[0]}."
            raise _not_passed(f"{' and '.join(names)} are both given.", where, "A server has one key.", fix)
        if names == ["VLLM_API_KEY"]:
            return write_key_file(folder, values[names[0]], where)
        if names:
            name = values[names[0]]
            path = expand_home(name, "VLLM_API_KEY_FILE").absolute()
            if name.strip() and path.is_file() and os.access(path, os.R_OK):
                return path
            raise _not_passed(
                "VLLM_API_KEY_FILE names no readable file.",
                where,
                "The container gets the key from this file of this machine.",
                "Correct the path; to serve without a key, leave VLLM_API_KEY_FILE out.",
            )
    for name in filter(SIMILAR.match, environment):
        raise _not_passed(
            f"{name} has no effect: anyone who reaches the port could use the server.",
            "the environment",
            f"The server takes its key from {' or '.join(KEY_SETTINGS)}.",
            f"Set one of them; to serve without a key, unset {name}.",
        )
    return None


def write_key_file(folder: Path, key: str, where: str = "the environment") -> Path:
    """Write an API key to a file that only its owner can read, for mounting into a container."""
    if not key.isprintable() or len(key.split()) != 1:
        raise _not_passed(
            "VLLM_API_KEY is empty or contains blanks.",
            where,
            "Clients send the key as one word. Without a key, the server would be open to everyone.",
            "Make one with `openssl rand -hex 32`; to serve without a key, leave VLLM_API_KEY out.",
        )
    path = folder / "vllm_api_key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A new file, with its mode from the beginning: O_EXCL follows no link that somebody put there.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key)
    except OSError as error:
        fix = "Make the folder writable, or start without a key."
        raise _not_passed("The API key cannot be written to a file.", path, str(error.strerror), fix) from None
    return path


def _not_passed(what: str, where: str | Path, why: str, fix: str) -> TrustError:
    return TrustError("key-not-passed", what, where=where, why=why, fix=fix)
