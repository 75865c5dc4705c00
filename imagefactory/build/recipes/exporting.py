"""Writes recipes for all images as a registry of sparkrun, beside those for eugr/spark-vllm-docker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from imagefactory.build.start.prepare import prepare
from imagefactory.errors.recipes import NothingToExportError, RegistryFolderError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.layout import writing_output
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.servers.known import server_of
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest

MANIFEST: Final = ".sparkrun/registry.yaml"
FOLDERS: Final = {"sparkrun": "recipes", "eugr": "eugr"}
SPARK: Final = "12.1"
"""The launchers are for machines with this GPU."""
RESERVED: Final = (
    *(
        "arena",
        "spark-arena",
        "sparkarena",
        "sparkrun",
        "official",
        "experimental",
        "transitional",
        "community",
    ),
    *("eugr", "dbotwinick", "raphaelamorim", "scitrera", "atlas"),
)
"""How the names of registries may begin only if they are sparkrun's own."""
MADE = "# Made by `invoke recipes.export`; a later export replaces the files beside it.\n"


@dataclass
class Exported:
    """The files of a registry by their paths in it, and what it lacks."""

    files: dict[str, str] = field(default_factory=dict)
    account: list[str] = field(default_factory=list)


def registry_of(
    project: Project, cells: Sequence[Cell], known: Mapping[Cell, Digest | None] | None = None
) -> Exported:
    """Return the registry of all cells for a DGX Spark whose image is known by its digest.

    `known` has the digests, if the caller has looked them up already.
    """
    exported = Exported()
    spark = [cell for cell in cells if project.matrix.archs[cell.arch].capability == SPARK]
    digests = _digests(project, spark) if known is None else known
    references = {cell: _reference(project, digests.get(cell)) for cell in spark}
    # Each recipe asks the serve program, which is a process of its own.
    with ThreadPoolExecutor() as pool:
        recipes = pool.map(
            lambda item: dict(_recipes(project, *item)),
            [(cell, reference) for cell, reference in references.items() if reference],
        )
        for files in recipes:
            exported.files |= files
    left_out: dict[str, list[str]] = {}
    unpinned: set[str] = set()
    for cell in cells:
        if cell not in references:
            left_out.setdefault("not for the DGX Spark", []).append(str(cell))
        elif references[cell] is None:
            left_out.setdefault("not built yet, so without a digest", []).append(str(cell))
        else:
            model = project.matrix.models[cell.model]
            unpinned |= {repo for repo in model.repositories if project.model_lock.commit_of(repo) is None}
    exported.account += [f"{why}: {', '.join(names)}" for why, names in left_out.items()]
    if not exported.files:
        raise NothingToExportError(
            "No recipe can be written.",
            where="the targets",
            why=f"Of the targets, these are {'; '.join(exported.account)}.",
            fix="Name targets for the DGX Spark that are locked and built; `invoke plan` shows their digests.",
        )
    if unpinned:
        named = ", ".join(sorted(unpinned))
        exported.account.append(f"without a pinned revision (`invoke lock --models`): {named}")
    if "OWNER" in project.matrix.effective_registry:
        exported.account.append("OWNER in the names of images is a placeholder; set FACTORY_REGISTRY")
    exported.files[MANIFEST] = _manifest(project)
    return exported


def write_registry(files: dict[str, str], folder: Path) -> None:
    """Write a registry into an empty folder, or over an earlier one, whose other recipes are removed."""
    with writing_output(folder):
        present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        present = {name for name in present if not name.startswith(".git/")}
        # Somebody may have cloned it to publish it, with a README of their own.
        kept = {name for name in present if "/" not in name}
        manifest = folder / MANIFEST
        own = manifest.is_file() and manifest.read_text("utf-8").startswith(MADE)
        beside = sorted(
            name for name in present - kept if not name.startswith((*FOLDERS.values(), ".sparkrun/"))
        )
        if present and (not own or beside):
            raise RegistryFolderError(
                "The folder is not a registry of this factory.",
                where=folder,
                why=f"It holds {(beside or sorted(present))[0]}, which an export would mix with its own files.",
                fix="Name a new or empty folder, or one that an earlier export wrote.",
            )
        for name in present - kept - set(files):
            (folder / name).unlink()
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(folder / name, text)


def _digests(project: Project, cells: Iterable[Cell]) -> dict[Cell, Digest | None]:
    """Look up the images of locked cells; None if a layer is not on record."""
    layers = KnownLayers(project.known_layers)
    images = {cell: layers.image(make_plan(project, cell)) for cell in cells if project.is_locked(cell)}
    return {cell: image.digest if image else None for cell, image in images.items()}


def _reference(project: Project, digest: Digest | None) -> str | None:
    return f"{project.matrix.effective_registry}@{digest}" if digest else None


def _recipes(project: Project, cell: Cell, reference: str) -> Iterator[tuple[str, str]]:
    start = prepare(project, cell, reference, given={}, environment={"HOME": os.environ.get("HOME", "/")})
    if "sparkrun" in server_of(cell).recipes:
        yield f"{FOLDERS['sparkrun']}/{cell.model_and_version}.yaml", start.recipe("sparkrun")
    if "eugr" in server_of(cell).recipes:
        yield f"{FOLDERS['eugr']}/{cell.model_and_version}.yaml", start.recipe("eugr")


def _manifest(project: Project) -> str:
    *_, owner, name = project.matrix.source.rstrip("/").removesuffix(".git").split("/")
    reserved = name.lower().startswith(RESERVED)
    registry = {
        "name": f"images-{name}" if reserved else name,
        "description": f"Images of {owner}/{name} by digest, one recipe for each",
        "recipes": FOLDERS["sparkrun"],
        "enabled": True,
        "visible": True,
    }
    return MADE + yaml.safe_dump({"registries": [registry]}, sort_keys=False, width=110)
