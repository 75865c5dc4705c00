"""What a pull request changes: mods, images and the jobs that test them."""

import pytest

from imagefactory.ci.pull_request import changed_mods, find_changes
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import commit_all
from tests.fixtures.lock_files import deb_entry, write_base_lock
from tests.fixtures.mods import edit, has, inserting, manifest, write_mod
from tests.fixtures.releases import Released


def mod(name: str, greeting: str, file: str = "vllm/hello.py") -> dict[str, object]:
    change = edit(file, "hello", replace=greeting)
    wanted = [{"model": "big", "arch": "gpu"}]
    return manifest(name, change, checks=[has(file, greeting)], versions=">=0", needed_when=wanted)


@pytest.fixture
def committed(locked_checkout: Checkout) -> Checkout:
    """Commit a checkout with a mod that only a model for GPUs has."""
    write_mod(locked_checkout.root / "mods", mod("greeting", "hi"))
    commit_all(locked_checkout.root)
    return locked_checkout


def test_a_changed_mod_affects_the_targets_that_have_it(committed: Checkout) -> None:
    assert find_changes(Project(committed.root), "HEAD").affected == ()
    file = committed.root / "mods/greeting/mod.yaml"
    file.write_text(file.read_text("utf-8").replace("hi", "good day"), "utf-8")
    project = Project(committed.root)
    changes = find_changes(project, "HEAD")
    assert changes.mods == ("greeting",)
    assert {str(one.cell) for one in changes.affected} == {"big@2.0/gpu"}
    assert all("mods/greeting" in str(one.how) for one in changes.affected)
    assert changes.jobs(project) == []  # they need a GPU
    assert "mods/greeting changed" in changes.markdown()


def test_a_changed_model_without_a_gpu_gives_jobs_and_a_new_mod_is_found(committed: Checkout) -> None:
    committed.edit_matrix("serve: {dtype: float32}", "serve: {dtype: bfloat16}")
    write_mod(committed.root / "mods", mod("new-one", "hello again", "vllm/again.py"))
    project = Project(committed.root)
    assert changed_mods(project, "HEAD") == ("new-one",)
    jobs = find_changes(project, "HEAD").jobs(project)
    assert {job["target"]: job["runner"] for job in jobs} == {
        "tiny@2.0/cpu/amd64": "ubuntu-24.04",
        "tiny@2.0/cpu/arm64": "ubuntu-24.04-arm",
    }


def test_two_mods_on_the_same_lines_make_the_change_fail(released: Released) -> None:
    project = released({"1.0": {"vllm/x.py": "one = 1\n"}}, {})
    (project.root / "images").symlink_to(REPOSITORY / "images")
    write_base_lock(project.locks, "linux/amd64", [deb_entry("base-files_1_amd64.deb", b"")])
    write_mod(project.root / "mods", inserting("first"))
    commit_all(project.root)
    write_mod(project.root / "mods", inserting("second"))
    changes = find_changes(Project(project.root, project.store), "HEAD")
    [target] = changes.affected
    assert target.fault
    [why] = target.how
    assert why.startswith("cannot be built: The mods first and second touch the same lines. (vllm/x.py:1)")
    assert "| [second](second/mod.yaml) | conflict |" in changes.markdown()


def test_the_versions_that_a_changed_mod_fits_are_shown(released: Released) -> None:
    project = released({"1.0": {"vllm/x.py": "one = 1\n"}, "2.0": {"vllm/y.py": "two = 2\n"}}, {})
    (project.root / "images").symlink_to(REPOSITORY / "images")
    write_base_lock(project.locks, "linux/amd64", [deb_entry("base-files_1_amd64.deb", b"")])
    commit_all(project.root)
    write_mod(project.root / "mods", inserting("first"))
    summary = find_changes(Project(project.root, project.store), "HEAD").markdown()
    assert summary.startswith("## Mods\n")
    assert "| mod | 1.0 | 2.0 |" in summary
    assert "| [first](first/mod.yaml) | applies | not covered |" in summary
    assert summary.index("## Mods") < summary.index("## Images")


def test_a_missing_base_commit_is_explained(committed: Checkout) -> None:
    with raises("run-failed") as caught:
        find_changes(Project(committed.root), "0" * 40)
    assert "fetch-depth" in caught.value.fix
