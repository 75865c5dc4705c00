"""Pictures for the README: the real tables, drawn by the code that shows them on a terminal."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType

from imagefactory.commands.show.live_build import LiveDisplay
from imagefactory.commands.show.terminal import mods_table, plan_table
from imagefactory.locks.project import Project
from imagefactory.mods.compatibility import ModResult
from imagefactory.plan.changes import shared_download
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans
from imagefactory.plan.plan import Plan
from imagefactory.store.atomic import write_text
from imagefactory.store.cache import Store

WIDTH = 116


def draw(project: Project, plan: Plan, results: list[ModResult]) -> dict[str, str]:
    """Draw the plan, a build that has everything on record, and the compatibility table, as SVG by file name."""
    with tempfile.TemporaryDirectory() as empty:
        # What is cached differs from machine to machine; a newcomer has nothing.
        newcomer = replace(project, store=Store(Path(empty)))
        shared = shared_download(plan, locked_plans(project))
        drawings: dict[str, Callable[[], RenderableType]] = {
            "plan": lambda: plan_table(newcomer, plan, shared),
            "build": lambda: _finished_build(project, plan),
            "mods": lambda: mods_table(results),
        }
        titles = {
            "plan": f"./inv plan --target {plan.model}",
            "build": f"./inv build --target {plan.model}",
            "mods": "./inv mods.check",
        }
        return {f"{name}.svg": _svg(drawing(), name, titles[name]) for name, drawing in drawings.items()}


def write(folder: Path, pictures: dict[str, str]) -> list[Path]:
    """Write pictures; list those that changed."""
    changed = [folder / name for name, svg in pictures.items() if _differs(folder / name, svg)]
    for path in changed:
        write_text(path, pictures[path.name])
    return changed


def _finished_build(project: Project, plan: Plan) -> LiveDisplay:
    """Show the end of a build, with the sizes that are on record."""
    known = KnownLayers(project.known_layers)
    display = LiveDisplay()
    display.layers(plan.layers)
    for layer in plan.layers:
        blob = known.blob(layer.key)
        if blob is not None:
            display.state(layer.key, "done", blob.size, blob.size)
    return display


def _svg(renderable: RenderableType, name: str, title: str) -> str:
    console = Console(
        record=True, width=WIDTH, height=100, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(renderable)
    return console.export_svg(title=title, unique_id=name)


def _differs(path: Path, svg: str) -> bool:
    return not path.exists() or path.read_text("utf-8") != svg
