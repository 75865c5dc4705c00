"""What an image says of its kernels: judged from the record, without a wheel, and asked for before it goes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.compile.toolchain_locks import check_all_locks
from imagefactory.errors.locks import LockDriftError, LockEditedError
from imagefactory.errors.wheelhouse import KernelRecordError
from imagefactory.locks.files import KernelLock, LibraryKernels, WheelKernels
from imagefactory.locks.kernels import Audit, GpuCode, recorded_audit
from imagefactory.locks.project import Project
from imagefactory.matrix.targets import select
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.publish.gate import audit_verdict
from imagefactory.resolve.audit import auditing
from imagefactory.resolve.audit.auditing import refuse_wrong_record
from tests.fixtures.checkouts import Checkout
from tests.fixtures.locked_checkout import GPU_TARGET


def planned(checkout: Checkout, target: str = GPU_TARGET) -> tuple[Project, Plan]:
    project = Project(checkout.root)
    [cell] = select(project.matrix, [target])
    return project, make_plan(project, cell)


def record(checkout: Checkout, cubins: dict[str, int] | None) -> None:
    """Describe of every recorded library that it holds just these; None forgets the wheels."""
    path = checkout.locks / "kernels.toml"
    wheels = KernelLock.read(path).wheels if cubins is not None else ()
    changed = [
        wheel.model_copy(
            update={
                "libraries": tuple(
                    LibraryKernels(name=library.name, cubins=cubins or {}) for library in wheel.libraries
                )
            }
        )
        for wheel in wheels
    ]
    KernelLock(made_from={}, wheels=tuple(changed)).write(path)


def test_kernels_that_load_let_an_image_out(locked_checkout: Checkout) -> None:
    project, plan = planned(locked_checkout)
    assert plan.config.labels["imagefactory.audit"] == "passed"
    assert plan.config.labels["imagefactory.audit.summary"] == "1 native"
    assert audit_verdict(project, plan) == (True, [])


def test_an_image_without_a_gpu_has_nothing_to_audit(locked_checkout: Checkout) -> None:
    project, plan = planned(locked_checkout, "tiny@2.0/cpu/amd64")
    assert plan.config.labels["imagefactory.audit"] == "not-applicable"
    assert audit_verdict(project, plan) == (True, [])


def test_kernels_that_do_not_load_keep_an_image_in_and_are_named(locked_checkout: Checkout) -> None:
    record(locked_checkout, {"sm_120a": 3})
    project, plan = planned(locked_checkout)
    assert plan.config.labels["imagefactory.audit"] == "failed"
    assert "vllm/_C.abi3.so" in plan.config.labels["imagefactory.audit.summary"]
    passed, reasons = audit_verdict(project, plan)
    assert not passed
    assert any("sm_120a x3" in reason for reason in reasons)


def test_wheels_that_nobody_looked_into_keep_an_image_in(locked_checkout: Checkout) -> None:
    record(locked_checkout, None)
    project, plan = planned(locked_checkout)
    assert plan.config.labels["imagefactory.audit"] == "not-audited"
    passed, [reason] = audit_verdict(project, plan)
    assert not passed
    assert "vllm-2.0" in reason
    assert "invoke lock" in reason


def test_an_image_from_before_the_record_changed_stays_in(locked_checkout: Checkout) -> None:
    _, plan = planned(locked_checkout)
    record(locked_checkout, {"sm_120a": 3})
    passed, reasons = audit_verdict(Project(locked_checkout.root), plan)
    assert not passed
    assert any("says passed" in reason and "now says failed" in reason for reason in reasons)


def test_the_policy_judges_not_the_record(locked_checkout: Checkout) -> None:
    old = "      accept: [sm_121a, sm_120f]\n      refuse: [sm_120a]"
    locked_checkout.edit_matrix(old, "      accept: [sm_121a]\n      refuse: [sm_120f]")
    _, plan = planned(locked_checkout)
    assert plan.config.labels["imagefactory.audit"] == "failed"


def test_a_plan_reads_no_wheel(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> GpuCode:
        raise AssertionError("a plan looked into a wheel")

    monkeypatch.setattr(auditing, "read_kernels", fail)
    assert planned(locked_checkout)[1].config.labels["imagefactory.audit"] == "passed"


def test_without_a_lock_nothing_is_claimed(locked_checkout: Checkout) -> None:
    project = Project(locked_checkout.root)
    audit = recorded_audit(None, project.matrix.archs["gpu"], project.kernel_lock)
    assert (audit.result, audit.summary) == ("not-audited", "no wheels are locked")


def test_a_summary_counts_what_runs_how() -> None:
    assert Audit("passed").summary == "no kernels"
    assert Audit("not-applicable").labels()["imagefactory.audit.summary"] == "no GPU"


def test_a_record_edited_by_hand_is_noticed(locked_checkout: Checkout) -> None:
    path = locked_checkout.locks / "kernels.toml"
    path.write_text(path.read_text().replace("sm_120f = 3", "sm_121a = 3"))
    with pytest.raises(LockEditedError):
        planned(locked_checkout)


def test_a_wheel_that_is_missing_from_the_record_is_drift(locked_checkout: Checkout) -> None:
    record(locked_checkout, None)
    with pytest.raises(LockDriftError) as caught:
        check_all_locks(Project(locked_checkout.root))
    assert "vllm-2.0-cp38-abi3-manylinux_2_28_aarch64.whl has not been inspected" in caught.value.why


def test_a_wheel_that_is_recorded_and_no_longer_locked_is_drift(locked_checkout: Checkout) -> None:
    (locked_checkout.locks / "2.0" / "gpu-linux-arm64.toml").unlink()
    with pytest.raises(LockDriftError) as caught:
        check_all_locks(Project(locked_checkout.root))
    assert "vllm-2.0-cp38-abi3-manylinux_2_28_aarch64.whl is no longer locked" in caught.value.why


def test_a_checkout_without_a_record_says_that_it_is_missing(locked_checkout: Checkout) -> None:
    (locked_checkout.locks / "kernels.toml").unlink()
    with pytest.raises(LockDriftError, match="1 disagreement") as caught:
        check_all_locks(Project(locked_checkout.root))
    assert caught.value.where == "locks/kernels.toml"


def test_a_record_that_lies_is_found_out_by_looking_again(
    locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = locked_checkout.locks / "kernels.toml"
    honest = {wheel.sha256: wheel for wheel in KernelLock.read(path).wheels}
    monkeypatch.setattr(auditing, "look_into", lambda _, wheel: honest[wheel.sha256])
    assert refuse_wrong_record(Project(locked_checkout.root), GPU_TARGET) == 1
    record(locked_checkout, {"sm_121a": 99})
    with pytest.raises(KernelRecordError) as caught:
        refuse_wrong_record(Project(locked_checkout.root), GPU_TARGET)
    assert "sm_121a" in caught.value.why
    record(locked_checkout, None)
    with pytest.raises(KernelRecordError, match="is wrong") as caught:
        refuse_wrong_record(Project(locked_checkout.root), GPU_TARGET)
    assert caught.value.why == "The wheel is not on record."


def test_the_record_survives_being_written_and_read(tmp_path: Path) -> None:
    library = LibraryKernels(name="vllm/_C.abi3.so", cubins={"sm_121a": 2}, ptx={"sm_80": 1}, fp4=True)
    wheel = WheelKernels.model_validate({"file": "vllm-1-py3-none-any.whl", "sha256": "0" * 64})
    lock = KernelLock(made_from={}, wheels=(wheel.model_copy(update={"libraries": (library,)}), wheel))
    path = tmp_path / "kernels.toml"
    assert lock.write(path)
    assert not lock.write(path)
    assert KernelLock.read(path).wheels == lock.wheels
    assert json.loads(KernelLock.read(path).model_dump_json())["wheels"][1]["libraries"] == []
