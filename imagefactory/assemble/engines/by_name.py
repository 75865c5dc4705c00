"""The engines that turn plans into images, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from imagefactory.assemble.assemble import BuildRun, assemble
from imagefactory.assemble.engines.options import BuildOptions, BuiltImage
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import UsageError, did_you_mean
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan
from imagefactory.project.project import Project
from imagefactory.store.progress import Say

FAT: Final = "-fat"
"""Marks the folder of an image that keeps the GPU code of other chips."""


@dataclass(frozen=True)
class Engine:
    """Builds the image of every plan."""

    summary: str
    """What it does, to follow its name in a sentence."""
    takes: frozenset[str]
    """The names of the BuildOptions that it takes."""
    build: Callable[[Project, Sequence[Plan], BuildOptions, Watcher, Say], list[BuiltImage]]
    slims: bool = False
    """Whether it can take GPU code out of libraries."""


def engine_named(name: str, options: BuildOptions) -> Engine:
    """Return the engine of this name, if it takes all the options that were given."""
    engine = ENGINES.get(name)
    if engine is None:
        raise UsageError(
            "unknown-name",
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
        raise UsageError(
            "bad-setting",
            f"The {name} engine does not take {flag}.",
            where=f"--engine {name}",
            why=f"The {name} engine {engine.summary}.",
            fix=f"Leave {flag} out, or use --engine {other}.",
        )
    return engine


def _assemble(
    project: Project, plans: Sequence[Plan], options: BuildOptions, watch: Watcher, _: Say
) -> list[BuiltImage]:
    run = BuildRun(
        project,
        plans,
        watch,
        known=None if options.fat else KnownLayers(project.known_layers),
        workers=options.workers,
        output=options.output,
        suffix=FAT if options.fat else "",
    )
    return [
        BuiltImage(one.plan, one.image.digest, str(one.layout.folder), tuple(one.image.layers))
        for one in assemble(run)
    ]


def _run_docker(
    project: Project, plans: Sequence[Plan], options: BuildOptions, watch: Watcher, say: Say
) -> list[BuiltImage]:
    from imagefactory.assemble.engines.docker.engine import build_image  # noqa: PLC0415 - takes a second to import

    return [build_image(project, plan, options, watch, say) for plan in plans]


ENGINES: Final[Mapping[str, Engine]] = {
    "embedded": Engine(
        "assembles layers without Docker, bit for bit",
        frozenset({"output", "fat", "workers"}),
        _assemble,
        slims=True,
    ),
    "docker": Engine(
        "runs the rendered Dockerfile; the image stays in the daemon",
        frozenset({"builder", "cache_from", "cache_to"}),
        _run_docker,
    ),
}
