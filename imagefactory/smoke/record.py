"""What smoke tests found, bound to one image: its manifest digest and the key of its plan.

A level that could not run is on record as `not-run`, with the reason. Nothing turns that into `passed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from imagefactory.errors.smoke import SmokeRecordError
from imagefactory.locks.files import first_problem
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest, Sha256

Level = Literal["static", "container", "serve", "gpu"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
LevelOutcome = Literal["passed", "failed", "not-run"]
TestOutcome = Literal["passed", "failed", "not-run", "not-applicable"]
"""`not-run`: the test could not run; `not-applicable`: it does not apply to this image."""

_DIGEST: Final = r"^sha256:[0-9a-f]{64}$"
_SHA256: Final = r"^[0-9a-f]{64}$"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TestResult(_Value):
    """One test: how it ended, and why when it did not pass."""

    __test__ = False  # pytest looks for classes of this name

    name: str
    outcome: TestOutcome
    seconds: float = 0.0
    message: str = ""
    means: str = ""
    """What a failure of this test means for somebody who runs the image."""
    measured: dict[str, float] = {}
    """Measurements of the test, such as how many seconds an import took."""


class SmokeMachine(_Value):
    """The machine that the tests ran on."""

    platform: str
    kernel: str = ""
    cpus: int = 0
    memory: int = 0
    """Bytes."""
    engine: str = ""
    """The container engine and its version; empty where there was none."""
    gpus: tuple[str, ...] = ()


class LevelResult(_Value):
    """One level: passed only if every test that applies to the image ran and passed."""

    outcome: LevelOutcome
    why: str = ""
    """Why it did not pass: the tests that failed, or what kept the level from running."""
    tests: tuple[TestResult, ...] = ()
    seconds: float = 0.0
    started: datetime | None = None
    """When it ran, if that was in another run than the record's own."""
    machine: SmokeMachine | None = None
    """Where it ran, if that was in another run."""
    ran_on: str = ""
    """The digest of the image that ran, if that is another one: a CPU counterpart serves for a GPU image."""

    @classmethod
    def of(cls, tests: Iterable[TestResult], *, seconds: float = 0.0, ran_on: str = "") -> Self:
        """Work out the result of a level from its tests."""
        tests = tuple(tests)
        failed = [test for test in tests if test.outcome == "failed"]
        open_ = [test for test in tests if test.outcome == "not-run"]
        outcome: LevelOutcome = "passed"
        why = ""
        if failed:
            outcome, why = "failed", "; ".join(f"{test.name}: {_first_line(test.message)}" for test in failed)
        elif open_:
            outcome, why = "not-run", "; ".join(f"{test.name}: {_first_line(test.message)}" for test in open_)
        elif not any(test.outcome == "passed" for test in tests):
            outcome, why = "not-run", "it has no test for this image"
        return cls(outcome=outcome, why=why, tests=tests, seconds=seconds, ran_on=ran_on)

    @classmethod
    def not_run(cls, why: str) -> Self:
        """Make the result of a level that could not run."""
        return cls(outcome="not-run", why=why)

    @model_validator(mode="after")
    def _says_what_its_tests_say(self) -> Self:
        outcomes = {test.outcome for test in self.tests}
        if self.outcome == "passed" and ("passed" not in outcomes or outcomes & {"failed", "not-run"}):
            raise ValueError("a level passes only when its tests ran and passed")
        if self.outcome != "passed" and not self.why.strip():
            raise ValueError("a level that did not pass says why")
        return self


class SmokeRecord(_Value):
    """The results of one image, by level."""

    format: Literal[1] = 1
    digest: Digest = Field(pattern=_DIGEST)
    plan_key: Sha256 = Field(pattern=_SHA256)
    target: str
    image: str
    """The reference or the layout that was tested."""
    platform: str
    machine: SmokeMachine
    started: datetime
    levels: dict[Level, LevelResult]

    @property
    def passed(self) -> tuple[Level, ...]:
        """Return the levels that passed."""
        return tuple(level for level, result in self.levels.items() if result.outcome == "passed")

    @property
    def summary(self) -> str:
        """Return every level with its outcome, on one line."""
        return ", ".join(f"{level}: {result.outcome}" for level, result in self.levels.items())

    def missing(self, required_levels: Iterable[str]) -> list[str]:
        """List what keeps the image from a tag: required levels that did not pass, and any level that failed."""
        required = list(required_levels)
        found = []
        for level in (*required, *(level for level in self.levels if level not in required)):
            result = next((result for name, result in self.levels.items() if name == level), None)
            if result is None:
                found.append(f"{level}: no result")
            elif result.outcome == "failed" or (level in required and result.outcome != "passed"):
                found.append(
                    f"{level}: {'not run' if result.outcome == 'not-run' else 'failed'} ({result.why})"
                )
        return found

    def with_earlier(self, earlier: SmokeRecord) -> SmokeRecord:
        """Add the levels of an earlier record of the same image that did not run this time."""
        if (earlier.digest, earlier.plan_key) != (self.digest, self.plan_key):
            raise ValueError("a record speaks for one image only")
        kept = {
            level: result.model_copy(
                update={
                    "started": result.started or earlier.started,
                    "machine": result.machine or earlier.machine,
                }
            )
            for level, result in earlier.levels.items()
            if level not in self.levels
        }
        merged = kept | self.levels
        return self.model_copy(
            update={"levels": {level: merged[level] for level in LEVELS if level in merged}}
        )

    def to_json(self) -> str:
        """Write the record as JSON."""
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, where: Path | str = "the smoke record") -> Self:
        """Parse a record; `where` goes into the error if it is damaged."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise SmokeRecordError(
                "The smoke record cannot be read.",
                where=where,
                why=f"{first_problem(error)}.",
                fix="Remove it and run `invoke smoke` again.",
            ) from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record from a file."""
        try:
            return cls.from_json(path.read_bytes(), where=path)
        except OSError as error:
            raise SmokeRecordError(
                "There is no smoke record for this image.",
                where=path,
                why=f"{error.strerror or error}.",
                fix="Run `invoke smoke` first.",
            ) from None

    def write(self, path: Path) -> None:
        """Write the record to a file, whole or not at all."""
        write_text(path, self.to_json())


def _first_line(message: str) -> str:
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason is known")
