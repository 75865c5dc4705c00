"""Finding an engine by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from imagefactory.build.engines.embedded import EmbeddedEngine
from imagefactory.build.engines.protocol import BuildOptions, Engine
from imagefactory.build.engines.with_docker import DockerEngine
from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.serving import SettingRefusedError

ENGINES: Final[Mapping[str, Engine]] = {"embedded": EmbeddedEngine(), "docker": DockerEngine()}


def engine_named(name: str, options: BuildOptions) -> Engine:
    """Return the engine of this name, if it takes all the options that were given."""
    engine = ENGINES.get(name)
    if engine is None:
        raise UnknownNameError(
            f"There is no engine {name!r}.",
            where="--engine",
            why=did_you_mean(name, ENGINES).capitalize(),
            fix="; ".join(f"{known}: {engine.summary}" for known, engine in ENGINES.items()) + ".",
        )
    given = [field.name for field in fields(options) if getattr(options, field.name) != field.default]
    refused = next((option for option in given if option not in engine.takes), None)
    if refused is not None:
        flag = f"--{refused.replace('_', '-')}"
        other = next(known for known, engine in ENGINES.items() if refused in engine.takes)
        raise SettingRefusedError(
            f"The {name} engine does not take {flag}.",
            where=f"--engine {name}",
            why=f"The {name} engine {engine.summary}.",
            fix=f"Leave {flag} out, or use --engine {other}.",
        )
    return engine
