"""Planning a night: jobs, reasons, limits; and what is said about it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.environment.index_config import IndexConfig
from imagefactory.errors import FactoryError
from imagefactory.errors.ci import CellsFailedError, NoRoomError, ReleaseError, RunFailedError
from imagefactory.errors.locks import LockMissingError
from imagefactory.errors.publishing import CatalogError
from imagefactory.errors.registry import ContentMissingError, RegistryError, RegistryUnreachableError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.matrix.matrix import load_matrix
from imagefactory.matrix.targets import select
from imagefactory.mods.compatibility import ModResult
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.publish.automation import needed_compiles
from imagefactory.publish.automation import night as night_planning
from imagefactory.publish.automation.disk_space import refuse_full, space_needed
from imagefactory.publish.automation.jobs import (
    CELLS_PER_JOB,
    MOST_JOBS,
    Compile,
    Night,
    Trouble,
    Work,
    fitted,
)
from imagefactory.publish.automation.needed_compiles import find_compiles
from imagefactory.publish.automation.night import nightly_cells, plan_night
from imagefactory.publish.automation.pull_request import changed_mods, find_changes
from imagefactory.publish.automation.reasons import differences
from imagefactory.publish.automation.refresh import Refreshed, add_release, newest_release
from imagefactory.publish.automation.run_summary import (
    LARGEST,
    bounded,
    night_summary,
    plan_document,
    read_results,
    refuse_failed_jobs,
    subjects,
)
from imagefactory.publish.catalog import ImagePart
from imagefactory.publish.outcomes import Outcomes
from imagefactory.publish.promote import Promotion
from imagefactory.resolve.making import LockResult
from imagefactory.resolve.wheelhouse.adopt import mods_of_sources
from imagefactory.resolve.wheelhouse.keep import CompileInputs
from imagefactory.resolve.wheelhouse.remote import RemoteWheel
from imagefactory.smoke.cpu_counterparts import cpu_counterparts, serving_elsewhere
from imagefactory.store.digests import checksum
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.platforms import MACHINE, PLATFORMS
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.wheels import WheelFactory

ALL = ("image", "smoke", "promote")
HEAD = "a" * 40


def work(model: str, vllm: str = "1.0", arch: str = "cpu", machine: str = "amd64", **more: Any) -> Work:
    options = {"needs": ALL, "reason": "never published", **more}
    return Work(Cell(model, vllm, arch, f"linux/{machine}"), checksum([model, vllm, arch]), **options)


def test_cells_of_one_lock_share_a_job_and_others_do_not() -> None:
    night = Night(
        "r", works=(work("b"), work("a"), work("a", arch="gb10", machine="arm64"), work("a", vllm="2.0"))
    )
    jobs = night.jobs()
    assert [job["targets"] for job in jobs["image"]] == [
        "a@1.0/cpu/amd64 b@1.0/cpu/amd64",
        "a@1.0/gb10/arm64",
        "a@2.0/cpu/amd64",
    ]
    # Images are put together anywhere, but run on their own platform.
    assert [job["runner"] for job in jobs["image"]] == ["ubuntu-24.04"] * 3
    assert [job["runner"] for job in jobs["smoke"]] == ["ubuntu-24.04", "ubuntu-24.04-arm", "ubuntu-24.04"]
    assert len({job["id"] for job in jobs["smoke"]}) == 3
    assert len(jobs["promote"]) == 1


def test_what_its_own_machines_cannot_serve_is_tested_on_another_kind_of_machine() -> None:
    foreign = work("a", arch="gb10", machine="arm64", levels="static,container", serve_on="linux/amd64")
    jobs = Night("r", works=(foreign,)).jobs()["smoke"]
    assert [(job["runner"], job["levels"]) for job in jobs] == [
        ("ubuntu-24.04-arm", "static,container"),
        ("ubuntu-24.04", "serve"),
    ]
    assert len({job["id"] for job in jobs}) == 2
    assert {job["targets"] for job in jobs} == {"a@1.0/gb10/arm64"}


@pytest.mark.parametrize("unlocked", [None, *PLATFORMS])
def test_an_image_is_served_on_its_own_platform_unless_the_cpu_image_is_locked_for_another_alone(
    factory_checkout: Checkout, unlocked: str | None
) -> None:
    project = Project(factory_checkout.root)
    gb10, rtx5090 = select(project.matrix, ["gemma4-31b", "gemma4-31b/rtx5090"])
    assert {gb10.platform, rtx5090.platform} == set(PLATFORMS)
    for cell in cpu_counterparts(project, gb10.vllm):
        assert serving_elsewhere(project, cell) == "", "no GPU is needed"
        if cell.platform == unlocked:
            project.wheel_lock_path(cell).unlink()
    left = [cell.platform for cell in cpu_counterparts(project, gb10.vllm) if project.is_locked(cell)]
    for cell in (gb10, rtx5090):
        assert serving_elsewhere(project, cell) == (left[0] if cell.platform == unlocked else "")


def test_a_job_has_a_bounded_number_of_cells() -> None:
    night = Night("r", works=tuple(work(f"m{number:02}") for number in range(CELLS_PER_JOB + 1)))
    assert [len(job["targets"].split()) for job in night.matrix("image")] == [CELLS_PER_JOB, 1]


def test_a_run_has_at_most_256_jobs_and_says_what_is_left() -> None:
    night = fitted(Night("r", works=tuple(work("m", vllm=f"{number:03}") for number in range(400))))
    jobs = night.jobs()
    assert sum(map(len, jobs.values())) <= MOST_JOBS
    assert len(jobs["image"]) == len(jobs["smoke"]) == 127
    assert night.later == 400 - 127
    assert f"{night.later} more do not fit" in night_summary(night)


def test_what_is_only_to_be_promoted_needs_no_machine_of_its_own() -> None:
    jobs = Night("r", works=(work("a", needs=("promote",)),)).jobs()
    assert (jobs["image"], jobs["smoke"], len(jobs["promote"])) == ([], [], 1)


def test_a_night_without_work_is_empty_and_its_lists_are_too() -> None:
    outputs = Night("r", current=3).outputs()
    assert outputs["empty"] == "true"
    assert {json.loads(outputs[name]) == [] for name in ("compile", "adopt", "image", "smoke", "gpu")} == {
        True
    }
    assert "\n" not in "".join(outputs.values())


def test_a_night_with_a_broken_cell_is_not_over_before_somebody_was_told() -> None:
    outputs = Night("r", broken=(Trouble("a", "It broke.", "Because."),)).outputs()
    assert (outputs["empty"], outputs["broken"], outputs["image"]) == ("false", "1", "[]")


def test_a_registry_that_does_not_exist_yet_is_not_asked(small_factory: SmallFactory) -> None:
    nowhere = Repository.open("127.0.0.1:9/a/b")
    project = small_factory.project
    night = plan_night(project, nowhere, nightly_cells(project), first=True)
    assert {work.reason for work in night.works} == {"never published"}
    assert len(night.works) == 2


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    night = Night(
        "registry.example/a",
        works=(work("a"), work("c", levels="static", serve_on="linux/arm64")),
        compiles=(Compile("vllm", "nightly", "gb10", "linux/arm64", "main moved"),),
        adopt=("a@nightly/gb10/arm64",),
        broken=(Trouble("b@1.0/cpu/amd64", "It broke.", "An anchor | occurs <b>twice</b>, @everybody"),),
        current=2,
    )
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(night.as_json()))
    shown = plan_document(file)
    assert shown == night_summary(night)
    assert "An anchor \\| occurs &lt;b>twice" in shown
    assert "@everybody" not in shown
    file.write_text("{}")
    with pytest.raises(RunFailedError):
        plan_document(file)


def part(key: str, version: str = "") -> ImagePart:
    return ImagePart(key=key, version=version)


def test_the_first_difference_is_the_cause() -> None:
    names = ("base b", "wheel torch", "mod a", "mod b", "model m")
    old = {name: part("1") for name in names}
    assert differences(old, old) == []
    # A mod that is gone changes those that were applied after it.
    gone = {name: value for name, value in old.items() if name != "mod a"} | {"mod b": part("2")}
    assert differences(old, gone) == ["mod a", "mod b"]
    assert differences(gone, old) == ["mod a", "mod b"]
    assert differences(old, old | {"mod b": part("2"), "model m": part("2")}) == ["mod b", "model m"]


def test_a_summary_fits_what_github_shows() -> None:
    text = bounded("ä\n" * LARGEST)
    assert len(text.encode()) <= LARGEST
    assert text.endswith("1 MiB.\n")


def test_a_status_is_good_when_nothing_failed() -> None:
    refuse_failed_jobs(read_results('{"plan": {"result": "success"}, "gpu": {"result": "skipped"}}'))
    for result in ("failure", "cancelled"):
        with pytest.raises(RunFailedError, match="1 of 2") as caught:
            refuse_failed_jobs({"plan": "success", "smoke": result})
        assert caught.value.where == "smoke"
    with pytest.raises(RunFailedError, match="2 cells are broken"):
        refuse_failed_jobs({"plan": "success"}, broken=2)
    with pytest.raises(RunFailedError):
        read_results("nonsense")


def test_a_job_with_failures_names_all_of_them() -> None:
    error = RegistryError("It broke.", where="there", why="Because.", fix="Mend it.")
    done = Outcomes({CELL: "x"}, {replace(CELL, model="b"): error, replace(CELL, model="c"): error})
    with pytest.raises(CellsFailedError, match="2 of 3") as caught:
        done.refuse_failures("pushed")
    assert caught.value.where == f"b@1.0/cpu/{MACHINE}, c@1.0/cpu/{MACHINE}"
    Outcomes({CELL: "x"}).refuse_failures("pushed")


def test_a_cell_that_fails_alone_fails_with_its_own_exit_code() -> None:
    error = RegistryError("It broke.", where="there", why="Because.", fix="Mend it.")
    with pytest.raises(RegistryError):
        Outcomes({}, {CELL: error}).refuse_failures("pushed")


def test_a_step_is_taken_with_what_has_not_failed_yet() -> None:
    one, two, three = (replace(CELL, model=name) for name in "abc")
    said: list[str] = []

    def fail(cell: Cell) -> str:
        if cell == two:
            raise RegistryError("It broke.", where="there", why="Because.", fix="Mend it.")
        return cell.model

    first = Outcomes.of([one, two, three], fail, said.append)
    taken: list[str] = []
    second = first.then(taken.append)
    assert taken == ["a", "c"]
    assert (list(second.finished), list(second.failed)) == ([one, three], [two])
    assert said == [f"{two}/{MACHINE}: It broke. Because."]


@pytest.mark.parametrize(
    "kind", [RegistryUnreachableError, ContentMissingError, CatalogError, LockMissingError]
)
def test_a_failure_of_the_registry_ends_a_night_and_one_of_a_cell_does_not(
    kind: type[FactoryError], small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("It broke.", where="there", why="Because.", fix="Mend it.")

    monkeypatch.setattr(night_planning, "judge", fail)
    nowhere = Repository.open("127.0.0.1:9/a/b")
    project = small_factory.project
    if kind is LockMissingError:
        planned = plan_night(project, nowhere, nightly_cells(project), first=True)
        assert [trouble.what for trouble in planned.broken] == ["It broke.", "It broke."]
    else:
        with pytest.raises(kind):
            plan_night(project, nowhere, nightly_cells(project), first=True)


def test_a_disk_that_is_too_small_is_noticed_first(tmp_path: Path, small_factory: SmallFactory) -> None:
    assert 0.5 < space_needed([make_plan(small_factory.project, CELL)]) < 0.6
    assert refuse_full(tmp_path / "not" / "there", 0.001) > 0
    with pytest.raises(NoRoomError):
        refuse_full(tmp_path, 1e9)


def test_without_a_promotion_there_is_nothing_to_attest() -> None:
    assert subjects(Promotion([], []), "registry.example/a") == ""


# --- compiling -----------------------------------------------------------------------------------


def compiled(
    project: Project, cell: Cell, commit: str, *, mods: tuple[str, ...] | None = None
) -> RemoteWheel:
    inputs = CompileInputs(
        name="vllm", version="0.33.0.dev1", sources={"vllm": f"vllm-project/vllm@{commit}"}, toolchain="sha256:1",
        mods=mods_of_sources(project, cell) if mods is None else mods,
        arch_list=str(project.matrix.archs[cell.arch].torch_cuda_arch_list), platform=cell.platform,
    )  # fmt: skip
    return RemoteWheel("vllm.whl", "0" * 64, 1, inputs)  # type: ignore[arg-type]


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> tuple[Project, list[Cell], list[RemoteWheel]]:
    """Return the cells of the version that follows a branch, and what the registry has for them."""
    project = Project(REPOSITORY)
    cells = [cell for cell in nightly_cells(project) if cell.vllm == "nightly"]
    shared: list[RemoteWheel] = []
    monkeypatch.setattr(needed_compiles, "remote_wheels", lambda _: shared)
    return project, cells, shared


def found(
    moving: tuple[Project, list[Cell], list[RemoteWheel]], head: str | None = HEAD
) -> needed_compiles.Compiles:
    project, cells, _ = moving
    repository = Repository.open("127.0.0.1:9/a/b")
    return find_compiles(project, repository, cells, heads=lambda *_: head)


def test_a_branch_that_was_never_compiled_is_compiled_once_for_all_models(
    moving: tuple[Project, list[Cell], list[RemoteWheel]],
) -> None:
    _, cells, _ = moving
    assert len(cells) > 3
    jobs = found(moving).jobs
    [vllm] = jobs
    assert vllm.reason == "vllm-project/vllm main is at aaaaaaaaaaaa"
    assert vllm.as_json()["runner"] == "ubuntu-24.04-arm"


def test_a_wheel_of_tonights_commit_waits_for_a_lock_and_one_of_last_nights_does_not(
    moving: tuple[Project, list[Cell], list[RemoteWheel]],
) -> None:
    project, cells, shared = moving
    shared.append(compiled(project, cells[0], "b" * 40))
    assert {job.what for job in found(moving).jobs} == {"vllm"}
    shared.append(compiled(project, cells[0], HEAD))
    now = found(moving)
    assert "vllm" not in {job.what for job in now.jobs}
    assert now.adopt == dict.fromkeys(cells, (shared[-1].key,))


def test_a_wheel_with_other_mods_is_compiled_again(
    moving: tuple[Project, list[Cell], list[RemoteWheel]],
) -> None:
    project, cells, shared = moving
    shared.append(compiled(project, cells[0], HEAD, mods=("f" * 64,)))
    [vllm] = [job for job in found(moving).jobs if job.what == "vllm"]
    assert vllm.reason == "the mods of its sources changed"


def test_nothing_is_compiled_where_nothing_has_to_be() -> None:
    project = Project(REPOSITORY)
    cells = [cell for cell in nightly_cells(project) if cell.vllm == "0.32.0"]
    assert cells
    assert not find_compiles(project, Repository.open("127.0.0.1:9/a/b"), cells).jobs


# --- what a pull request changes -----------------------------------------------------------------


@pytest.fixture
def committed(factory_checkout: Checkout) -> Checkout:
    identity = ("-c", "user.name=test", "-c", "user.email=test@git.example")
    for command in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "all")):
        subprocess.run(["git", "-C", str(factory_checkout.root), *command], check=True)
    return factory_checkout


def test_a_change_of_a_mod_concerns_the_targets_that_have_it(committed: Checkout) -> None:
    project = Project(committed.root)
    assert find_changes(project, "HEAD").affected == ()
    [file, *_] = (committed.root / "mods/qwen35-chat-template/files").rglob("*.jinja")
    file.write_text(file.read_text("utf-8") + "{# changed #}\n", "utf-8")
    changes = find_changes(Project(committed.root), "HEAD")
    assert changes.mods == ("qwen35-chat-template",)
    assert {one.cell.model.partition("-")[0] for one in changes.affected} == {"qwen3.5"}
    assert all("mods/qwen35-chat-template" in str(one.changes) for one in changes.affected)
    assert changes.jobs(project) == []  # a GPU would be needed
    assert "mods/qwen35-chat-template changed" in changes.markdown()


def test_a_setting_of_the_cpu_model_gives_a_job_and_a_new_mod_is_seen(committed: Checkout) -> None:
    committed.edit_matrix("      max_model_len: 256\n", "      max_model_len: 512\n")
    folder = committed.root / "mods/new-one"
    shutil.copytree(committed.root / "mods/qwen35-chat-template", folder)
    text = (folder / "mod.yaml").read_text("utf-8")
    (folder / "mod.yaml").write_text(text.replace("name: qwen35-chat-template", "name: new-one"), "utf-8")
    project = Project(committed.root)
    assert changed_mods(project, "HEAD") == ("new-one",)
    jobs = find_changes(project, "HEAD").jobs(project)
    assert {job["target"]: job["runner"] for job in jobs} == {
        "tiny@0.32.0/cpu/amd64": "ubuntu-24.04",
        "tiny@0.32.0/cpu/arm64": "ubuntu-24.04-arm",
    }


def test_a_commit_that_is_not_there_is_explained(committed: Checkout) -> None:
    with pytest.raises(RunFailedError) as caught:
        find_changes(Project(committed.root), "0" * 40)
    assert "fetch-depth" in caught.value.fix


# --- the weekly look around ----------------------------------------------------------------------


def test_a_new_release_is_found_and_added_behind_the_newest(
    factory_checkout: Checkout, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    for version in ("0.32.0", "0.33.0rc1", "0.33.0", "0.9.0"):
        simple_index.add(wheel_factory("vllm", version))
    indexes = Indexes(IndexConfig(indexes=(simple_index.url,)))
    matrix = load_matrix(factory_checkout.matrix)
    assert newest_release(matrix, indexes) == "0.33.0"
    before = factory_checkout.matrix.read_text("utf-8")
    add_release(factory_checkout.matrix, "0.33.0")
    after = load_matrix(factory_checkout.matrix)
    assert list(after.vllm)[: list(after.vllm).index("nightly")][-1] == "0.33.0"
    assert after.vllm["nightly"].version > after.vllm["0.33.0"].version
    # Everything else is as it was written, comments included.
    lines = set(factory_checkout.matrix.read_text("utf-8").splitlines()) - set(before.splitlines())
    assert len(lines) == 2
    assert newest_release(after, indexes) is None


def test_a_matrix_of_another_shape_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text('vllm: {"1.0": {release: "1.0"}}\n')
    with pytest.raises(ReleaseError):
        add_release(file, "2.0")


def test_a_proposal_has_the_table_and_warns_of_mods_that_do_not_hold() -> None:
    refreshed = Refreshed("0.33.0", ("0.32.0/a.toml: numpy 1 → 2",))
    body = refreshed.body([ModResult("m", "0.33.0", "conflict", "An anchor is gone")])
    assert "numpy 1 → 2" in body
    assert "| [m](m/mod.yaml) | conflict |" in body
    assert "Some mods do not hold" in body


def test_cells_with_the_same_wheels_are_locked_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[list[Cell], tuple[str, ...]]] = []
    project = Project(tmp_path)

    def make(_: Project, cells: list[Cell], *, wheels: tuple[str, ...], say: object) -> list[LockResult]:  # noqa: ARG001
        asked.append((cells, wheels))
        shared = tmp_path / "locks/kernels.toml"
        return [
            LockResult(tmp_path / f"locks/{wheels[0]}.toml", changed=True),
            LockResult(shared, changed=False),
        ]

    monkeypatch.setattr(needed_compiles, "make_locks", make)
    monkeypatch.setattr(
        needed_compiles, "update_licences", lambda *_: (tmp_path / "locks/licences.toml", True)
    )
    one, two, three = (replace(CELL, model=name) for name in "abc")
    changed = needed_compiles.adopt(project, {one: ("k1",), two: ("k2",), three: ("k1",)}, print)
    assert asked == [([one, three], ("k1",)), ([two], ("k2",))]
    assert changed == ["locks/k1.toml", "locks/k2.toml", "locks/licences.toml"]
    assert needed_compiles.adopt(project, {}, print) == []
