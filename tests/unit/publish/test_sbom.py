"""SBOMs: complete, valid by CycloneDX's own schema, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from imagefactory.errors.supply import LicenceUnknownError
from imagefactory.locks.files import LicenceLock
from imagefactory.locks.project import Project, locked_cells
from imagefactory.matrix.cells import Cell
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import ModLayer, ModLink, ModSettings, Plan
from imagefactory.publish.attest.components import components_of, wheel_purl
from imagefactory.publish.attest.sbom import LARGEST, first_difference, make_sbom
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory

PROJECT = Project(REPOSITORY)


VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


@cache
def cells() -> dict[str, Cell]:
    """Take a cell of every wheel lock: the one whose model comes last, which mostly has mods."""
    return {f"{cell.vllm}/{cell.arch}/{cell.platform}": cell for cell in locked_cells(PROJECT)}


@cache
def plan_of(cell: Cell) -> Plan:
    return make_plan(PROJECT, cell)


@cache
def any_plan() -> Plan:
    return plan_of(next(iter(cells().values())))


def hashes(document: dict[str, Any]) -> set[str]:
    """Collect every sha256 in an SBOM, nested components included."""
    found: set[str] = set()
    for part in document["components"]:
        found |= {entry["content"] for entry in part.get("hashes", [])}
        found |= hashes({"components": part.get("components", [])})
    return found


@pytest.mark.parametrize("cell", cells().values(), ids=cells().keys())
def test_an_sbom_is_valid_complete_and_small(cell: Cell) -> None:
    plan = plan_of(cell)
    data = make_sbom(PROJECT, plan)
    assert VALIDATOR.validate_str(data.decode()) is None
    assert len(data) < 1_000_000 < LARGEST
    document = json.loads(data)
    inputs = {item.sha256 for layer in plan.layers for item in layer.inputs}
    assert inputs <= hashes(document)
    assert {wheel.sha256 for wheel in PROJECT.wheel_lock(cell).wheels} <= hashes(document)
    assert {deb.sha256 for deb in PROJECT.base_lock(cell).debs} <= hashes(document)
    named = {part["name"] for part in document["components"]}
    assert {layer.name for layer in plan.layers if layer.kind == "mod"} <= named
    assert "imagefactory-serve" in named


def test_package_urls_are_as_their_specification_wants_them() -> None:
    for part in components_of(PROJECT, any_plan()):
        if part.purl is not None:
            parsed = PackageURL.from_string(part.purl)
            assert parsed.to_string() == part.purl
            assert parsed.version == (part.version or None)


def test_a_wheel_that_was_compiled_is_not_taken_for_its_publishers() -> None:
    published = next(iter(PROJECT.wheel_lock(next(iter(cells().values()))).wheels))
    compiled = published.model_copy(update={"compiled": Sha256("ab" * 32)})
    assert wheel_purl(published).startswith(f"pkg:pypi/{published.name}@")
    assert wheel_purl(compiled).startswith(f"pkg:generic/{published.name}@")
    parsed = PackageURL.from_string(wheel_purl(compiled))
    assert parsed.to_string() == wheel_purl(compiled)
    assert parsed.qualifiers == {"checksum": f"sha256:{published.sha256}", "file_name": published.file}


def test_every_part_of_the_graph_is_a_part_and_hangs_together() -> None:
    document = json.loads(make_sbom(PROJECT, any_plan()))
    known = {"image", *(part["bom-ref"] for part in document["components"])}
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    assert graph.keys() == known
    reached, new = {"image"}, ["image"]
    while new:
        new = [ref for ref in graph[new.pop()] if ref not in reached] + new
        reached.update(new)
    assert reached == known


def test_wheels_say_what_needs_them() -> None:
    document = json.loads(make_sbom(PROJECT, any_plan()))
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    [aiohttp] = [ref for ref in graph if ref.startswith("pkg:pypi/aiohttp@")]
    assert any(ref.startswith("pkg:pypi/yarl@") for ref in graph[aiohttp])


def test_a_model_is_named_but_not_counted_as_installed(small_factory: SmallFactory) -> None:
    project = small_factory.project
    made, named = (json.loads(make_sbom(project, make_plan(project, cell))) for cell in (CELL, SECOND))
    [generated] = [part for part in made["components"] if part["type"] == "machine-learning-model"]
    assert generated["scope"] == "required"
    [model] = [part for part in named["components"] if part["type"] == "machine-learning-model"]
    assert (model["purl"], model["scope"]) == ("pkg:huggingface/somebody/other", "optional")


def test_a_mod_and_what_it_brings_along_are_parts_with_their_licences() -> None:
    """The mods that carry another project's sources are in no locked image today, so the layer is made by hand."""
    mod = next(
        mod for mod in PROJECT.mods.values() if any(variant.source for variant in mod.manifest.variants)
    )
    variant = next(variant for variant in mod.manifest.variants if variant.source)
    assert variant.source is not None
    plan = any_plan()
    link = ModLink.model_validate(mod.data(variant))
    assert link.mod.name == mod.name
    settings = ModSettings(python="3.11", venv="opt/venv", chain=(link,), wheels={}, without={})
    layer = ModLayer.of("mod", mod.name, (), settings)
    parts = components_of(PROJECT, plan.model_copy(update={"layers": (*plan.layers, layer)}))
    [source] = [part for part in parts if part.kind == "source"]
    assert source.licence == variant.source.licence
    assert source.version == variant.source.commit
    assert PackageURL.from_string(str(source.purl)).to_string() == source.purl


