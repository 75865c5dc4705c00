"""What the picker knows about images."""

from __future__ import annotations

from typing import Any

from imagefactory.build.start.launcher_recipes import TEMPLATED
from imagefactory.matrix.cells import Cell
from imagefactory.plan.make import make_plan
from imagefactory.servers.known import SERVERS
from imagefactory.site.picker import NOT_OFFERED, picker_data
from tests.fixtures.picker import DIGEST, PROJECT, settings_document


def test_images_have_the_settings_that_they_are_built_with(
    picker_cells: list[Cell], picker: dict[str, Any]
) -> None:
    assert [image["target"] for image in picker["images"]] == [str(cell) for cell in picker_cells]
    for cell, image in list(zip(picker_cells, picker["images"], strict=True))[::9]:
        plan = make_plan(PROJECT, cell)
        [layer] = [layer for layer in plan.layers if layer.kind == "model"]
        assert settings_document(picker, image) == layer.settings.description
        assert image["document"] == layer.settings.model


def test_every_image_is_for_a_machine(picker: dict[str, Any]) -> None:
    machines = {machine["name"]: machine for machine in picker["machines"]}
    for image in picker["images"]:
        machine = machines[image["machine"]]
        assert machine["capability"] == image["facts"]["capability"]
        assert bool(machine["capability"]) == ("total" in machine)


def test_an_image_without_a_digest_is_named_by_its_tag_and_has_no_recipes(picker_cells: list[Cell]) -> None:
    cell = next(cell for cell in picker_cells if cell.model == "gemma4-31b" and cell.version == "0.32.0")
    [built] = picker_data(PROJECT, {cell: DIGEST})["images"]
    [other] = picker_data(PROJECT, {cell: None})["images"]
    assert built["reference"].endswith(f"@{DIGEST}")
    assert set(built["recipes"]) == {"eugr", "sparkrun"}
    assert other["reference"].endswith(":gemma4-31b-v0.32.0")
    assert other["recipes"] == {}


def test_the_picker_of_a_checkout_without_locks_has_no_images() -> None:
    data = picker_data(PROJECT, {})
    assert data["images"] == data["machines"] == []


def test_secrets_and_files_of_the_user_are_not_offered(picker: dict[str, Any]) -> None:
    assert picker["not_offered"] == list(NOT_OFFERED)
    kinds = {
        entry["name"]: entry["kind"] for server in picker["servers"].values() for entry in server["settings"]
    }
    assert {name for name, kind in kinds.items() if kind in {"secret", "path", "flags"}} <= set(NOT_OFFERED)


def test_recipes_know_the_flags_that_users_may_override(picker: dict[str, Any]) -> None:
    for name, server in picker["servers"].items():
        assert len(server["templated"]) == len(TEMPLATED)
        assert server["tensor_parallel"] == SERVERS[name].tensor_parallel
