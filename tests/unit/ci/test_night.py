"""Planning a night: jobs, reasons, limits and summaries."""

from dataclasses import replace
from typing import Any

import pytest

from imagefactory.ci import night as night_planning
from imagefactory.ci.jobs import MOST_JOBS, Night, Trouble, Work, fitted
from imagefactory.ci.night import differences, nightly_cells, plan_night
from imagefactory.ci.report_targets import over
from imagefactory.ci.run_summary import LARGEST, bounded, night_summary, plain
from imagefactory.errors import FactoryError, LockError, RegistryError
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.cells import Cell
from imagefactory.project.counterparts import cpu_counterparts, serving_elsewhere
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from imagefactory.publish.catalog import ImagePart
from imagefactory.publish.staging import Outcomes
from imagefactory.store.digests import checksum
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE, PLATFORMS
from tests.fixtures.small_factory import CELL, SmallFactory

ALL = ("image", "smoke", "promote")


def work(model: str, vllm: str = "1.0", arch: str = "cpu", machine: str = "amd64", **more: Any) -> Work:
    options = {"needs": ALL, "reason": "never published", **more}
    return Work(Cell(model, vllm, arch, f"linux/{machine}"), checksum([model, vllm, arch]), **options)


def broken_by(name: str) -> FactoryError:
    kind = LockError if name == "no-lock" else RegistryError
    return kind(name, "It broke.", where="there", why="Because.", fix="Mend it.")


def plan_first(factory: SmallFactory) -> Night:
    """Plan the first night, with a registry that must not be asked."""
    project = factory.project
    factory.build(*nightly_cells(project))
    return plan_night(project, Repository.open("127.0.0.1:9/a/b"), nightly_cells(project), first=True)


def test_cells_of_one_lock_share_a_job_and_others_do_not() -> None:
    night = Night("r", works=(work("b"), work("a"), work("a", arch="gb10", machine="arm64"), work("a", vllm="2.0")))
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


def test_a_serve_test_may_run_on_machines_of_another_platform() -> None:
    foreign = work("a", arch="gb10", machine="arm64", levels="static,container", serve_on="linux/amd64")
    jobs = Night("r", works=(foreign,)).jobs()["smoke"]
    assert [(job["runner"], job["levels"]) for job in jobs] == [
        ("ubuntu-24.04-arm", "static,container"),
        ("ubuntu-24.04", "serve"),
    ]
    assert len({job["id"] for job in jobs}) == 2
    assert {job["targets"] for job in jobs} == {"a@1.0/gb10/arm64"}


@pytest.mark.parametrize("unlocked", [None, *PLATFORMS])
def test_an_image_is_served_elsewhere_only_if_the_cpu_image_of_its_platform_is_not_locked(
    locked_checkout: Checkout, unlocked: str | None
) -> None:
    server = '  server: {gpu: Another, capability: "9.0", platforms: [linux/amd64], base: bookworm}\n'
    locked_checkout.edit_matrix("  cpu:\n", f"{server}  cpu:\n")
    project = Project(locked_checkout.root)
    on_gpus = select(project.matrix, ["big@2.0/gpu", "big@2.0/server"])
    assert {cell.platform for cell in on_gpus} == set(PLATFORMS)
    for cell in cpu_counterparts(project, "2.0"):
        assert serving_elsewhere(project, cell) == "", "no GPU is needed"
        if cell.platform == unlocked:
            project.wheel_lock_path(cell).unlink()
    left = [cell.platform for cell in cpu_counterparts(project, "2.0") if project.is_locked(cell)]
    for cell in on_gpus:
        assert serving_elsewhere(project, cell) == (left[0] if cell.platform == unlocked else "")


def test_a_run_has_at_most_256_jobs_and_counts_what_is_left() -> None:
    night = fitted(Night("r", works=tuple(work("m", vllm=f"{number:03}") for number in range(400))))
    jobs = night.jobs()
    assert sum(map(len, jobs.values())) <= MOST_JOBS
    assert len(jobs["image"]) == len(jobs["smoke"]) == 127
    assert night.later == 400 - 127
    assert f"{night.later} more do not fit" in night_summary(night)


