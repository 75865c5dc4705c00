"""Writes recipes for all images as a registry of sparkrun, beside those for eugr/spark-vllm-docker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from imagefactory.errors import UsageError
from imagefactory.launch.docker_run import Launch
from imagefactory.launch.prepare import Start, missing_images
from imagefactory.launch.preview import Preview
from imagefactory.launch.recipes import Format, settings_of_a_recipe
from imagefactory.launch.rendering import render_yaml
from imagefactory.oci.layout import writing_output
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.servers.known import server_of
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest
from imagefactory.store.paths import read_text
from imagefactory.store.progress import Say

MANIFEST: Final = ".sparkrun/registry.yaml"
FOLDERS: Final[Mapping[Format, str]] = {"sparkrun": "recipes", "eugr": "eugr"}
SPARK: Final = "12.1"  # the launchers are for machines with this GPU
RESERVED: Final = (
    *("arena", "spark-arena", "sparkarena", "sparkrun", "official", "experimental", "transitional"),
    *("community", "eugr", "dbotwinick", "raphaelamorim", "scitrera", "atlas"),
)
"""Prefixes that sparkrun keeps for the names of its own registries."""
MADE = "# Made by `./inv recipes.export`; a later export replaces the files beside it.\n"


@dataclass
class Exported:
    """The files of a registry by their paths in it, and what it lacks."""

    files: dict[str, str] = field(default_factory=dict)
    account: list[str] = field(default_factory=list)


def published_registry(project: Project, cells: Sequence[Cell], say: Say) -> Exported:
    """Return the registry of all cells for a DGX Spark whose image the project's registry has."""
    layers, registry = KnownLayers(project.known_layers), project.matrix.require_registry()
    images = {
        cell: layers.image(make_plan(project, cell)) for cell in _for_spark(project, cells) if project.is_locked(cell)
    }
    digests = {cell: image.digest for cell, image in images.items() if image}
    return registry_of(project, cells, digests, missing_images(registry, list(digests.values()), say))


def registry_of(
    project: Project, cells: Sequence[Cell], digests: Mapping[Cell, Digest | None], missing: Sequence[Digest] = ()
) -> Exported:
    """Return the registry of all cells for a DGX Spark whose image is known by its digest and not missing."""
    spark = _for_spark(project, cells)
    built = [cell for cell in spark if digests.get(cell)]
    unpublished = [cell for cell in built if digests[cell] in missing]
    exported = Exported()
    for why, left_out in (
        ("not for the DGX Spark", [cell for cell in cells if cell not in spark]),
        ("not built yet, so without a digest", [cell for cell in spark if cell not in built]),
        ("not published (`./inv publish`)", unpublished),
    ):
        if left_out:
            exported.account.append(f"{why}: {', '.join(map(str, left_out))}")
    built = [cell for cell in built if cell not in unpublished]
    if not built:
        raise UsageError(
            "nothing-to-export",
            "No recipe can be written.",
            where="the targets",
            why=f"Of the targets, these are {'; '.join(exported.account)}.",
            fix="Publish an image for the DGX Spark, and name its target; `./inv history` lists what is published.",
        )
    for cell in built:
        exported.files |= _recipes(project, cell, digests[cell])
    exported.files[MANIFEST] = _manifest(project)
    repositories = {repo for cell in built for repo in project.matrix.models[cell.model].repositories}
    unpinned = sorted(repo for repo in repositories if project.model_lock.commit_of(repo) is None)
    if unpinned:
        named = ", ".join(unpinned)
        exported.account.append(f"without a pinned revision (`./inv lock --models`): {named}")
    return exported


def write_registry(files: dict[str, str], folder: Path) -> None:
    """Write a registry into an empty folder, or over an earlier one, whose other recipes are removed."""
    manifest = folder / MANIFEST
    with writing_output(folder):
        # Somebody may have cloned it to publish it, with a README of their own.
        is_ours = manifest.is_file() and read_text(manifest).startswith(MADE)
        present = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        if not is_ours and [name for name in present if name != ".git"]:
            raise UsageError(
                "output-unusable",
                "The folder is not a registry of this factory.",
                where=folder,
                why=f"It holds {present[-1]}, which an export would mix with its own files.",
                fix="Name a new or empty folder, or one that an earlier export wrote.",
            )
        for place in FOLDERS.values():
            for recipe in (folder / place).glob("*.yaml"):
                recipe.unlink()
        for name, text in files.items():
            write_text(folder / name, text)


def _for_spark(project: Project, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if project.matrix.archs[cell.arch].capability == SPARK]


def _recipes(project: Project, cell: Cell, digest: Digest | None) -> dict[str, str]:
    image = f"{project.matrix.effective_registry}@{digest}"
    given = settings_of_a_recipe(project.matrix, cell)
    served = describe_cell(project, cell, project.wheel_lock(cell).kernels)
    start = Preview(project.root, served.description, served.model).start(given)
    command = (*start.server.command, *start.command.arguments)
    launch = Launch(cell, image, served.description, given)
    return {
        f"{folder}/{cell.model_and_version}.yaml": Start(launch, served, command).recipe(style)
        for style, folder in FOLDERS.items()
        if style in server_of(cell).recipes
    }


def _manifest(project: Project) -> str:
    *_, owner, name = project.matrix.effective_source.split("/")
    registry = f"images-{name}" if name.lower().startswith(RESERVED) else name
    document = render_yaml("registry.yaml", name=registry, source=f"{owner}/{name}", recipes=FOLDERS["sparkrun"])
    return MADE + yaml.safe_dump(document, sort_keys=False, width=110)
