"""Smoke records: what did not run never passes, and a record speaks for one image."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from imagefactory.errors.smoke import SmokeRecordError
from imagefactory.smoke.record import Level, LevelResult, SmokeMachine, SmokeRecord, TestOutcome, TestResult
from imagefactory.store.digests import Digest, Sha256

DIGEST = Digest(f"sha256:{'a' * 64}")
KEY = Sha256("b" * 64)


def result(name: str, outcome: TestOutcome, message: str = "") -> TestResult:
    return TestResult(name=name, outcome=outcome, message=message)


def record(levels: dict[Level, LevelResult], digest: str = DIGEST) -> SmokeRecord:
    return SmokeRecord(
        digest=Digest(digest),
        plan_key=KEY,
        target="tiny@0.32.0/cpu/amd64",
        image="build/tiny",
        platform="linux/amd64",
        machine=SmokeMachine(platform="linux/amd64"),
        started=datetime(2026, 1, 2, tzinfo=UTC),
        levels=levels,
    )


PASSED = LevelResult.of([result("one", "passed")])


def test_a_level_passes_when_every_test_ran_and_passed() -> None:
    assert (
        LevelResult.of([result("one", "passed"), result("two", "not-applicable", "no GPU")]).outcome
        == "passed"
    )


def test_one_failed_test_fails_the_level_and_names_itself() -> None:
    found = LevelResult.of([result("one", "passed"), result("two", "failed", "\nbroken\nand more")])
    assert (found.outcome, found.why) == ("failed", "two: broken")


def test_one_test_that_did_not_run_leaves_the_level_open() -> None:
    found = LevelResult.of([result("one", "passed"), result("two", "not-run", "no network")])
    assert (found.outcome, found.why) == ("not-run", "two: no network")


@pytest.mark.parametrize("tests", [[], [result("one", "not-applicable", "no compiler")]])
def test_a_level_without_a_test_did_not_run(tests: list[TestResult]) -> None:
    assert LevelResult.of(tests).outcome == "not-run"


@pytest.mark.parametrize(
    "tests",
    [(), (result("one", "failed", "x"),), (result("one", "passed"), result("two", "not-run", "x"))],
)
def test_nobody_can_write_passed_over_it(tests: tuple[TestResult, ...]) -> None:
    with pytest.raises(ValidationError, match="ran and passed"):
        LevelResult(outcome="passed", tests=tests)


def test_what_did_not_pass_says_why() -> None:
    with pytest.raises(ValidationError, match="says why"):
        LevelResult(outcome="not-run")


def test_missing_names_levels_that_failed_did_not_run_or_were_never_tried() -> None:
    found = record({"static": PASSED, "container": LevelResult.not_run("linux/arm64 on linux/amd64")})
    assert found.missing(["static", "container", "serve"]) == [
        "container: not run (linux/arm64 on linux/amd64)",
        "serve: no result",
    ]
    assert found.missing(["static"]) == []


def test_a_failed_level_counts_even_when_nobody_requires_it() -> None:
    broken = LevelResult.of([result("tokens", "failed", "garbage")])
    assert record({"static": PASSED, "gpu": broken}).missing(["static"]) == ["gpu: failed (tokens: garbage)"]


def test_a_level_that_did_not_run_and_is_not_required_is_no_hindrance() -> None:
    assert record({"static": PASSED, "gpu": LevelResult.not_run("no GPU")}).missing(["static"]) == []


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    found = record({"static": PASSED})
    found.write(tmp_path / "smoke.json")
    assert SmokeRecord.read(tmp_path / "smoke.json") == found


def test_levels_of_an_earlier_run_are_kept_with_its_time_and_place() -> None:
    earlier = record({"static": PASSED, "container": LevelResult.not_run("no engine")})
    later = record({"container": PASSED}).model_copy(update={"machine": SmokeMachine(platform="linux/arm64")})
    found = later.with_earlier(earlier)
    assert list(found.levels) == ["static", "container"]
    assert (found.levels["static"].started, found.levels["static"].machine) == (
        earlier.started,
        earlier.machine,
    )
    assert found.levels["container"] == PASSED
    # Another run later, it is still that time and that place.
    again = record({"serve": PASSED}).with_earlier(found)
    assert again.levels["static"] == found.levels["static"]
    assert again.levels["container"].machine == later.machine


def test_a_record_takes_nothing_over_from_another_image() -> None:
    other = record({"static": PASSED}, digest=f"sha256:{'c' * 64}")
    with pytest.raises(ValueError, match="one image"):
        record({"container": PASSED}).with_earlier(other)


def test_a_tampered_record_is_refused(tmp_path: Path) -> None:
    data = json.loads(record({"container": LevelResult.not_run("no engine")}).to_json())
    data["levels"]["container"]["outcome"] = "passed"
    (tmp_path / "smoke.json").write_text(json.dumps(data))
    with pytest.raises(SmokeRecordError, match="cannot be read") as caught:
        SmokeRecord.read(tmp_path / "smoke.json")
    assert "ran and passed" in caught.value.why


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(SmokeRecordError, match="no smoke record"):
        SmokeRecord.read(tmp_path / "none.json")


def test_a_record_without_a_digest_is_none() -> None:
    with pytest.raises(ValidationError):
        record({"static": PASSED}, digest="latest")
