"""What became of an image's answers: a record for its digest, beside the image that users had before."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field

from imagefactory.check.answers.comparison import Change, Figures, Verdict, change, figures, judge, other_dummies
from imagefactory.check.answers.result import AnswersResult
from imagefactory.check.bench.result import BenchMachine
from imagefactory.check.weights import Weights
from imagefactory.errors import CheckError, UsageError
from imagefactory.project.locks.files import Document
from imagefactory.store.digests import Digest, Sha256

NOT_MEASURED: Final = "answers not measured"
_SHORT: Final = len("sha256:") + 12
_Digest = Annotated[Digest, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class AnswersRecord(Document):
    """The verdict about an image, with its figures."""

    format: Literal[1] = 1
    digest: _Digest
    plan_key: Annotated[Sha256, Field(pattern=r"^[0-9a-f]{64}$")]
    target: str
    panel: int  # the version of the panel
    started: AwareDatetime
    machine: BenchMachine | None = None  # None if its answers could not be measured
    verdict: Verdict | Literal["first"]  # `first`: there was no image to compare with
    why: str
    base: _Digest | None = None  # the image that its tag named when it was measured
    change: Change | None = None  # what differs between the two
    figures: Figures | None = None
    noise: Figures | None = None  # between two starts of this image
    accepted: str = ""  # why it was published although its answers changed
    weights: Weights = ""  # generated ones show whether answers changed, not whether they are good

    @property
    def line(self) -> str:
        machine, day = self.machine, f"{self.started:%Y-%m-%d}"
        chips = {gpu.name for gpu in machine.gpus} or {machine.platform} if machine else set()
        measured = f"measured on {', '.join(sorted(chips))}, {day}" if chips else f"tried on {day}"
        measured += f", weights: {self.weights}" if self.weights else ""
        base = (self.base or "nothing")[:_SHORT]
        if self.verdict == "first":
            return f"answers {measured}; there was nothing to compare with"
        if self.verdict == "same":
            return f"same answers as {base}, {measured}"
        if self.verdict == "changed":
            reason = f"{self.accepted} ({self.why})" if self.accepted else self.why
            return f"answers changed: {reason}; compared with {base}, {measured}"
        return f"cannot tell whether answers changed: {self.why}; compared with {base}, {measured}"

    @staticmethod
    def unreadable(where: Path | str, why: str) -> CheckError:
        what = "The record of an image's answers cannot be read."
        fix = "Measure again: `./inv publish --answers --retest`."
        return CheckError("bad-answers-record", what, where=where, why=why, fix=fix)


def judged(
    record: AnswersRecord,
    result: AnswersResult,
    *,
    base: AnswersResult | None,
    again: AnswersResult | None,
    other_kernels: bool = False,
) -> AnswersRecord:
    """Complete a record: compare a result with that of the image before it, beside `again`, another start.

    Results do not say whether two images have other wheels: `other_kernels` does.
    """
    fields: dict[str, object] = {"panel": result.panel, "machine": result.machine}
    if base is None or other_dummies(base.bound, result.bound):
        why = "there was no image to compare with" if base is None else "each release generates other weights"
        fields |= {"verdict": "first", "why": why}
        return record.model_copy(update=fields)
    what = change(base, result)
    fields["change"] = what = "kernels" if what == "code" and other_kernels else what
    try:
        apart = figures(base, result)
    except UsageError as error:
        why = error.why[:1].lower() + error.why[1:].rstrip(".")
        return record.model_copy(update=fields | {"verdict": "changed", "why": why})
    noise = figures(result, again) if again else None
    verdict, why = judge(what, apart, noise)
    fields |= {"verdict": verdict, "why": why, "figures": apart, "noise": noise}
    return record.model_copy(update=fields)
