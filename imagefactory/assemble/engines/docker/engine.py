"""Builds with Docker: uv installs the wheels, and the embedded engine's code makes the rest."""

import re
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from imagefactory.assemble.applied_mods import apply_mods, refuse_foreign_files
from imagefactory.assemble.assemble import BuildRun, make_layers
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.engines.docker.build_context import plan_context
from imagefactory.assemble.engines.docker.dockerfile import base_image, write
from imagefactory.assemble.inputs import Downloads, LayerInputs
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import BuildError, EngineError
from imagefactory.oci.format import MTIME
from imagefactory.oci.layout import Layout, write_layout
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan, WheelLayer, make_image
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import refuse_changed
from imagefactory.store.progress import Say, count

LOG = "docker-build.log"
_SHOWN = 12  # lines of a failed build to show; the log has all of them
_STEP = re.compile(r"#\d+ \[(?:\S+ )?\s*(\d+/\d+)\] (.*)")
"""Newer versions of BuildKit also name the stage: `#6 [stage-0  1/13] RUN ...`."""
_WHEELS = re.compile(r"source=(wheels/[^,]+)")


def docker_name(project: Project, cell: Cell) -> str:
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    return f"{repository}:{cell.slug}-docker"


def build_image(
    project: Project,
    plan: Plan,
    watch: Watcher,
    say: Say,
    *,
    builder: str = "",  # another than the daemon's own: on another machine, or in Kubernetes
    caches: Sequence[str] = (),  # options and values, as `docker buildx build` takes them
) -> str:
    """Build the image of a plan from its rendered Dockerfile, and return its id."""
    cell = plan.cell
    engine = daemon.ask()
    if not builder:
        daemon.refuse_foreign(engine, cell.platform)
    refuse_missing_buildx()
    folder = project.build_folder(cell)
    context, name = folder / "context", docker_name(project, cell)
    with project.store.in_use():
        inputs = LayerInputs(project, [cell])
        inputs.require_compiled(plan.layers)
        with Downloads(inputs, (), watch) as downloads:
            mods = apply_mods(plan.layers, downloads)
            refuse_foreign_files(mods.added, downloads)
            _fetch(project, plan, downloads)
        base, base_name = _base(project, plan, watch), base_image(plan.layers[0])
        if not builder and daemon.image_id(base_name) != base.config_digest():
            say(f"loading the base as {base_name}")
            daemon.load(base, base_name)
        dockerfile = write(project, plan)
        wheels = sum(len(layer.inputs) for layer in plan.layers if isinstance(layer, WheelLayer))
        say(f"putting the build context together: {count(wheels, 'wheel')} as hard links")
        try:
            plan_context(project, plan).put_together(context, project.store, mods.files)
            arguments = build_arguments(plan, dockerfile, name, base, builder=builder, caches=caches)
            _run([*arguments, str(context)], folder / LOG, say)
        finally:
            shutil.rmtree(context, ignore_errors=True)
    image = daemon.image_id(name)
    if image is None:
        raise BuildError(
            "docker-build-failed",
            f"The build succeeded, but Docker has no image {name}.",
            where=folder / LOG,
            why="The builder did not load the image into this daemon.",
            fix="Check that DOCKER_HOST and the builder belong together; `docker buildx ls` lists the builders.",
        )
    return image


def refuse_missing_buildx() -> None:
    command = ["docker", "buildx", "version"]
    try:
        completed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own words
        what = "Docker has no buildx." if completed.returncode else ""
    except FileNotFoundError:
        what = "There is no docker command."
    if what:
        raise EngineError(
            "engine-failed",
            what,
            where=" ".join(command),
            why="The Docker engine runs `docker buildx build`, which is a plugin of its own.",
            fix="Install Docker and the plugin (docker-buildx-plugin in Docker's repository, docker-buildx in those of "
            "Debian 13 and Ubuntu), or build without Docker: `./inv build --engine embedded`.",
        )


def build_arguments(
    plan: Plan, dockerfile: Path, name: str, base: Layout, *, builder: str, caches: Sequence[str]
) -> list[str]:
    """Return the command line of a build, without the folder of its context at the end."""
    arguments = [
        *("docker", "buildx", "build", "--builder", builder or "default", "--progress", "plain"),
        *("--file", str(dockerfile), "--platform", plan.platform, "--tag", name),
        *("--network", "none", "--build-arg", f"SOURCE_DATE_EPOCH={MTIME}"),
        # Provenance holds the time of the build; without it, `--load` gives one plain image.
        *("--load", "--provenance=false"),
    ]
    if builder:  # it cannot see what the daemon has loaded
        layout = f"oci-layout://{base.folder}@{base.manifest_digest()}"
        arguments += ["--build-context", f"{base_image(plan.layers[0])}={layout}"]
    return [*arguments, *caches]


def _base(project: Project, plan: Plan, watch: Watcher) -> Layout:
    """Lay out an image of the base alone, from the layer that the embedded engine builds."""
    layer = plan.layers[0]
    nothing = {name: type(value)() for name, value in plan.config if name != "created"}
    empty = plan.config.model_copy(update=nothing)
    alone = plan.model_copy(update={"layers": (layer,), "config": empty, "key": layer.key})
    run = BuildRun(project, [alone], watch, KnownLayers(project.known_layers))
    image = make_image(alone, [make_layers(run)[layer.key]])
    folder = project.root / "build" / "bases" / layer.key[:16]
    return write_layout(image, layer.name, project.store, folder)


def _fetch(project: Project, plan: Plan, downloads: Downloads) -> None:
    layers = [layer for layer in plan.layers[1:] if layer.kind not in ("serve", "bytecode")]
    locked = [file for layer in layers for file in downloads.inputs.wanted(layer)]
    uv = project.tool_lock.find("uv", plan.cell.machine)
    files = downloads.get([*locked, downloads.inputs.wheel(uv)])
    refuse_changed(files)
    project.store.mark_used(*files.values())


def _run(arguments: Sequence[str], log: Path, say: Say) -> None:
    last: deque[str] = deque(maxlen=_SHOWN)
    say(f"$ {' '.join(arguments)}")
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(  # noqa: S603 - our own words, and a command of the user's PATH
            arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
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
        raise BuildError(
            "docker-build-failed",
            "The Docker build failed.",
            where=log,
            why="\n         ".join(last),
            fix="The log has every step. If one of the factory's own steps failed, try the embedded engine.",
        )
