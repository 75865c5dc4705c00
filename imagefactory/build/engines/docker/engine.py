"""Builds with Docker: uv installs the wheels, and the embedded engine's code makes the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from imagefactory.build.applied_mods import apply_mods, refuse_foreign_files
from imagefactory.build.assemble import BuildRun, make_layers
from imagefactory.build.engines.docker import daemon
from imagefactory.build.engines.docker.buildx import (
    Builder,
    build_arguments,
    find_builder,
    refuse_unsupported,
)
from imagefactory.build.engines.docker.dockerfile import base_image, plan_context, render_plan, write
from imagefactory.build.engines.options import BuildOptions, BuiltImage
from imagefactory.build.fetch import Downloads
from imagefactory.build.inputs import LayerInputs
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors.docker import ImageBuildError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.plan.image_documents import make_image
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import ImageConfig, Plan, WheelLayer
from imagefactory.store.hashed import refuse_changed

LOG = "docker-build.log"
CONTEXT_FOLDER = "context"
_TOLD = 12
"""Lines of a failed build to show; the log has all of them."""
_STEP = re.compile(r"#\d+ \[(?:\S+ )?\s*(\d+/\d+)\] (.*)")
"""Newer versions of BuildKit also name the stage: `#6 [stage-0  1/13] RUN ...`."""
_WHEELS = re.compile(r"source=(wheels/[^,]+)")


def docker_name(project: Project, cell: Cell) -> str:
    """Return the name of the image that the Docker engine builds for a cell."""
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    return f"{repository}:{cell.slug}-docker"


def build_image(project: Project, plan: Plan, options: BuildOptions, watch: Watcher, say: Say) -> BuiltImage:
    """Build the image of a plan from its rendered Dockerfile."""
    cell = plan.cell
    way = find_builder(options.builder or None, cell.platform)
    refuse_unsupported(way, options.cache_to)
    engine = daemon.ask()
    if not way.buildx:
        daemon.refuse_foreign(engine, cell.platform)
    folder = project.build_folder(cell)
    name = docker_name(project, cell)
    with project.store.in_use():
        with Downloads(LayerInputs(project, [cell]), (), watch) as downloads:
            mods = apply_mods(plan.layers, downloads)
            refuse_foreign_files(mods.added, downloads)
            _fetch(project, plan, downloads)
        base = _base_layout(project, plan, watch)
        context = plan_context(project, plan)
        dockerfile, _ = write(render_plan(project, plan), folder)
        arguments = build_arguments(
            way,
            dockerfile=dockerfile,
            context=folder / CONTEXT_FOLDER,
            platform=cell.platform,
            tag=name,
            base=_provide_base(way, base, plan, say),
            cache_from=options.cache_from,
            cache_to=options.cache_to,
        )
        wheels = sum(len(layer.inputs) for layer in plan.layers if isinstance(layer, WheelLayer))
        say(f"putting the build context together: {wheels} wheels as hard links")
        try:
            context.put_together(folder / CONTEXT_FOLDER, project.store, mods.files)
            _run(arguments, way, folder / LOG, say)
        finally:
            shutil.rmtree(folder / CONTEXT_FOLDER, ignore_errors=True)
    found = daemon.image_id(name)
    if found is None:
        raise ImageBuildError(
            f"The build succeeded, but Docker has no image {name}.",
            where=folder / LOG,
            why="The builder did not load the image into this daemon.",
            fix="Check that DOCKER_HOST and the builder belong together.",
        )
    return BuiltImage(plan, found, name)


def _base_layout(project: Project, plan: Plan, watch: Watcher) -> Layout:
    """Write an image of the base alone, from the layer that the embedded engine builds."""
    layer = plan.layers[0]
    empty = ImageConfig(
        env={},
        entrypoint=(),
        command=(),
        labels={},
        user="",
        working_dir="",
        exposed_ports=(),
        stop_signal="",
        created=plan.config.created,
    )
    alone = plan.model_copy(update={"layers": (layer,), "config": empty, "key": layer.key})
    run = BuildRun(project, [alone], watch, KnownLayers(project.known_layers))
    image = make_image(alone, [make_layers(run)[layer.key]])
    return write_layout(image, layer.name, project.store, project.root / "build" / "bases" / layer.key[:16])


def _provide_base(way: Builder, base: Layout, plan: Plan, say: Say) -> tuple[str, str] | None:
    """Make the base available to the builder: load it into the daemon, or pass its layout to a remote builder."""
    name = base_image(plan.layers[0])
    if way.is_remote:
        return name, f"{base.folder}@{base.manifest_digest()}"
    if daemon.image_id(name) != base.config_digest():
        say(f"loading the base as {name}")
        daemon.load(base, name)
    return None


def _fetch(project: Project, plan: Plan, downloads: Downloads) -> None:
    """Download uv and the wheels that the store lacks."""
    layers = [layer for layer in plan.layers[1:] if layer.kind not in ("serve", "bytecode")]
    wanted = [item for layer in layers for item in downloads.inputs.wanted(layer)]
    uv = project.tool_lock.find("uv", plan.cell.machine)
    files = downloads.get([*wanted, downloads.inputs.wheel(uv)])
    refuse_changed(files)
    project.store.mark_used(*files.values())


def _run(arguments: Sequence[str], way: Builder, log: Path, say: Say) -> None:
    """Run the build, report its steps, and keep its whole output in a log."""
    last: deque[str] = deque(maxlen=_TOLD)
    say(f"$ {' '.join(arguments)}")
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(  # noqa: S603 - our own words, and a command of the user's PATH
            arguments,
            env=way.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                file.write(line)
                last.append(line.rstrip())
                step = _STEP.match(line)
                if step is not None:
                    wheels = _WHEELS.search(step[2])
                    say(f"step {step[1]}: {wheels[1] if wheels else step[2][:70]}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise ImageBuildError(
            "The Docker build failed.",
            where=log,
            why="\n         ".join(last),
            fix="The log has every step. If one of the factory's own steps failed, try the embedded engine.",
        )
