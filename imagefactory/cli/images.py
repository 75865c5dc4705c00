"""Commands for images on this machine: build, load, run, test, export, verify, compare, clean up."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.exceptions import Exit

from imagefactory.cli import options
from imagefactory.cli.command import (
    command,
    find_trust,
    open_repository,
    say,
    select,
    select_one,
    show,
    show_rows,
    warn_of_mods,
    watching,
)
from imagefactory.store.progress import count, counted, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagefactory.project.cells import Cell
    from imagefactory.project.matrix import Matrix
    from imagefactory.project.project import Project
    from imagefactory.publish.attest.image_check import Checked

    Settings = Callable[[Matrix, Cell, Mapping[str, str]], Mapping[str, str]]
    """Makes of the user's settings those that a form of start needs."""


@command(
    fat="keep GPU code that the chip cannot load, for comparison; goes to build/<target>-fat and is not recorded",
    engine="embedded (default), or docker: build the rendered Dockerfile and leave the image in the daemon",
    builder="docker only: use this buildx builder, such as one on another machine or in Kubernetes",
    workers="build this many layers at the same time (default: one per core)",
    cache_from="docker only: read the build cache there, as buildx takes it; repeatable (see docs/engines.md)",
    cache_to="docker only: write the build cache there, as buildx takes it; repeatable",
)
def build(
    project: Project,
    target: list[str],
    cache_from: list[str],
    cache_to: list[str],
    fat: bool = False,
    workers: str = "",
    engine: str = "embedded",
    builder: str = "",
) -> None:
    """Build images from the locks, by default without Docker, and print their digests."""
    from imagefactory.assemble.engines.by_name import BuildOptions, build_images
    from imagefactory.cli.show.tables import built_message

    build_options = BuildOptions(
        fat=fat,
        workers=options.processes("--workers", workers),
        builder=builder,
        cache_from=tuple(cache_from),
        cache_to=tuple(cache_to),
    )
    cells = select(project, target)
    warn_of_mods(project)
    with watching() as watch:
        images = build_images(project, cells, engine, build_options, watch=watch, say=say)
    for image in images:
        say(built_message(image))
        print(image.digest)


@command(file="instead, write one image to this tar file, for docker load, podman load or skopeo (oci-archive:)")
def load(project: Project, target: list[str], file: str | None = None) -> None:
    """Load built images into the Docker daemon, or write one to a file."""
    from imagefactory.assemble.images_here import built_layouts
    from imagefactory.oci.layout import archive, write_archive

    if file is not None:
        place = options.new_file("--file", file)
        [(_, layout, name)] = built_layouts(project, target, one=True)
        with watching() as watch:
            watch.images([name])
            stream = counted(archive(layout, name), lambda done: watch.state(name, "writing", done, layout.size()))
            write_archive(stream, place)
            watch.state(name, "written", layout.size(), layout.size())
        print(file)
        return
    from imagefactory.assemble.engines.docker.daemon import load

    images = built_layouts(project, target)
    with watching() as watch:
        watch.images(name for _, _, name in images)
        loaded = []
        for _, layout, name in images:
            loaded.append(load(layout, name, partial(watch.state, name)))
            watch.state(name, "loaded", layout.size(), layout.size())
    for (cell, layout, name), image_id in zip(images, loaded, strict=True):
        say(f"{cell} is in Docker as {name}")
        say(f"digest, as `build` prints it and registries have it: {layout.manifest_digest()}")
        say("image ID, as `docker image ls` has it:")
        print(image_id)


