"""Ways to turn a plan into an image."""

from __future__ import annotations

from typing import Final

from imagefactory.errors import did_you_mean
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.serving import SettingRefusedError

ENGINES: Final = {
    "embedded": "assembles layers without Docker, bit for bit",
    "docker": "runs the rendered Dockerfile; the image stays in the daemon",
}
_FOR_DOCKER_ONLY = frozenset({"builder", "cache-from", "cache-to"})
_FOR_EMBEDDED_ONLY = frozenset({"output", "locked", "workers"})


def engine_named(name: str, options: dict[str, object]) -> str:
    """Check that there is an engine of this name, and that it takes the options that were given."""
    if name not in ENGINES:
        raise UnknownNameError(
            f"There is no engine {name!r}.",
            where="--engine",
            why=did_you_mean(name, ENGINES).capitalize(),
            fix="; ".join(f"{engine}: {what}" for engine, what in ENGINES.items()) + ".",
        )
    foreign = _FOR_EMBEDDED_ONLY if name == "docker" else _FOR_DOCKER_ONLY
    refused = sorted(option for option, value in options.items() if value and option in foreign)
    if refused:
        other = "embedded" if name == "docker" else "docker"
        raise SettingRefusedError(
            f"--{refused[0]} is not for the {name} engine.",
            where=f"--engine {name}",
            why=f"The {name} engine {ENGINES[name]}.",
            fix=f"Leave --{refused[0]} out, or use --engine {other}.",
        )
    return name