def test_a_night_has_only_the_jobs_that_it_needs() -> None:
    jobs = Night("r", works=(work("a", needs=("promote",)),)).jobs()
    assert (jobs["image"], jobs["smoke"], len(jobs["promote"])) == ([], [], 1), "it was tested before"
    outputs = Night("r", current=3).outputs()
    assert {outputs[name] for name in ("compile", "image", "smoke", "gpu")} == {"[]"}
    assert "\n" not in "".join(outputs.values())
    assert "nothing changed; 1 image up to date" in night_summary(Night("r", current=1))
    left_alone = night_summary(Night("r", held=(Trouble("a", "It broke.", "Because."),)))
    assert "nothing changed" not in left_alone
    assert "1 left alone" in left_alone


def test_a_first_night_does_not_ask_the_registry(small_factory: SmallFactory) -> None:
    night = plan_first(small_factory)
    assert {work.reason for work in night.works} == {"never published"}
    assert len(night.works) == 2


def test_an_image_that_waits_for_a_compile_is_listed_and_is_neither_work_nor_broken() -> None:
    waits = Trouble("b@1.0/cpu/amd64", "It waits for the compile of kernels (1.0, cpu).", "Nobody has the wheel.")
    night = Night("r", waiting=(waits,), current=1)
    assert night.is_empty
    assert not any(night.jobs().values())
    assert night.as_json()["waiting"][0]["target"] == waits.target
    shown = night_summary(night)
    assert "### Waiting for a compile" in shown
    assert "the compile of kernels (1.0, cpu)" in shown
    assert over(night, [waits.target], [waits.target])(waits.target) == "", "it is not published"


def test_a_summary_escapes_what_others_wrote_and_is_cut_to_what_github_shows() -> None:
    trouble = Trouble("b@1.0/cpu/amd64", "It broke.", "An anchor | occurs <b>twice</b>, @everybody")
    shown = night_summary(Night("registry.example/a", works=(work("a"),), broken=(trouble,), current=2))
    assert "1 to do, 0 to compile, 2 up to date, 1 broken" in shown
    assert "An anchor \\| occurs &lt;b>twice" in shown
    assert "@everybody" not in shown
    assert "An anchor | occurs <b>twice</b>, @everybody" in plain(shown), "in a terminal"
    text = bounded("ä\n" * LARGEST)
    assert len(text.encode()) <= LARGEST
    assert text.endswith("1 MiB.\n")


def test_differences_are_listed_in_the_order_of_layers() -> None:
    one, two = ImagePart("a", "1"), ImagePart("a", "2")
    names = ("base b", "wheel torch", "mod a", "mod b", "model m")
    old = dict.fromkeys(names, one)
    assert differences(old, old) == []
    # A mod that is gone changes those that were applied after it.
    gone = {name: value for name, value in old.items() if name != "mod a"} | {"mod b": two}
    assert differences(old, gone) == ["mod a", "mod b"]
    assert differences(gone, old) == ["mod a", "mod b"]
    assert differences(old, old | {"mod b": two, "model m": two}) == ["mod b", "model m"]


def test_several_failures_are_reported_together() -> None:
    error = broken_by("registry-failed")
    done = Outcomes({CELL: "x"}, {replace(CELL, model="b"): error, replace(CELL, model="c"): error})
    with raises("targets-failed", match="2 of 3") as caught:
        done.refuse_failures("pushed")
    assert caught.value.where == f"b@1.0/cpu/{MACHINE}, c@1.0/cpu/{MACHINE}"
    Outcomes({CELL: "x"}).refuse_failures("pushed")
    with raises("registry-failed"):  # a single one keeps its own exit code
        Outcomes({}, {CELL: error}).refuse_failures("pushed")


def test_a_step_skips_cells_that_failed_before() -> None:
    one, two, three = (replace(CELL, model=name) for name in "abc")
    said: list[str] = []

    def fail(cell: Cell) -> str:
        if cell == two:
            raise broken_by("registry-failed")
        return cell.model

    first = Outcomes.of([one, two, three], fail, said.append)
    taken: list[str] = []
    second = first.then(taken.append)
    assert taken == ["a", "c"]
    assert (list(second.finished), list(second.failed)) == ([one, three], [two])
    assert said == [f"{two}/{MACHINE}: It broke. Because."]


@pytest.mark.parametrize("kind", ["registry-unreachable", "no-content", "bad-catalog", "no-lock"])
def test_a_failure_of_the_registry_ends_a_night_and_one_of_a_cell_does_not(
    kind: str, small_factory: SmallFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise broken_by(kind)

    monkeypatch.setattr(night_planning, "left_to_do", fail)
    if kind == "no-lock":
        broken = plan_first(small_factory).broken
        assert [trouble.what for trouble in broken] == ["It broke.", "It broke."]
    else:
        with raises(kind):
            plan_first(small_factory)
