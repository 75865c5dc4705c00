"""Whether kernels run on a GPU, and if not, whether that matters: a policy per arch, defined in matrix.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from imagefactory.matrix.matrix import CubinPolicy


@dataclass(frozen=True)
class GpuCode:
    """The number of cubins and PTX modules in a library, per GPU target."""

    cubins: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    fp4: bool = False
    """Whether it contains FP4 kernels, judging by their names."""


KernelOutcome = Literal["native", "jit", "other chips", "fails"]


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


def judge(library: str, kernels: GpuCode, policy: CubinPolicy, capability: str) -> KernelVerdict | None:
    """Judge a library by the policy of an arch; return None if it contains no GPU code."""
    if not kernels.cubins and not kernels.ptx:
        return None
    accepted = [arch for arch in policy.accept if arch in kernels.cubins]
    special = [arch for arch in accepted if arch[-1] in "af"]
    refused = [arch for arch in policy.refuse if arch in kernels.cubins]
    if refused and not special:
        return KernelVerdict(
            library,
            "fails",
            f"its special kernels are {_counts(kernels, refused)} only, which do not load on {capability}",
            kernels,
        )
    holds_fp4 = kernels.fp4 and any(fnmatchcase(library, pattern) for pattern in policy.fp4)
    if holds_fp4 and not special:
        return KernelVerdict(
            library,
            "fails",
            f"it holds FP4 kernels, and none is for an a or f target of {capability}",
            kernels,
        )
    if accepted:
        return KernelVerdict(library, "native", _counts(kernels, accepted), kernels)
    usable = [arch for arch in kernels.ptx if _runs_by_jit(arch, capability)]
    if usable:
        newest = max(usable, key=_number)
        return KernelVerdict(
            library, "jit", f"PTX {newest.replace('sm_', 'compute_')}, compiled at first use", kernels
        )
    others = ", ".join(sorted({*kernels.cubins, *kernels.ptx}, key=_number))
    return KernelVerdict(library, "other chips", f"only {others}; vLLM does not choose it here", kernels)


def _runs_by_jit(arch: str, capability: str) -> bool:
    """Return whether PTX can be compiled for a GPU: it must target an older one, without special features."""
    return arch[-1].isdigit() and _number(arch) <= int(capability.replace(".", ""))


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _counts(kernels: GpuCode, archs: list[str]) -> str:
    return ", ".join(f"{arch} x{kernels.cubins[arch]}" for arch in archs)
