"""The pictures of the documentation: what commands show in a terminal, as SVG."""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType

from imagefactory.cli.show.live import Display
from imagefactory.cli.show.tables import mods_table, plan_table
from imagefactory.docs.generated import start_picture
from imagefactory.mods.compatibility import ModResult
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import PlanStatus, plan_status
from imagefactory.project.project import Project
from imagefactory.site.pictures import PictureLayer, layer_file
from imagefactory.store.cache import Store


def pictures(project: Project, plan: Plan, results: list[ModResult]) -> dict[Path, str]:
    """Draw a plan, a build and the mods as a terminal shows them, and layers as the site does; return SVG by path.

    Without results, the picture of mods stays as it is.
    """
    folder = project.root / "docs" / "pictures"
    with tempfile.TemporaryDirectory() as empty:
        # What is cached differs from machine to machine; a newcomer has nothing.
        newcomer = replace(project, store=Store(Path(empty)))
        status = plan_status(newcomer, plan)
    drawn = [PictureLayer(layer.kind, layer.name, blob.size) for layer, blob, _ in status.layers if blob]
    return {
        folder / "layers.svg": layer_file(drawn),
        folder / "starts.svg": start_picture(project.root),
        folder / "plan.svg": _svg(plan_table(status), "plan", f"./inv plan --target {plan.model}"),
        folder / "build.svg": _svg(_finished_build(status), "build", f"./inv build --target {plan.model}"),
        **({folder / "mods.svg": _svg(mods_table(results), "mods", "./inv mods.check")} if results else {}),
    }


def _finished_build(status: PlanStatus) -> Display:
    display = Display()
    display.layers(status.plan.layers)
    for layer, blob, _ in status.layers:
        if blob is not None:
            display.state(layer.key, "done", blob.size, blob.size)
    return display


def _svg(renderable: RenderableType, name: str, title: str) -> str:
    console = Console(record=True, width=116, height=100, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(renderable)
    # Rich would derive the ids from the content, and each change would touch every line.
    return console.export_svg(title=title, unique_id=name)