def test_surroundings_do_not_matter(small_factory: SmallFactory, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from imagefactory.plan.make import make_plan\n"
        "from imagefactory.locks.project import Project\n"
        "from imagefactory.publish.attest.sbom import make_sbom\n"
        "from tests.fixtures.small_factory import CELL\n"
        "project = Project(pathlib.Path(sys.argv[1]))\n"
        "sys.stdout.buffer.write(make_sbom(project, make_plan(project, CELL)))\n"
    )
    expected = make_sbom(small_factory.project, make_plan(small_factory.project, CELL))
    for seed, zone, locale in (("0", "UTC", "C"), ("4294967295", "Pacific/Kiritimati", "tr_TR.UTF-8")):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONHASHSEED": seed,
            "TZ": zone,
            "LC_ALL": locale,
            "FACTORY_REGISTRY": "elsewhere.example/x",
        }
        command = [sys.executable, "-c", program, str(small_factory.root)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True)
        assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(expected).digest()


def test_other_content_has_another_serial_number(small_factory: SmallFactory) -> None:
    project = small_factory.project
    one, two = (json.loads(make_sbom(project, make_plan(project, cell))) for cell in (CELL, SECOND))
    assert one["serialNumber"] != two["serialNumber"]


def test_an_sbom_without_licences_is_not_made(small_factory: SmallFactory) -> None:
    LicenceLock.path(small_factory.root / "locks").unlink()
    project = small_factory.project
    with pytest.raises(LicenceUnknownError):
        make_sbom(project, make_plan(project, CELL))


def test_the_command_prints_it(small_factory: SmallFactory) -> None:
    done = subprocess.run(
        small_factory.command("sbom", "--target", str(CELL)),
        env=small_factory.environment(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.rstrip(b"\n") == make_sbom(
        small_factory.project, make_plan(small_factory.project, CELL)
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda document: document["components"].pop(0), "is missing"),
        (lambda document: document["components"].append({"bom-ref": "zzz"}), "zzz should not be there"),
        (lambda document: document["components"][0].update(version="9"), 'version is "9", should be "1.0"'),
        (lambda document: document.update(version=2), "version is 2, should be 1"),
        (lambda document: document.pop("components"), "cannot be read (KeyError)"),
    ],
)
def test_a_difference_is_named(small_factory: SmallFactory, change: Any, expected: str) -> None:
    right = make_sbom(small_factory.project, make_plan(small_factory.project, CELL))
    document = json.loads(right)
    change(document)
    assert expected in first_difference(json.dumps(document).encode(), right)


def test_the_same_content_in_another_form_is_a_difference(small_factory: SmallFactory) -> None:
    right = make_sbom(small_factory.project, make_plan(small_factory.project, CELL))
    assert "written differently" in first_difference(json.dumps(json.loads(right), indent=1).encode(), right)
    assert "cannot be read" in first_difference(b"\xff", right)
