"""Tests judging the kernels of an image from the record in locks/kernels.toml."""

import pytest

from imagefactory.compile.toolchain import check_all_locks
from imagefactory.errors import FactoryError
from imagefactory.lock import auditing
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.locks.kernels import Audit, KernelLock, LibraryKernels
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from imagefactory.publish.standing import audit_verdict
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.locked_checkout import GPU_TARGET


def planned(checkout: Checkout, target: str = GPU_TARGET) -> tuple[Project, Plan]:
    project = Project(checkout.root)
    [cell] = select(project.matrix, [target])
    return project, make_plan(project, cell)


def record(checkout: Checkout, cubins: dict[str, int] | None) -> None:
    """Record exactly these cubins for every library, or no wheel at all."""
    path = checkout.locks / "kernels.toml"
    wheels = []
    for wheel in KernelLock.read(path).wheels if cubins else ():
        libraries = tuple(LibraryKernels(name=one.name, cubins=cubins or {}) for one in wheel.libraries)
        wheels.append(wheel.model_copy(update={"libraries": libraries}))
    KernelLock(made_from={}, wheels=tuple(wheels)).write(path)


@pytest.mark.parametrize(
    ("target", "cubins", "result", "summary"),
    [
        (GPU_TARGET, {"sm_120f": 3}, "passed", "1 native"),
        ("tiny@2.0/cpu/amd64", {"sm_120f": 3}, "not-applicable", "no GPU"),
        (GPU_TARGET, {"sm_120a": 3}, "failed", "vllm/_C.abi3.so"),
        (GPU_TARGET, None, "not-audited", "vllm-2.0"),
    ],
)
def test_record_decides_whether_an_image_may_be_published(
    locked_checkout: Checkout, target: str, cubins: dict[str, int] | None, result: str, summary: str
) -> None:
    record(locked_checkout, cubins)
    project, plan = planned(locked_checkout, target)
    assert plan.config.labels["imagefactory.audit"] == result
    assert summary in plan.config.labels["imagefactory.audit.summary"]
    reasons = audit_verdict(project, plan)
    assert (not reasons) == (result in {"passed", "not-applicable"})
    expected = {"failed": ["sm_120a x3"], "not-audited": ["vllm-2.0", "./inv lock"]}
    assert all(word in "; ".join(reasons) for word in expected.get(result, []))


def test_image_from_before_the_record_changed_is_not_published(locked_checkout: Checkout) -> None:
    _, plan = planned(locked_checkout)
    record(locked_checkout, {"sm_120a": 3})
    reasons = audit_verdict(Project(locked_checkout.root), plan)
    assert any("says passed" in reason and "now says failed" in reason for reason in reasons)


def test_plan_reads_no_wheel(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "read_kernels", lambda *_: pytest.fail("a plan inspected a wheel"))
    assert planned(locked_checkout)[1].config.labels["imagefactory.audit"] == "passed"


def test_audit_without_wheels_or_kernels_says_so() -> None:
    assert Audit("not-audited").summary == "no wheels are locked"
    assert Audit("passed").summary == "no kernels"


def drift(checkout: Checkout) -> FactoryError:
    with raises("lock-drift", match="disagreement") as caught:
        check_all_locks(Project(checkout.root))
    return caught.value


def test_record_that_does_not_match_the_wheel_locks_is_drift(locked_checkout: Checkout) -> None:
    wheel = "vllm-2.0-cp38-abi3-manylinux_2_28_aarch64.whl"
    locked = locked_checkout.locks / "2.0" / "gpu-linux-arm64.toml"
    moved = locked.rename(locked_checkout.root / "moved")
    assert f"{wheel} is no longer locked" in drift(locked_checkout).why
    moved.rename(locked)
    record(locked_checkout, None)
    assert f"{wheel} has not been inspected" in drift(locked_checkout).why
    (locked_checkout.locks / "kernels.toml").unlink()
    assert drift(locked_checkout).where == "locks/kernels.toml"
