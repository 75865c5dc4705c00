"""The results of smoke tests, for the manifest digest and the plan key of an image.

A level that could not run is recorded as `not-run`, with the reason, and never counts as `passed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal, Self, get_args

from pydantic import AwareDatetime, Field, model_validator

from imagefactory.check.weights import Weights, weights_of
from imagefactory.errors import CheckError, unknown_name
from imagefactory.project.counterparts import has_gpu
from imagefactory.project.locks.files import Document, Frozen
from imagefactory.project.matrix import Matrix
from imagefactory.store.digests import Digest, Sha256

Level = Literal["static", "container", "serve", "gpu"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
LevelOutcome = Literal["passed", "failed", "not-run"]
TestOutcome = Literal["passed", "failed", "not-run", "not-applicable"]
"""`not-run`: the test could not run; `not-applicable`: it does not apply to this image."""

_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"
_SHA256: Final = r"^[0-9a-f]{64}$"


class TestResult(Frozen):
    """The outcome of a test, and the reason if it did not pass."""

    __test__ = False  # pytest looks for classes of this name

    name: str
    outcome: TestOutcome
    seconds: float = 0.0
    message: str = ""
    means: str = ""  # what a failure of this test means for users of the image
    measured: dict[str, float] = Field(default={})  # measurements, such as the seconds of an import


def reason_in(message: str) -> str:
    """Return the line of a message that says most: the last one of a log, before pytest's own explanation."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason is known"]
    before_assert = [*takewhile(lambda line: not line.startswith("assert "), lines)] or lines[:1]
    # What Python leaves behind where it ends may warn after the error, in two lines; docker's last line names its help.
    after_all = ("warnings.warn(", "See 'docker ")
    telling = [line for line in before_assert if "Warning: " not in line and not line.startswith(after_all)]
    return (telling or before_assert)[-1]


class SmokeMachine(Frozen):
    """The machine that the tests ran on."""

    platform: str
    kernel: str = ""
    cpus: int = 0
    memory: int = 0  # bytes
    engine: str = ""  # the container engine and its version; empty without one
    gpus: tuple[str, ...] = ()


class LevelResult(Frozen):
    """The result of a level; it passes only if every applicable test ran and passed."""

    outcome: LevelOutcome
    why: str = ""  # why it did not pass: the failed tests, or what prevented the level
    tests: tuple[TestResult, ...] = ()
    seconds: float = 0.0
    started: AwareDatetime | None = None  # when it ran, if that was an earlier run
    machine: SmokeMachine | None = None  # where it ran, if that was an earlier run
    ran_on: str = ""  # the digest of the image that ran instead, such as the CPU counterpart of a GPU image
    settings: dict[str, str] = Field(default={})  # what differed from the image's defaults
    weights: Weights = ""  # generated ones are random: nobody judged what they answered

    @classmethod
    def of(
        cls,
        tests: Iterable[TestResult],
        *,
        seconds: float = 0.0,
        ran_on: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        tests = tuple(tests)
        outcomes = {test.outcome for test in tests}
        outcome: LevelOutcome = "failed" if "failed" in outcomes else "not-run"
        if outcomes - {"not-applicable"} == {"passed"}:
            outcome = "passed"
        wrong = [test for test in tests if test.outcome == outcome != "passed"]
        why = "it has no test for this image" if outcome == "not-run" else ""
        if wrong:  # the first failure explains most others
            why = f"{wrong[0].name}: {reason_in(wrong[0].message)}"
            why += f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        given = dict(settings or {})
        served = {"ran_on": ran_on, "settings": given, "weights": weights_of(given)}
        return cls.model_validate({"outcome": outcome, "why": why, "tests": tests, "seconds": seconds} | served)

    @classmethod
    def not_run(cls, why: str) -> Self:
        return cls(outcome="not-run", why=why)

    @model_validator(mode="after")
    def _agrees_with_its_tests(self) -> Self:
        outcomes = {test.outcome for test in self.tests}
        if self.outcome == "passed" and ("passed" not in outcomes or outcomes & {"failed", "not-run"}):
            raise ValueError("a level passes only if its tests ran and passed")
        if self.outcome != "passed" and not self.why.strip():
            raise ValueError("a level that did not pass needs a reason")
        return self


class SmokeRecord(Document):
    """The results of an image, by level."""

    format: Literal[1] = 1
    digest: Digest = Field(pattern=_DIGEST)
    plan_key: Sha256 = Field(pattern=_SHA256)
    target: str
    image: str  # the reference or layout that was tested
    platform: str
    machine: SmokeMachine
    started: AwareDatetime
    levels: dict[Level, LevelResult]

    @property
    def passed(self) -> tuple[Level, ...]:
        return tuple(level for level, result in self.levels.items() if result.outcome == "passed")

    @property
    def summary(self) -> str:
        return ", ".join(f"{level}: {result.outcome}" for level, result in self.levels.items())

    def missing(self, required_levels: Iterable[str]) -> list[str]:
        """List why the image gets no tag: required levels that did not pass, and any level that failed."""
        required = list(required_levels)
        results = {str(level): result for level, result in self.levels.items()}
        reasons = []
        for level in dict.fromkeys([*required, *results]):
            result = results.get(level)
            if result is None:
                reasons.append(f"{level}: no result")
            elif result.outcome == "failed" or (level in required and result.outcome == "not-run"):
                reasons.append(f"{level}: {result.outcome.replace('-', ' ')} ({result.why})")
            elif level in required and result.weights:
                reasons.append(f"{level}: passed with {result.weights} weights only")
        return reasons

    def with_earlier(self, earlier: SmokeRecord) -> SmokeRecord:
        """Add the levels of an earlier record of the same image that did not run this time."""
        if (earlier.digest, earlier.plan_key) != (self.digest, self.plan_key):
            raise ValueError("the records are about different images")
        ran = {"started": earlier.started, "machine": earlier.machine}
        levels = {
            level: old.model_copy(update=ran if old.started is None else {}) for level, old in earlier.levels.items()
        } | self.levels
        return self.model_copy(update={"levels": {level: levels[level] for level in LEVELS if level in levels}})

    @staticmethod
    def unreadable(where: Path | str, why: str) -> CheckError:
        fix = "Remove it if it is damaged, and run `./inv smoke`."
        return CheckError("bad-smoke-record", "The smoke record cannot be read.", where=where, why=why, fix=fix)


def levels_of(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    return LEVELS if has_gpu(matrix, arch) else tuple(level for level in LEVELS if level != "gpu")


def required_levels(matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """List the levels that an arch's images must pass to get a tag, according to matrix.yaml.

    Other levels need not run, but must not fail (`SmokeRecord.missing`).
    """
    return tuple(matrix.archs[arch].smoke)


def levels_named(names: Iterable[str], matrix: Matrix, arch: str) -> tuple[Level, ...]:
    """Parse the names of levels, and sort them in their order of execution; default: all of the arch."""
    names = [name.strip() for word in names for name in word.split(",") if name.strip()]
    for name in names:
        if name not in LEVELS:
            raise unknown_name("level", name, LEVELS, "the --level option")
    return tuple(level for level in LEVELS if level in names) if names else levels_of(matrix, arch)
