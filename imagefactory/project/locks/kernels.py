"""The kernels of wheels: locks of the GPU code that was found and taken out, and a judgement by an arch's policy."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import ClassVar, Final, Literal, get_args

from pydantic import Field

from imagefactory.project.locks.files import Frozen, Hash, Lock, LockedWheel, WheelLock
from imagefactory.project.matrix import Arch
from imagefactory.project.server_versions import server_name
from imagefactory.project.servers.known import SERVERS


class LibraryKernels(Frozen):
    """The number of cubins and PTX modules in one shared library, per GPU target."""

    name: str
    cubins: dict[str, int] = Field(default_factory=dict)
    ptx: dict[str, int] = Field(default_factory=dict)
    fp4: bool = False


class WheelKernels(Frozen):
    """The GPU code in a wheel: one entry for each library that has any."""

    file: str
    sha256: Hash
    libraries: tuple[LibraryKernels, ...] = ()


class KernelLock(Lock):
    """The GPU code in the locked wheels, recorded so that planning need not inspect any wheel."""

    file: ClassVar[str] = "kernels.toml"
    header: ClassVar[str] = "For which chips the kernels of the locked wheels were compiled."

    wheels: tuple[WheelKernels, ...] = ()

    def find(self, sha256: str) -> WheelKernels | None:
        return next((wheel for wheel in self.wheels if wheel.sha256 == sha256), None)


class SlimmedLibrary(Frozen):
    """A library of a wheel without the GPU code that a chip cannot load."""

    path: str
    published: Hash  # the sha256 of the file in the wheel
    sha256: Hash
    kept: dict[str, int] = Field(default_factory=dict)  # the bytes of GPU code per target
    blanked: dict[str, int]


class UntouchedLibrary(Frozen):
    """A library whose GPU code is not understood, and stays as it is."""

    path: str
    why: str


class SlimmedWheel(Frozen):
    """What was taken out of a wheel for a chip."""

    file: str
    sha256: Hash
    chip: str
    rule: int
    libraries: tuple[SlimmedLibrary, ...] = ()
    untouched: tuple[UntouchedLibrary, ...] = ()


class SlimLock(Lock):
    """The libraries that builds slimmed, recorded so that their hashes are known before a build."""

    file: ClassVar[str] = "slim.toml"
    header: ClassVar[str] = "The libraries without the GPU code that a chip cannot load: hashes, and bytes per target."
    maker: ClassVar[str] = "build"

    wheels: tuple[SlimmedWheel, ...] = ()

    def find(self, sha256: str, chip: str, rule: int) -> SlimmedWheel | None:
        identity = (sha256, chip, rule)
        return next((wheel for wheel in self.wheels if (wheel.sha256, wheel.chip, wheel.rule) == identity), None)


AUDIT_LABEL: Final = "imagefactory.audit"
SUMMARY_LABEL: Final = "imagefactory.audit.summary"
AuditResult = Literal["passed", "failed", "not-audited", "not-applicable"]
KernelOutcome = Literal["native", "jit", "other chips", "other Python", "fails"]
_OF_PYTHON = re.compile(r"\.cpython-(\d)(\d+)-")


@dataclass(frozen=True)
class GpuCode:
    """The number of cubins and PTX modules in a library, per GPU target."""

    cubins: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    fp4: bool = False  # whether it contains FP4 kernels, judging by their names


@dataclass(frozen=True)
class KernelVerdict:
    """How one library fares on one arch."""

    library: str
    outcome: KernelOutcome
    why: str
    kernels: GpuCode

    @property
    def passes(self) -> bool:
        """False if the library prevents an image from being published."""
        return self.outcome != "fails"


@dataclass(frozen=True)
class Audit:
    """The kernels of an image, judged by the policy of its arch."""

    result: AuditResult
    verdicts: tuple[KernelVerdict, ...] = ()
    missing: tuple[str, ...] = ()  # wheels that have not been inspected

    @property
    def summary(self) -> str:
        if self.result == "not-applicable":
            return "no GPU"
        if self.result == "not-audited":
            return f"not looked into: {', '.join(self.missing)}" if self.missing else "no wheels are locked"
        counts = Counter(verdict.outcome for verdict in self.verdicts)
        parts = [f"{counts[outcome]} {outcome}" for outcome in get_args(KernelOutcome) if counts[outcome]]
        failing = [verdict.library for verdict in self.verdicts if not verdict.passes]
        return ", ".join(parts or ["no kernels"]) + (f" ({', '.join(failing)})" if failing else "")

    def labels(self) -> dict[str, str]:
        return {AUDIT_LABEL: self.result, SUMMARY_LABEL: self.summary}


def audited_wheels(lock: WheelLock, arch: Arch) -> list[LockedWheel]:
    """List the wheels that an image of an arch is judged by: the server's, its kernels' and FlashInfer's."""
    if arch.cubins is None or arch.capability is None:
        return []
    server = SERVERS[server_name(lock.version)]
    return [wheel for wheel in lock.wheels if server.judged_by(wheel.name, arch)]


