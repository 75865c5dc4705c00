"""Finds a docker command that can build, and composes its arguments."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.build.engines.docker.daemon import foreign
from imagefactory.errors.docker import BuilderMissingError, EngineTooOldError
from imagefactory.errors.layers import EngineError
from imagefactory.oci.format import MTIME

_BUILDX_NEEDED = 23
"""The first version of the command that leaves BuildKit to the buildx plugin."""
_PATIENCE = 120


@dataclass(frozen=True)
class Builder:
    """A way to run a Dockerfile with BuildKit."""

    command: tuple[str, ...]
    """`docker buildx build` or `docker build`, with the path of the command."""
    buildx: bool
    name: str | None = None
    driver: str = "docker"

    @property
    def is_remote(self) -> bool:
        """Whether it runs outside the local daemon, and so cannot see its images."""
        return self.driver != "docker"

    @property
    def environment(self) -> dict[str, str]:
        """The environment to run it in."""
        return {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain", "LC_ALL": "C.UTF-8"}


def find_builder(name: str | None, platform: str) -> Builder:
    """Find a docker command that can build: with buildx where there is one, else with its own BuildKit."""
    commands = _commands()
    if not commands:
        raise EngineError(
            "There is no docker command.",
            where="PATH",
            why="The Docker engine runs `docker buildx build` or `docker build`.",
            fix="Install Docker, or build without it: `invoke build --engine embedded`.",
        )
    for command in commands:
        if _run(command, "buildx", "version").returncode == 0:
            return _with_buildx(command, name, platform)
    if name is not None:
        raise EngineTooOldError(
            "--builder needs buildx, which this Docker does not have.",
            where=str(commands[0]),
            why="Only buildx knows builders other than the daemon itself.",
            fix="Install the docker-buildx plugin, or leave --builder out.",
        )
    for command in commands:
        if _major(command) < _BUILDX_NEEDED:
            return Builder((str(command), "build"), buildx=False)
    raise EngineTooOldError(
        "This Docker cannot build with BuildKit.",
        where=str(commands[0]),
        why=f"Since version {_BUILDX_NEEDED} the command leaves BuildKit to the buildx plugin, which is missing.",
        fix="Install the docker-buildx plugin, or build without Docker: `invoke build --engine embedded`.",
    )


def refuse_unsupported(builder: Builder, cache_to: Sequence[str]) -> None:
    """Raise an error for options that only buildx has."""
    if cache_to and not builder.buildx:
        raise EngineTooOldError(
            "--cache-to needs buildx, which this Docker does not have.",
            where=builder.command[0],
            why="`docker build` can read a build cache from a registry, but not write one.",
            fix="Install the docker-buildx plugin, or leave --cache-to out.",
        )


def build_arguments(
    builder: Builder,
    *,
    dockerfile: Path,
    context: Path,
    platform: str,
    tag: str,
    base: tuple[str, str] | None,
    cache_from: Sequence[str] = (),
    cache_to: Sequence[str] = (),
) -> list[str]:
    """Return the command line; `base` is (name, OCI layout) for a builder that cannot see the daemon's images."""
    arguments = [
        *builder.command,
        *("--file", str(dockerfile), "--platform", platform, "--tag", tag),
        *("--network", "none", "--build-arg", f"SOURCE_DATE_EPOCH={MTIME}"),
    ]
    if builder.buildx:
        # Provenance holds the time of the build; without it, `--load` gives one plain image.
        arguments += ["--load", "--provenance=false"]
        arguments += ["--builder", builder.name] if builder.name else []
    if base is not None:
        arguments += ["--build-context", f"{base[0]}=oci-layout://{base[1]}"]
    for reference in cache_from:
        arguments += ["--cache-from", _cache(reference, "") if builder.buildx else reference]
    for reference in cache_to:
        arguments += ["--cache-to", _cache(reference, ",mode=max")]
    return [*arguments, str(context)]


def _cache(reference: str, options: str) -> str:
    """Return a cache option: a plain name is a cache in a registry, `type=...` is passed on unchanged."""
    return reference if "=" in reference else f"type=registry,ref={reference}{options}"


def _with_buildx(command: Path, name: str | None, platform: str) -> Builder:
    done = _run(command, "buildx", "inspect", "--bootstrap", *([name] if name else []))
    if done.returncode != 0:
        known = re.findall(r"^(\S+?)\*?\s", _run(command, "buildx", "ls").stdout, flags=re.MULTILINE)
        names = sorted({word for word in known if word not in ("NAME/NODE", "\\_")})
        raise BuilderMissingError(
            f"The builder {name or '(default)'} does not exist or does not start.",
            where="docker buildx inspect",
            why=done.stderr.strip().rpartition("\n")[2],
            fix=f"Known builders: {', '.join(names) or 'none'}; make one with `docker buildx create --name ...`.",
        )
    said = dict(re.findall(r"^(Driver|Platforms):\s*(.*)$", done.stdout, flags=re.MULTILINE))
    platforms = [word.strip(" *") for word in said.get("Platforms", "").split(",")]
    if platforms != [""] and platform not in platforms:
        raise foreign(platform, f"the builder {name or '(default)'}, for {', '.join(platforms)}")
    words = (str(command), "buildx", "build")
    return Builder(words, buildx=True, name=name, driver=said.get("Driver", "docker").strip())


def _commands() -> list[Path]:
    """List every docker on PATH; the first may not be able to build."""
    folders = dict.fromkeys(os.environ.get("PATH", os.defpath).split(os.pathsep))
    found = (Path(folder or ".", "docker") for folder in folders)
    return [path for path in found if path.is_file() and os.access(path, os.X_OK)]


def _major(command: Path) -> int:
    number = re.search(r"version (\d+)", _run(command, "--version").stdout)
    return int(number[1]) if number else _BUILDX_NEEDED


def _run(command: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - a command of the user's own PATH
            [command, *words], capture_output=True, text=True, check=False, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess([str(command)], 1, "", str(error))
