"""Tables of plans and targets."""

from __future__ import annotations

from rich.console import Console

from imagefactory.commands.show.tables import plan_table, targets_table
from imagefactory.locks.target_status import TargetStatus
from imagefactory.plan.make import make_plan
from imagefactory.plan.status import LayerStatus, PlanStatus
from tests.fixtures.small_factory import CELL, SmallFactory


def shown(table: object) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_a_plan_shows_cached_layers_and_an_unknown_image(small_factory: SmallFactory) -> None:
    plan = make_plan(small_factory.project, CELL)
    first, *others = plan.layers
    layers = (
        LayerStatus(first, None, cached=True),
        *(LayerStatus(layer, None, cached=False) for layer in others),
    )
    text = shown(plan_table(PlanStatus(plan, layers, None, 0)))
    assert f"{len(plan.layers)} layers (1 cached)" in text
    assert text.count("to build") == len(others)
    assert "image not known before it is built" in text


def test_a_target_is_one_row() -> None:
    row = TargetStatus("tiny", "1.0", "cpu", "linux/arm64", "auto", "shipped", "no", "generated")
    heading, line = shown(targets_table([row])).splitlines()
    assert heading.split() == ["model", "vLLM", "arch", "platform", "mods", "kernels", "locked", "revision"]
    assert line.split() == list(vars(row).values())