@command(
    image="run this image instead of the target's own: a reference by digest, or an image ID",
    set="a setting as NAME=VALUE; repeatable (see docs/serving.md); pass keys as variables instead",
    mod="a mod of this checkout that the container applies when it starts; repeatable",
    models="keep downloaded models in this folder of the host (default: ~/.cache/huggingface)",
    print="only print the docker run command",
    compose="only print a compose file",
    with_="also webui, litellm or metrics, separated by commas (docs/companions.md); for Kubernetes: metrics",
    recipe="only print a file for: quadlet (Podman), llama-swap, eugr, sparkrun, kubernetes, slurm or gpustack",
    target="which image: MODEL[@VERSION][/ARCH[/MACHINE]] (default: the first model); repeatable for llama-swap",
    detach="run in the background, and start again after a reboot",
    no_ulimits="leave the limits of memory and stack alone, as a rootless Docker must",
)
def run(
    project: Project,
    set: list[str],
    mod: list[str],
    target: list[str],
    image: str = "",
    models: str = "",
    print_: bool = False,
    compose: bool = False,
    with_: str = "",
    recipe: str = "",
    detach: bool = False,
    no_ulimits: bool = False,
) -> None:
    """Start an image in Docker, or print how to: the one built here, else the published one.

    VLLM_API_KEY or VLLM_API_KEY_FILE sets the server's key, HF_TOKEN the token for gated models.
    """
    from imagefactory.launch import clusters, prepare, recipes
    from imagefactory.launch.companions import chosen_profiles
    from imagefactory.launch.docker_run import HUB_CACHE

    cells = [select_one(project, name) for name in target or [""]]
    profiles = chosen_profiles(with_)
    options.at_most_one(print=print_, compose=compose, recipe=recipe)
    recipes.refuse_unknown(recipe, cells[0])
    form = recipe or ("compose" if compose else "print" if print_ else "")
    is_shared = form not in {"", "print", "compose", recipes.LLAMA_SWAP, recipes.QUADLET}  # a file for others
    options.at_most_one(recipe=is_shared, mod=mod)
    if len(cells) > 1 and (form != recipes.LLAMA_SWAP or image):
        what = "Only `--recipe llama-swap` takes several targets, and then no --image."
        raise options.unfit("--target", what, "Everything else starts one image.", "Name one target.")
    if profiles and form not in {"compose", clusters.KUBERNETES}:
        why = "Only a compose file can start other programs beside the server."
        raise options.unfit("--with", "--with needs --compose, or --recipe kubernetes.", why, "Add --compose.")
    settings = prepare.settings_from(set)
    of_form: Settings = recipes.settings_of_a_recipe if is_shared else prepare.settings_alone
    if form in recipes.CLUSTERS:
        of_form = partial(clusters.settings_of_one_node, form)
    find = {
        "": prepare.image_to_run,
        "print": prepare.image_to_show,
        "compose": prepare.image_to_show,
        recipes.LLAMA_SWAP: prepare.image_to_show,
    }.get(form, prepare.published_reference)
    starts = [
        prepare.prepare(
            project,
            cell,
            prepare.UNKNOWN,
            given=of_form(project.matrix, cell, settings),
            environment=os.environ,
            models=models or HUB_CACHE,
            mods=mod,
            limits=not no_ulimits,
        ).of(image or find(project, cell, say))
        for cell in cells
    ]
    start = starts[0]
    match form:
        case "":
            prepare.make_room(start.launch.container, say)
            print(start.shell(detach=detach), file=sys.stderr, flush=True)
            # Docker takes this process's place: Ctrl-C and the exit code are its own.
            os.execvp("docker", start.line(detach=detach))  # noqa: S606, S607 - as docker is found by the user's shell
        case "print":
            print(start.shell(detach=detach))
        case "compose":
            print(start.compose(profiles, project.companion), end="")
        case recipes.LLAMA_SWAP:
            print(recipes.llama_swap([start.launch for start in starts]), end="")
        case recipes.QUADLET:
            print(recipes.quadlet(start.launch), end="")
        case clusters.KUBERNETES | clusters.SLURM | clusters.GPUSTACK:
            machine = project.matrix.archs[cells[0].arch].memory
            print(clusters.written(form, start.launch, machine, settings, profiles), end="")
        case _:
            print(start.recipe(form))


@command(
    needs="smoke",
    target="test the image built for this target (default: the first model)",
    image="test this image instead: a reference by digest (pulled), or an OCI layout",
    level="static, container, serve or gpu; repeatable (default: all levels of the arch)",
    set="gpu only: a setting as NAME=VALUE, such as MODEL_PATH; repeatable",
)
def smoke(project: Project, level: list[str], set: list[str], target: str = "", image: str = "") -> None:
    """Smoke-test an image and record the results under its digest; a level that cannot run does not pass."""
    from imagefactory.check.smoke.record import levels_named
    from imagefactory.check.smoke.runner import refuse_failed, results_folder, smoke
    from imagefactory.check.smoke.subject import subject_of_image, subject_of_target
    from imagefactory.cli.show.tables import smoke_table
    from imagefactory.launch.prepare import settings_from

    options.at_most_one(target=target, image=image)
    settings = settings_from(set)
    subject = subject_of_image(project, image) if image else subject_of_target(project, target)
    levels = levels_named(level, project.matrix, subject.cell.arch)
    say(f"testing {subject.cell} for {subject.cell.platform}: {subject.digest}")
    record = smoke(project, subject, levels, say, settings)
    folder = results_folder(project, subject.digest)
    show(smoke_table(record))
    print(folder / "record.json")
    refuse_failed(record, levels, by_name=bool(level), folder=folder)


@command(
    "recipes",
    called="export",
    positional=["folder"],
    folder="an empty folder, or one that an earlier export wrote",
    all="every locked target",
)
def export_recipes(project: Project, folder: str, target: list[str], all: bool = False) -> None:
    """Write a registry of sparkrun recipes, and eugr recipes beside it, for what is published, by digest."""
    from imagefactory.launch.recipe_export import published_registry, write_registry
    from imagefactory.project.project import locked_cells

    options.at_most_one(target=target, all=all)
    exported = published_registry(project, locked_cells(project) if all else select(project, target), say)
    write_registry(exported.files, options.new_folder("FOLDER", folder) or Path())
    for line in exported.account:
        say(f"- {line}")
    for name in sorted(exported.files):
        print(name)


