"""Writes a start for launchers on the same machine: a quadlet unit for Podman, and llama-swap's configuration.

Both come from the `docker run` command, so that they cannot say anything else.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from imagefactory.launch.docker_run import STOP_SECONDS, TOKEN, Launch, compose_text, docker_run, pinned, shell_line
from imagefactory.plan.serve.image_paths import ENTRYPOINT, HEALTHCHECK, SECOND
from imagefactory.project.server_versions import TITLES

QUADLET: Final = "quadlet"
LLAMA_SWAP: Final = "llama-swap"
FIRST_START: Final = 3600
"""Seconds for a first start: benchmarks/starts.yaml has two minutes, a Spark takes ten; the rest is for a download."""
_KEYS: Final = {"--name": "ContainerName", "--network": "Network", "--volume": "Volume", "--env": "Environment"}


def quadlet(launch: Launch) -> str:
    """Return a unit from which systemd makes a service; Podman itself ignores the health check of OCI images."""
    title = f"{TITLES[launch.cell.server]}: {launch.cell.model}"
    lines = ["[Unit]", f"Description={_escaped(title)}", "Wants=network-online.target", "After=network-online.target"]
    lines += ["", "[Container]", *(f"{name}={value}" for name, value in _container(launch))]
    # An image has gigabytes to pull. systemd starts what ends, but not what was stopped.
    lines += ["", "[Service]", "Restart=always", "TimeoutStartSec=3600", f"TimeoutStopSec={STOP_SECONDS + 15}"]
    return "\n".join([*lines, "", "[Install]", "WantedBy=default.target", ""])


def _container(launch: Launch) -> Iterator[tuple[str, str]]:
    yield "Image", pinned(launch.image)
    options = docker_run(launch, detach=False)[3:-1]  # between `docker run --rm` and the image, all with values
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "--gpus":
            yield "AddDevice", "nvidia.com/gpu=all"
        elif option == "--env" and value == TOKEN:
            continue  # a service has no environment to hand on
        elif option == "--env":
            quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
            yield _KEYS[option], f'"{_escaped(quoted)}"'
        elif option in _KEYS:
            yield _KEYS[option], _escaped(value)
        else:
            yield "PodmanArgs", f"{option}={value}"
    yield "HealthCmd", " ".join((*ENTRYPOINT, "health"))
    for name in ("Interval", "Timeout", "StartPeriod"):
        yield f"Health{name}", f"{int(str(HEALTHCHECK[name])) // SECOND}s"
    yield "HealthRetries", str(HEALTHCHECK["Retries"])


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


def llama_swap(launches: Sequence[Launch]) -> str:
    """Return a configuration that starts the model that a request names, and stops the one before."""
    models: dict[str, Any] = {}
    every = Counter(launch.cell.model for launch in launches)
    names = Counter(launch.names[0] for launch in launches)
    for launch in launches:
        cell, name = launch.cell, launch.names[0]
        given = {key: value for key, value in launch.given.items() if key not in {"HOST", "PORT"}}
        command = docker_run(replace(launch, given=given), detach=False)
        command[-1:-1] = ["--env", "HOST=127.0.0.1", "--env", "PORT=${PORT}"]
        known = cell.model if every[cell.model] == 1 else f"{cell.model}@{cell.version}"
        models[known] = {
            "cmd": shell_line(command),
            "cmdStop": f"docker stop {launch.container}",
            "proxy": "http://127.0.0.1:${PORT}",
            "checkEndpoint": "/health",
            "ttl": 0,
            "useModelName": name,
            **({"aliases": [name]} if names[name] == 1 and name != known else {}),
        }
    return compose_text({"healthCheckTimeout": FIRST_START, "unloadTimeout": STOP_SECONDS + 30, "models": models})
