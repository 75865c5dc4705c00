"""Builds images with one of the two engines, by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from imagefactory.assemble.assemble import BuildRun, assemble
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import UsageError, unknown_name
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.progress import Say, count

ENGINES: Final = ("embedded", "docker")
_FOR_BUILDX: Final = frozenset({"builder", "cache_from", "cache_to"})
FAT: Final = "-fat"  # marks the folder of an image that keeps the GPU code of other chips


@dataclass(frozen=True)
class BuildOptions:
    """Options of `./inv build`; each engine takes its own."""

    fat: bool = False
    workers: int | None = None
    builder: str = ""
    cache_from: Sequence[str] = ()
    cache_to: Sequence[str] = ()


@dataclass(frozen=True)
class BuiltImage:
    """A finished image."""

    plan: Plan
    digest: str  # of the manifest; of the configuration (the image id) for an image in the Docker daemon
    where: str  # a folder, or the image's name in the Docker daemon
    layers: tuple[Blob, ...] = ()  # empty where the engine does not know them


def refuse_engine(engine: str, options: BuildOptions) -> None:
    if engine not in ENGINES:
        hint = " embedded assembles layers without Docker, bit for bit; docker runs the rendered Dockerfile."
        raise unknown_name("engine", engine, ENGINES, "the --engine option", hint=hint)
    given = [name for name, value in vars(options).items() if value]
    foreign = [name for name in given if (name in _FOR_BUILDX) is not (engine == "docker")]
    if foreign:
        flag, other = f"--{foreign[0].replace('_', '-')}", "embedded" if engine == "docker" else "docker"
        raise UsageError(
            "bad-setting",
            f"The {engine} engine does not take {flag}.",
            where=f"--engine {engine}",
            why=f"It is an option of the {other} engine.",
            fix=f"Leave {flag} out, or use --engine {other}.",
        )


def build_images(
    project: Project, cells: Sequence[Cell], engine: str, options: BuildOptions, *, watch: Watcher, say: Say
) -> list[BuiltImage]:
    """Build the images of cells; the Docker engine does not slim."""
    refuse_engine(engine, options)
    if engine == "docker":
        from imagefactory.assemble.engines.docker.engine import build_image, docker_name  # noqa: PLC0415 - slow

        caches = [word for cache in options.cache_from for word in ("--cache-from", cache)]
        caches += [word for cache in options.cache_to for word in ("--cache-to", cache)]
        built = []
        for plan in [make_plan(project, cell, fat=True) for cell in cells]:
            image = build_image(project, plan, watch, say, builder=options.builder, caches=caches)
            built.append(BuiltImage(plan, image, docker_name(project, plan.cell)))
        return built
    known = None if options.fat else KnownLayers(project.known_layers)
    run = BuildRun(
        project,
        [make_plan(project, cell, fat=options.fat) for cell in cells],
        watch,
        known=known,
        workers=options.workers,
        suffix=FAT if options.fat else "",
    )
    built = [
        BuiltImage(build.plan, build.image.digest, str(build.layout.folder), tuple(build.image.layers))
        for build in assemble(run)
    ]
    new = {layer.key for plan in run.plans for layer in plan.layers if known and not known.blob(layer.key)}
    if new:
        recorded = f"{count(len(new), 'new layer')} recorded"
        say(f"locks/{project.known_layers.name}: {recorded}; commit it with the change that made them")
    return built
