"""What a check of an image found: a list that can be shown, and an error when something failed."""

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
    """The outcome of one check, and what it is about."""

    check: CheckName
    state: FindingState
    detail: str


def ok(check: CheckName, detail: str) -> Finding:
    """Note that something is as it should be."""
    return Finding(check, "ok", detail)


def failed(check: CheckName, detail: str) -> Finding:
    """Note that something is wrong."""
    return Finding(check, "failed", detail)


def not_checked(check: CheckName, detail: str) -> Finding:
    """Note that something could not be checked here, and why."""
    return Finding(check, "not checked", detail)


def refuse_failing(image: str, findings: Sequence[Finding]) -> None:
    """Stop when a check failed; a missing signature is told from content that was changed."""
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
