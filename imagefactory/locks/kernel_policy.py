"""Whether kernels run on a chip, and if not, whether that matters: a policy per arch, stated in matrix.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from imagefactory.matrix.matrix import CubinPolicy


@dataclass(frozen=True)
class GpuCode:
    """How many cubins and PTX texts a library has for each architecture."""

    cubins: Mapping[str, int] = field(default_factory=dict)
    ptx: Mapping[str, int] = field(default_factory=dict)
    fp4: bool = False
    """Whether it holds kernels for 4-bit floating point, by their names."""


KernelOutcome = Literal["native", "jit", "other chips", "fails"]


@dataclass(frozen=True)
class KernelVerdict:
    """What becomes of one library on one arch."""

    library: str
    outcome: KernelOutcome
    why: str
    kernels: GpuCode

    @property
    def passes(self) -> bool:
        """False when the library keeps an image from being published."""
        return self.outcome != "fails"


def judge(library: str, kernels: GpuCode, policy: CubinPolicy, capability: str) -> KernelVerdict | None:
    """Compare a library with the policy of an arch; None when it holds no GPU code at all."""
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
    """PTX for an older chip without special features can be compiled for a newer one."""
    return arch[-1].isdigit() and _number(arch) <= int(capability.replace(".", ""))


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


def _counts(kernels: GpuCode, archs: list[str]) -> str:
    return ", ".join(f"{arch} x{kernels.cubins[arch]}" for arch in archs)
