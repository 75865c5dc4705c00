"""SBOMs: complete, valid by CycloneDX's own schema, and the same bytes everywhere."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import LicenceLock, WheelLock
from imagefactory.project.project import Project, locked_cells
from imagefactory.publish.attest.components import components_of, wheel_purl
from imagefactory.publish.attest.sbom import LARGEST, first_difference, make_sbom
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory

COMMITTED = Project(REPOSITORY)
VLLM, SGLANG = (
    [cell for cell in locked_cells(COMMITTED) if cell.arch == "gb10" and cell.version.startswith(start)][-1]
    for start in ("0.", "sglang-")
)
"""The model that comes last, which mostly has mods."""
VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


def sbom_of(factory: SmallFactory, cell: Cell = CELL) -> bytes:
    return make_sbom(factory.project, make_plan(factory.project, cell))


def hashes(document: dict[str, Any]) -> set[str]:
    """Collect every sha256 in an SBOM, nested components included."""
    found: set[str] = set()
    for part in document["components"]:
        found |= {entry["content"] for entry in part.get("hashes", [])}
        found |= hashes({"components": part.get("components", [])})
    return found


@pytest.mark.parametrize("cell", [VLLM, pytest.param(SGLANG, marks=pytest.mark.slow)], ids=str)
def test_the_sbom_of_a_committed_lock_is_valid_complete_and_small(cell: Cell) -> None:
    plan = make_plan(COMMITTED, cell)
    data = make_sbom(COMMITTED, plan)
    assert VALIDATOR.validate_str(data.decode()) is None
    assert len(data) < 1_000_000 < LARGEST
    document = json.loads(data)
    inputs = {item.sha256 for layer in plan.layers for item in layer.inputs}
    wheels, debs = COMMITTED.wheel_lock(cell).wheels, COMMITTED.base_lock(cell).debs
    locked = {wheel.sha256 for wheel in wheels} | {deb.sha256 for deb in debs}
    assert inputs | locked <= hashes(document)
    named = {part["name"] for part in document["components"]}
    assert {"imagefactory-serve", *(layer.name for layer in plan.layers if layer.kind == "mod")} <= named
    for part in components_of(COMMITTED, plan):
        if part.purl is not None:
            parsed = PackageURL.from_string(part.purl)
            assert (parsed.to_string(), parsed.version) == (part.purl, part.version or None)


def test_a_compiled_wheel_is_not_taken_for_its_publishers(small_factory: SmallFactory) -> None:
    published = small_factory.project.wheel_lock(CELL).wheels[0]
    compiled = published.model_copy(update={"compiled": Sha256("ab" * 32)})
    assert wheel_purl(published).startswith(f"pkg:pypi/{published.name}@")
    assert wheel_purl(compiled).startswith(f"pkg:generic/{published.name}@")
    parsed = PackageURL.from_string(wheel_purl(compiled))
    assert parsed.to_string() == wheel_purl(compiled)
    assert parsed.qualifiers == {"checksum": f"sha256:{published.sha256}", "file_name": published.file}


def test_a_graft_names_the_published_wheel_and_the_files_that_were_compiled(
    small_factory: SmallFactory,
) -> None:
    wheel = small_factory.graft()
    data = sbom_of(small_factory)
    assert VALIDATOR.validate_str(data.decode()) is None
    [part] = [part for part in json.loads(data)["components"] if part.get("pedigree")]
    assert part["purl"].startswith(f"pkg:generic/{wheel.name}@")
    assert wheel.graft is not None
    [file], [ancestor] = wheel.graft.replaced, part["pedigree"]["ancestors"]
    assert ancestor["hashes"][0]["content"] == wheel.graft.sha256
    assert ancestor["purl"].startswith(f"pkg:pypi/{wheel.name}@1.0?")
    assert [found["hashes"][0]["content"] for found in ancestor["components"]] == [file.published]
    [compiled] = part["components"]
    assert compiled["name"] == f"/opt/venv/lib/python3.11/site-packages/{file.path}"
    assert compiled["hashes"][0]["content"] == file.sha256


def test_what_is_left_out_is_said_with_the_reason(small_factory: SmallFactory) -> None:
    small_factory.leave_out("lib/python3.11/site-packages/pure/data.bin", "nothing opens it")
    data = sbom_of(small_factory)
    assert VALIDATOR.validate_str(data.decode()) is None
    document = json.loads(data)

    def left_out(component: dict[str, Any]) -> list[str]:
        return [one["value"] for one in component["properties"] if one["name"] == "imagefactory:left-out"]

    [gone] = left_out(document["metadata"]["component"])
    assert gone.startswith("gone ")
    assert gone.endswith(": nothing opens it")
    found = {part["name"]: left_out(part) for part in document["components"]}
    path = "/opt/venv/lib/python3.11/site-packages/pure/data.bin"
    assert found.pop("pure") == [f"{path}: nothing opens it"]
    assert not any(found.values())


def test_the_graph_connects_every_component_to_what_needs_it(small_factory: SmallFactory) -> None:
    path = small_factory.project.wheel_lock_path(CELL)
    lock = WheelLock.read(path)
    first, second, *others = lock.wheels
    needed = second.model_copy(update={"needed_by": (first.name,)})
    lock.model_copy(update={"wheels": (first, needed, *others)}).write(path)
    document = json.loads(sbom_of(small_factory))
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    assert graph.keys() == {"image", *(part["bom-ref"] for part in document["components"])}
    assert graph[wheel_purl(first)] == [wheel_purl(needed)]
    assert {"image", wheel_purl(needed), *graph["image"]} == graph.keys()


def test_a_model_that_is_downloaded_is_listed_as_optional(small_factory: SmallFactory) -> None:
    made, named = (json.loads(sbom_of(small_factory, cell)) for cell in (CELL, SECOND))
    [generated] = [part for part in made["components"] if part["type"] == "machine-learning-model"]
    assert generated["scope"] == "required"
    [model] = [part for part in named["components"] if part["type"] == "machine-learning-model"]
    assert (model["purl"], model["scope"]) == ("pkg:huggingface/somebody/other", "optional")


def test_the_sbom_does_not_depend_on_the_environment(small_factory: SmallFactory, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from imagefactory.plan.make import make_plan\n"
        "from imagefactory.project.project import Project\n"
        "from imagefactory.publish.attest.sbom import make_sbom\n"
        "from tests.fixtures.small_factory import CELL\n"
        "project = Project(pathlib.Path(sys.argv[1]))\n"
        "sys.stdout.buffer.write(make_sbom(project, make_plan(project, CELL)))\n"
    )
    expected = sbom_of(small_factory)
    for seed, zone, locale in (("0", "UTC", "C"), ("4294967295", "Pacific/Kiritimati", "tr_TR.UTF-8")):
        own = {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale, "FACTORY_REGISTRY": "x.example/x"}
        environment = small_factory.environment() | own
        command = [sys.executable, "-c", program, str(small_factory.root)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True)
        assert done.stdout == expected


def test_the_command_prints_the_sbom_which_needs_the_licences(small_factory: SmallFactory) -> None:
    command = small_factory.command("sbom", "--target", str(CELL))
    done = subprocess.run(command, env=small_factory.environment(), capture_output=True, check=True)
    assert done.stdout.rstrip(b"\n") == sbom_of(small_factory)
    LicenceLock.path(small_factory.root / "locks").unlink()
    with raises("no-licence-record"):
        sbom_of(small_factory)


def test_the_first_difference_is_described(small_factory: SmallFactory) -> None:
    right = sbom_of(small_factory)
    changes: dict[str, Callable[[Any], object]] = {
        "is missing": lambda document: document["components"].pop(0),
        "zzz should not be there": lambda document: document["components"].append({"bom-ref": "zzz"}),
        ": another version": lambda document: document["components"][0].update(version="9"),
        "another version": lambda document: document.update(version=2),
        "cannot be read (KeyError)": lambda document: document.pop("components"),
    }
    for expected, change in changes.items():
        document = json.loads(right)
        change(document)
        assert expected in first_difference(json.dumps(document).encode(), right)
    assert "written differently" in first_difference(json.dumps(json.loads(right), indent=1).encode(), right)
    assert "cannot be read" in first_difference(b"\xff", right)