@command(
    image="check the signature, provenance, SBOM and layers of a published image (NAME:TAG or NAME@DIGEST)",
    key="with --image: a public key to trust; repeatable (default: keys/*.pub and the workflows that may sign)",
    layers="with --image: also download the layers and check every byte",
    rebuild="with --image: also rebuild it from the lock and compare bit for bit (implies --layers)",
    strict="with --image: fail also if something could not be checked",
)
def verify(
    project: Project,
    target: list[str],
    key: list[str],
    image: str | None = None,
    layers: bool = False,
    rebuild: bool = False,
    strict: bool = False,
) -> None:
    """Rebuild an image from its lock and compare it bit for bit, or check a published image."""
    from imagefactory.assemble.verify import verify
    from imagefactory.cli.show.tables import checked_lines
    from imagefactory.publish.attest.image_check import check_image, refuse_failing

    options.at_most_one(target=target, image=image)
    if image is not None:
        # An unset variable must not verify something else.
        options.filled("--image", image)
        with open_repository(project, image) as repository:
            checked = check_image(project, repository, find_trust(project, key), say, every_byte=layers or rebuild)
        # All are shown before the first is refused.
        for published in checked:
            say(checked_lines(published))
        for published in checked:
            refuse_failing(published, strict=strict)
        for published in checked:
            if rebuild:
                _rebuild_published(project, published)
            print(published.digest)
        return
    for cell in select(project, target):
        with watching() as watch:
            verified = verify(project, cell, watch)
        say(f"{cell}: verified")
        print(verified)


def _rebuild_published(project: Project, published: Checked) -> None:
    """Rebuild a published image, and show whether it gives the same bits; raise if it does not."""
    from imagefactory.assemble.verify import verify
    from imagefactory.cli.show.tables import finding_line
    from imagefactory.errors import FactoryError
    from imagefactory.publish.attest.image_check import Finding, require_plan

    cell = require_plan(published).cell
    try:
        with watching() as watch:
            verify(project, cell, watch, digest=published.digest)
    except FactoryError as error:
        say(finding_line(Finding("rebuild", "failed", f"{cell}: {error.what} {error.why}")))
        raise
    say(finding_line(Finding("rebuild", "ok", f"{cell}: a rebuild gives the same bits")))


@command(
    left="a target, an OCI layout, or an image of the Docker daemon (NAME:TAG)",
    right="another of these",
    all="also show the expected differences between the engines (see docs/engines.md)",
)
def diff(project: Project, left: str, right: str, all: bool = False) -> None:
    """Compare two images by layer, package and path; the exit code is 1 if they differ."""
    from imagefactory.assemble.engines.differences import Pair
    from imagefactory.cli.show.tables import summary_table

    pair = Pair.named(project, left, right)
    if pair.summary:
        show(summary_table(pair.summary))
    with watching() as watch:
        differences, declared = pair.compare(watch)
    shown = [*differences, *declared] if all else differences
    if shown:
        rows = (
            (difference.path, difference.field, difference.left[:60], difference.right[:60]) for difference in shown
        )
        show_rows(rows, "path", "field", "left", "right")
    else:
        print("the images are the same")
    if declared:
        say(f"{count(len(declared), 'expected difference')} between the engines (--all shows them)")
    if differences:
        raise Exit(code=1)


@command(positional=["path"], path="a file in the image, such as /opt/venv/bin/python3")
def explain(project: Project, path: str, target: list[str]) -> None:
    """Show which layer, package and lock entry a path in an image comes from."""
    from imagefactory.assemble.explain import explain
    from imagefactory.cli.show.tables import ownership_table

    for cell in select(project, target):
        show(ownership_table(explain(project, cell, path), project.root))


@command(
    older_than="remove files unused for this many days",
    everything="remove all downloads, layers and blobs",
    dry_run="only report what would be removed",
)
def clean(project: Project, older_than: str = "", everything: bool = False, dry_run: bool = False) -> None:
    """Remove files from the cache: by default those unused for 30 days."""
    from imagefactory.store.cache import clean

    options.at_most_one(everything=everything, older_than=older_than)
    days = options.number("--older-than", older_than or "30")
    cleaned = clean(project.store, older_than=None if everything else days, dry_run=dry_run)
    verb = "would free" if dry_run else "freed"
    say(f"{verb} {size(cleaned.freed)} ({count(cleaned.files, 'file')}); {size(cleaned.kept)} kept")
