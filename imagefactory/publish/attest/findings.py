"""Findings: the results of checking an image, and the error if something failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from imagefactory.errors import FactoryError
from imagefactory.errors.supply import ImageSignatureError, TamperedError

FindingState = Literal["ok", "failed", "not checked"]
CheckName = Literal[
    "manifest", "configuration", "signature", "provenance", "sbom", "layers", "record", "rebuild"
]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: CheckName
    state: FindingState
    detail: str


def refuse_failing(image: str, findings: Sequence[Finding]) -> None:
    """Raise if a check failed: one error for missing signatures, another for changed content."""
    wrong = [finding for finding in findings if finding.state == "failed"]
    if not wrong:
        return
    kind: type[FactoryError] = TamperedError
    what = "The image, or something attached to it, is not what was signed."
    if all(finding.check == "signature" for finding in wrong):
        kind, what = ImageSignatureError, "The image is not signed by anybody who is trusted."
    raise kind(
        what,
        where=image,
        why="; ".join(f"{finding.check}: {finding.detail}" for finding in wrong),
        fix="Do not use it. Pull it again by its digest from a registry you trust, or build it yourself; "
        "a key that should be trusted is given with --key.",
    )
