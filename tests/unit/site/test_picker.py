"""What the picker knows about images."""

from __future__ import annotations

import json
from typing import Any

from imagefactory.launch.recipes import TEMPLATED
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.description import describe_cell, image_environment
from imagefactory.plan.serve.image_paths import program_folder
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.servers.known import SERVERS
from imagefactory.site.picker import MEMORY, NOT_OFFERED, Offer, picker_data
from images.serve.program import memory
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.picker import DIGEST, PROJECT, settings_document


def test_images_have_the_settings_that_they_are_built_with(picker_cells: list[Cell], picker: dict[str, Any]) -> None:
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
    [built] = picker_data(PROJECT, {cell: Offer(DIGEST, "current")})["images"]
    [other] = picker_data(PROJECT, {cell: Offer(None, "planned")})["images"]
    assert built["reference"].endswith(f"@{DIGEST}")
    assert set(built["recipes"]) == {"eugr", "sparkrun"}
    assert other["reference"].endswith(":gemma4-31b-v0.32.0")
    assert other["recipes"] == {}


def test_every_image_starts_on_an_idle_machine_with_its_own_defaults() -> None:
    refused: dict[str, str] = {}
    for cell in (cell for cell in buildable(PROJECT.matrix) if cell.arch in MEMORY):
        served = describe_cell(PROJECT, cell)
        defaults, facts = image_environment(served.description), served.description["image"]["memory"]
        rules = json.loads((program_folder(REPOSITORY) / f"program/servers/{cell.server}.json").read_text())
        share, nodes = memory.Share(**rules["share"]), int(defaults["NODES"])
        per_token = int(facts["kv_per_token"] * memory.compression(defaults.get("KV_CACHE_DTYPE", "")))
        needs = memory.Needs(
            facts["weights"] // nodes,
            facts["drafter"] if "DFLASH_DRAFTER" in defaults else 0,
            per_token if facts.get("latent") else per_token // nodes,
            facts["kv_per_sequence"] // nodes,
            facts["context"],
        )
        taken = float(defaults.get("GPU_MEMORY_UTILIZATION", share.default))
        length = int(defaults.get("MAX_MODEL_LEN", 0))
        verdict = memory.judge(memory.Machine(**MEMORY[cell.arch]), needs, share, taken, length)
        refused |= {str(cell): verdict.remedy} if verdict.setting else {}
    assert refused == {}


def test_the_picker_of_a_checkout_without_locks_has_no_images() -> None:
    data = picker_data(PROJECT, {})
    assert data["images"] == data["machines"] == []


def test_secrets_and_files_of_the_user_are_not_offered(picker: dict[str, Any]) -> None:
    assert picker["not_offered"] == list(NOT_OFFERED)
    kinds = {entry["name"]: entry["kind"] for server in picker["servers"].values() for entry in server["settings"]}
    assert {name for name, kind in kinds.items() if kind in {"secret", "path", "flags"}} <= set(NOT_OFFERED)


def test_recipes_know_the_flags_that_users_may_override(picker: dict[str, Any]) -> None:
    for name, server in picker["servers"].items():
        assert len(server["templated"]) == len(TEMPLATED)
        assert server["tensor_parallel"] == SERVERS[name].tensor_parallel
