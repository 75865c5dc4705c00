"""The pictures of the documentation: what commands show in a terminal, as SVG."""

import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.measure import Measurement

from imagefactory.cli.show.live import Display
from imagefactory.cli.show.tables import mods_table, plan_table
from imagefactory.docs.generated import start_picture
from imagefactory.mods.compatibility import ModResult
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import PlanStatus, plan_status
from imagefactory.project.project import Project
from imagefactory.site.pictures import PictureLayer, layer_file
from imagefactory.store.cache import Store

PHONE = 58
"""Columns of a terminal whose letters are 10 pixels high on a phone, 390 pixels wide."""
_SCALE = 0.7  # Rich draws letters of 20 pixels


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
        **({folder / "mods.svg": mods_picture(results)} if results else {}),
    }


def mods_picture(results: Sequence[ModResult]) -> str:
    shown = mods_table(results).narrow
    return _svg(shown, "mods", "./inv mods.check", _columns(shown))


def _finished_build(status: PlanStatus) -> Display:
    display = Display()
    display.layers(status.plan.layers)
    for layer, blob, _ in status.layers:
        if blob is not None:
            display.state(layer.key, "done", blob.size, blob.size)
    return display


def _svg(renderable: RenderableType, name: str, title: str, columns: int = PHONE) -> str:
    console = Console(record=True, width=columns, height=100, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(renderable)
    # Rich would derive the ids from the content, and each change would touch every line.
    drawn = console.export_svg(title=title, unique_id=name)
    # Without a width, a page would draw it as wide as itself, with letters of twice the size of its own.
    return re.sub(
        r'viewBox="0 0 ([\d.]+) ', lambda box: f'width="{float(box[1]) * _SCALE:.0f}" {box[0]}', drawn, count=1
    )


def _columns(renderable: RenderableType) -> int:
    """Return how wide a terminal shows something without folding it."""
    console = Console(width=1000)
    return max(PHONE, Measurement.get(console, console.options, renderable).maximum)
