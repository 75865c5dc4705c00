"""What a night compiles: the commit of a branch, once for all models, and what is locked afterwards."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from imagefactory.ci import night
from imagefactory.ci.jobs import Night
from imagefactory.ci.night import Compiles, find_compiles, nightly_cells
from imagefactory.lock.wheelhouse.adopt import mods_of_sources
from imagefactory.lock.wheelhouse.keep import CompiledWheel, CompileInputs
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.project import Project
from imagefactory.store.digests import Sha256
from tests.fixtures.checkouts import Checkout
from tests.fixtures.fake_github import commit_all
from tests.fixtures.wheelhouse import INPUTS

HEAD = "a" * 40
SYSTEM = INPUTS.system


@dataclass
class Branch:
    """The cells of a version that follows a branch, and the wheels that the registry has for them."""

    project: Project
    shared: list[CompiledWheel] = field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        return [cell for cell in nightly_cells(self.project) if cell.version == "nightly"]

    def compiles(self) -> Compiles:
        repository = Repository.open("127.0.0.1:9/a/b")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(night, "head_of", lambda *_: HEAD)
            return find_compiles(self.project, repository, self.cells)

    def compile(
        self, commit: str, mods: tuple[str, ...] | None = None, system: dict[str, str] | None = None
    ) -> CompiledWheel:
        cell = self.cells[0]
        inputs = CompileInputs(
            name="vllm", version="2.1.dev0+gaaaaaaaaa", sources={"vllm": f"some/where@{commit}"}, toolchain="sha256:1",
            mods=mods_of_sources(self.project, cell) if mods is None else mods,
            arch_list=str(self.project.matrix.archs[cell.arch].torch_cuda_arch_list), platform=cell.platform,
            system=dict(SYSTEM, **(system or {})),
        )  # fmt: skip
        wheel = CompiledWheel("vllm.whl", "0" * 64, 1, inputs)  # type: ignore[arg-type]
        self.shared.append(wheel)
        return wheel


@pytest.fixture
def branch(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> Branch:
    nightly = "  nightly: {git: some/where, ref: main, counts_as: 2.1.dev0}\n"
    more = '  more: {repo: somebody/more, vllm: ">=1.0", weights: bf16}\n'
    locked_checkout.edit_matrix("models:\n", f"{nightly}models:\n{more}")
    branch = Branch(Project(locked_checkout.root))
    monkeypatch.setattr(night, "remote_wheels", lambda _: branch.shared)
    return branch


def test_a_branch_is_compiled_once_for_all_models_and_a_release_with_wheels_is_not(branch: Branch) -> None:
    assert {cell.model for cell in branch.cells} >= {"big", "more"}
    [vllm] = branch.compiles().jobs
    assert (vllm.what, vllm.reason) == ("vllm", "some/where main is at aaaaaaaaaaaa")
    [job] = Night("registry", compiles=(vllm,)).jobs()["compile"]
    assert job["runner"] == "ubuntu-24.04-arm"
    cells = [cell for cell in nightly_cells(branch.project) if cell.version == "2.0"]
    assert cells
    assert find_compiles(branch.project, Repository.open("127.0.0.1:9/a/b"), cells).jobs == []


def test_a_graft_is_compiled_by_one_job_before_it_is_ever_locked(branch: Branch, locked_checkout: Checkout) -> None:
    arch = branch.cells[0].arch
    grafted = f'  "1.0-graft": {{release: "1.0", compile: {{{arch}: graft}}}}\n'
    locked_checkout.edit_matrix("models:\n", f"{grafted}models:\n")
    project = Project(locked_checkout.root)
    cells = [cell for cell in nightly_cells(project) if cell.version == "1.0-graft"]
    assert {cell.arch for cell in cells} == {arch}, "elsewhere it would be the published wheel again"
    assert not any(project.is_locked(cell) for cell in cells)
    [job] = find_compiles(project, None, cells).jobs
    assert (job.what, job.vllm) == ("vllm", "1.0-graft")


def test_a_wheel_of_the_newest_commit_waits_for_a_lock_and_an_older_one_does_not(branch: Branch) -> None:
    branch.compile("b" * 40)
    assert [job.what for job in branch.compiles().jobs] == ["vllm"]
    wheel = branch.compile(HEAD)
    found = branch.compiles()
    assert found.jobs == []
    assert found.unlocked == dict.fromkeys([cell for cell in branch.cells if cell.arch == "gpu"], (wheel.key,))


def test_other_bytes_of_the_locked_inputs_wait_for_a_lock_and_the_locked_wheel_is_preferred(branch: Branch) -> None:
    wheel, project = branch.compile(HEAD), branch.project
    cells = [cell for cell in branch.cells if cell.arch == "gpu"]
    path = project.wheel_lock_path(cells[0])
    lock = WheelLock.read(project.wheel_lock_path(replace(cells[0], version="2.0")))
    locked = lock.wheels[0].model_copy(update={"compiled": wheel.key, "sha256": wheel.sha256})
    lock.model_copy(update={"version": "nightly", "wheels": (locked,)}).write(path)
    branch.shared.append(replace(wheel, inputs=replace(wheel.inputs, flags=("-O1",))))
    assert branch.compiles().unlocked == {}
    branch.shared[:] = [replace(wheel, sha256=Sha256("f" * 64))]
    branch.project = Project(project.root)
    unlocked = branch.compiles().unlocked
    assert unlocked == dict.fromkeys(unlocked, (wheel.key,))
    assert unlocked.keys() >= {*cells}


def test_a_wheel_with_other_mods_is_compiled_again(branch: Branch) -> None:
    branch.compile(HEAD, mods=("f" * 64,))
    branch.compile(HEAD, system={"python": "3.13"})
    [vllm] = branch.compiles().jobs
    assert vllm.reason == "the mods of its sources changed"


def test_the_branch_is_looked_up_on_the_configured_host(
    branch: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORY_GIT_HOST", f"file://{tmp_path}")
    [job] = find_compiles(branch.project, None, branch.cells).jobs
    # A host that cannot be reached does not stop a night.
    assert job.reason == "vLLM nightly was never compiled for gpu"
    source = tmp_path / "some/where"
    source.mkdir(parents=True)
    head = commit_all(source)
    [job] = find_compiles(branch.project, None, branch.cells).jobs
    assert job.reason == f"some/where main is at {head[:12]}"