def recorded_audit(lock: WheelLock, arch: Arch, record: KernelLock) -> Audit:
    """Judge the locked wheels by the record, without reading any wheel."""
    if arch.cubins is None or arch.capability is None:
        return Audit("not-applicable")
    records = [(wheel, record.find(wheel.sha256)) for wheel in audited_wheels(lock, arch)]
    missing = tuple(wheel.file for wheel, entry in records if entry is None)
    if missing or not records:
        return Audit("not-audited", missing=missing)
    verdicts = verdicts_of([entry for _, entry in records if entry is not None], arch, lock.python)
    return Audit("passed" if all(verdict.passes for verdict in verdicts) else "failed", verdicts)


def verdicts_of(wheels: Sequence[WheelKernels], arch: Arch, python: str) -> tuple[KernelVerdict, ...]:
    """Judge the libraries in wheels by the policy of an arch, for images with a version of Python."""
    judged = (
        judge(library.name, GpuCode(library.cubins, library.ptx, library.fp4), arch, python)
        for wheel in wheels
        for library in wheel.libraries
    )
    return tuple(verdict for verdict in judged if verdict is not None)


def judge(library: str, kernels: GpuCode, arch: Arch, python: str = "") -> KernelVerdict | None:
    """Judge a library by the policy of an arch; return None if there is no policy or no GPU code.

    An extension module for another Python than the image's cannot be loaded, whatever it holds.
    """
    policy, capability = arch.cubins, arch.capability
    if policy is None or capability is None or not (kernels.cubins or kernels.ptx):
        return None
    accepted = [sm for sm in policy.accept if sm in kernels.cubins]
    special = [sm for sm in accepted if sm[-1] in "af"]  # a: for one chip alone; f: for its family
    refused = [sm for sm in policy.refuse if sm in kernels.cubins]
    holds_fp4 = kernels.fp4 and any(fnmatchcase(library, pattern) for pattern in policy.fp4)
    usable = [sm for sm in kernels.ptx if _runs_by_jit(sm, capability)]
    outcome: KernelOutcome = "fails"
    made_for = _OF_PYTHON.search(library)
    if made_for and python and f"{made_for[1]}.{made_for[2]}" != python:
        outcome, why = (
            "other Python",
            f"Python {python} does not import what is made for {'.'.join(made_for.groups())}",
        )
    # Before what is accepted: a library may have plain kernels beside special ones that do not load.
    elif refused and not special:
        why = f"its special kernels are {_counts(kernels, refused)} only, which do not load on {capability}"
    elif holds_fp4 and not special:
        why = f"it holds FP4 kernels, and none is for an a or f target of {capability}"
    elif accepted:
        outcome, why = "native", _counts(kernels, accepted)
    elif usable:
        newest = max(usable, key=_number).replace("sm_", "compute_")
        outcome, why = "jit", f"PTX {newest}, compiled at first use"
    else:
        others = ", ".join(sorted({*kernels.cubins, *kernels.ptx}, key=_number))
        outcome, why = "other chips", f"only {others}; the server does not choose it here"
    return KernelVerdict(library, outcome, why, kernels)


def _runs_by_jit(sm: str, capability: str) -> bool:
    """Whether PTX can be compiled for a GPU: it must target an older one, without special features."""
    return sm[-1].isdigit() and _number(sm) <= int(capability.replace(".", ""))


def _number(sm: str) -> int:
    return int(re.sub(r"\D", "", sm))


def _counts(kernels: GpuCode, sms: list[str]) -> str:
    return ", ".join(f"{sm} x{kernels.cubins[sm]}" for sm in sms)
