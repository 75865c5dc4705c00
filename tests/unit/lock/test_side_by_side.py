"""Tests comparing the kernels of the published wheel, a grafted one and a target."""

import json
import re
from pathlib import Path

import pytest

from imagefactory.lock import auditing
from imagefactory.lock.auditing import Audited, audit, open_subject
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import Graft, ReplacedFile, WheelLock
from imagefactory.project.locks.kernels import GpuCode
from imagefactory.project.project import Project
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.inv import Inv
from tests.fixtures.wheels import make_wheel

C, MOE = "vllm/_C.abi3.so", "vllm/_moe_C.abi3.so"
GRAFT = Graft(
    file="vllm-2.0-published.whl",
    sha256=Sha256("b" * 64),
    replaced=(ReplacedFile(path=C, published=Sha256("c" * 64), sha256=Sha256("d" * 64)),),
)


def wheel(folder: Path, name: str, code: str, record: str | None = None) -> Path:
    files: dict[str, bytes | str] = {C: code, MOE: "sm_120f"}
    if record is not None:
        files["vllm-2.0.dist-info/imagefactory.json"] = record
    return make_wheel(folder / name, "vllm", "2.0", files=files, tag="cp38-abi3-manylinux_2_28_aarch64")


@pytest.fixture
def project(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A checkout where the text of a library is its only GPU target."""
    monkeypatch.setattr(auditing, "read_kernels", lambda file: GpuCode({file.read_text(): 3}))
    return Project(locked_checkout.root)


def test_published_and_grafted_wheel_stand_side_by_side(project: Project, tmp_path: Path) -> None:
    published = wheel(tmp_path, "published", "sm_120f")
    grafted = wheel(tmp_path, "grafted", "sm_121a", json.dumps({"graft": GRAFT.model_dump(mode="json")}))
    left, right = (audit(project, str(path), "gpu") for path in (published, grafted))
    assert (left.about(C), right.about(C)) == ("native: sm_120f x3", "compiled, native: sm_121a x3")
    assert left.about(MOE) == right.about(MOE) == "native: sm_120f x3"
    assert left.about("vllm/other.so") == ""
    assert left.title == published.name
    assert Audited("big@2.0/gpu", ()).title == "big@2.0/gpu"


@pytest.mark.parametrize("record", ["", '{"graft": {"file": 3}}'])
def test_wheel_with_an_unreadable_record_counts_as_published(project: Project, tmp_path: Path, record: str) -> None:
    assert open_subject(project, str(wheel(tmp_path, "odd", "sm_121a", record)))[2] == frozenset()


def test_target_says_which_libraries_were_compiled(project: Project) -> None:
    cell = Cell("big", "2.0", "gpu", "linux/arm64")
    path = project.wheel_lock_path(cell)
    lock = WheelLock.read(path)
    wheels = tuple(
        found.model_copy(update={"graft": GRAFT}) if found.name == "vllm" else found for found in lock.wheels
    )
    lock.model_copy(update={"wheels": wheels}).write(path)
    arch, _, compiled = open_subject(Project(project.root), str(cell))
    assert (arch, compiled) == (cell.arch, frozenset({C}))


def test_version_that_is_only_compiled_is_not_taken_for_a_published_one(
    project: Project, locked_checkout: Checkout
) -> None:
    locked_checkout.edit_matrix(
        '"2.0": {release: "2.0"}', '"2.0": {release: "2.0"}\n  own: {release: "2.0", compile: graft}'
    )
    with raises("not-auditable", match="no published wheel of its own") as caught:
        audit(Project(project.root), "own")
    assert "MODEL@own" in caught.value.fix


@pytest.mark.usefixtures("project")
def test_command_prints_the_comparison(own_inv: Inv, tmp_path: Path) -> None:
    published, grafted = wheel(tmp_path, "one", "sm_120f"), wheel(tmp_path, "two", "sm_121a")
    done = own_inv("audit", str(published), "--beside", str(grafted), "--arch", "gpu")
    assert re.search(rf"{re.escape(C)} +native: sm_120f x3 +native: sm_121a x3", done.stdout)
