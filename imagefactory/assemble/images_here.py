"""The images in build/: lays them out, and finds those that are up to date."""

from collections.abc import Sequence
from pathlib import Path

from imagefactory.errors import BuildError
from imagefactory.oci.image import Image
from imagefactory.oci.layout import Layout, write_layout, writing_output
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import LAST_PLAN, last_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select, select_one
from imagefactory.store.atomic import write_text


def lay_out(project: Project, plan: Plan, image: Image, folder: Path) -> Layout:
    """Lay an image out in a folder, with the plan that it was built from beside it."""
    layout = write_layout(image, plan.cell.slug, project.store, folder)
    with writing_output(folder):
        write_text(folder / LAST_PLAN, plan.model_dump_json(indent=1))
    return layout


def lay_out_if_here(project: Project, plan: Plan, image: Image) -> None:
    """Lay an image out as a build does, if all of its layers are on this machine."""
    if all(project.store.blob(blob.digest).exists() for blob in image.layers):
        lay_out(project, plan, image, project.build_folder(plan.cell))


def built_layouts(project: Project, targets: Sequence[str], *, one: bool = False) -> list[tuple[Cell, Layout, str]]:
    """Find the images that were built for targets, each with its name in engines; one that is stale is refused."""
    cells = [select_one(project.matrix, "".join(targets[:1]))] if one else select(project.matrix, targets)
    repository = project.matrix.effective_registry.rpartition("/")[2].lower()
    images = []
    for cell in cells:
        layout = Layout(project.build_folder(cell))
        if not (layout.folder / "index.json").exists():
            raise BuildError(
                "no-image",
                f"{cell} is not built here.",
                where=layout.folder,
                why="There is no image in this folder.",
                fix=f"Run `./inv build --target {cell.full_target}`.",
            )
        layout.manifest_digest()  # fails with a remedy when the image is damaged
        refuse_stale(layout, make_plan(project, cell))
        images.append((cell, layout, f"{repository}:{cell.slug}"))
    return images


def refuse_stale(layout: Layout, plan: Plan) -> None:
    built = last_plan(layout.folder)
    if built is None or built.key != plan.key:
        raise BuildError(
            "stale-build",
            f"The image of {plan.cell} is not up to date.",
            where=layout.folder,
            why="Its inputs changed after it was built (`./inv plan --diff` shows how).",
            fix=f"Run `./inv build --target {plan.cell.full_target}` again.",
        )
