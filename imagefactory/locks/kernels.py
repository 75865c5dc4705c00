"""Whether an image's kernels allow publishing it, decided from the record without reading any wheel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from imagefactory.locks.files import KernelLock, LockedWheel, WheelKernels, WheelLock
from imagefactory.locks.kernel_policy import GpuCode, KernelOutcome, KernelVerdict, judge
from imagefactory.matrix.matrix import Arch

AUDIT_LABEL: Final = "imagefactory.audit"
SUMMARY_LABEL: Final = "imagefactory.audit.summary"
AuditResult = Literal["passed", "failed", "not-audited", "not-applicable"]


@dataclass(frozen=True)
class Audit:
    """The kernels of an image, judged by the policy of its arch."""

    result: AuditResult
    verdicts: tuple[KernelVerdict, ...] = ()
    missing: tuple[str, ...] = ()
    """Wheels that have not been inspected."""

    @property
    def summary(self) -> str:
        """A short summary of how the libraries run."""
        if self.result == "not-applicable":
            return "no GPU"
        if self.result == "not-audited":
            return f"not looked into: {', '.join(self.missing)}" if self.missing else "no wheels are locked"
        counts = Counter(verdict.outcome for verdict in self.verdicts)
        parts = [f"{counts[outcome]} {outcome}" for outcome in get_args(KernelOutcome) if counts[outcome]]
        failing = [verdict.library for verdict in self.verdicts if not verdict.passes]
        return ", ".join(parts or ["no kernels"]) + (f" ({', '.join(failing)})" if failing else "")

    def labels(self) -> dict[str, str]:
        """Return the image labels that state the result."""
        return {AUDIT_LABEL: self.result, SUMMARY_LABEL: self.summary}


def audited_wheels(wheels: Iterable[LockedWheel], arch: Arch) -> list[LockedWheel]:
    """List the wheels that an image of an arch is judged by: vLLM's and FlashInfer's."""
    if arch.cubins is None or arch.capability is None:
        return []
    return [
        wheel for wheel in wheels if wheel.name == arch.distribution or wheel.name.startswith("flashinfer")
    ]


def recorded_audit(lock: WheelLock | None, arch: Arch, record: KernelLock) -> Audit:
    """Judge the locked wheels by what is on record about them."""
    if arch.cubins is None or arch.capability is None:
        return Audit("not-applicable")
    wheels = audited_wheels(lock.wheels, arch) if lock else []
    found = [(wheel, record.find(wheel.sha256)) for wheel in wheels]
    missing = tuple(wheel.file for wheel, entry in found if entry is None)
    if missing or not found:
        return Audit("not-audited", missing=missing)
    verdicts = verdicts_of([entry for _, entry in found if entry is not None], arch)
    return Audit("passed" if all(verdict.passes for verdict in verdicts) else "failed", verdicts)


def verdicts_of(wheels: Sequence[WheelKernels], arch: Arch) -> tuple[KernelVerdict, ...]:
    """Judge the libraries in wheels by the policy of an arch."""
    if arch.cubins is None or arch.capability is None:
        return ()
    judged = (
        judge(library.name, GpuCode(library.cubins, library.ptx, library.fp4), arch.cubins, arch.capability)
        for wheel in wheels
        for library in wheel.libraries
    )
    return tuple(verdict for verdict in judged if verdict is not None)
