"""Smoke records: a level that did not run never passes, and a record is about one image."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from imagefactory.check.smoke.record import (
    Level,
    LevelResult,
    SmokeMachine,
    SmokeRecord,
    TestOutcome,
    TestResult,
)
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.failures import raises

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
    tests = [result("one", "passed"), result("two", "not-applicable", "no GPU")]
    assert LevelResult.of(tests).outcome == "passed"


@pytest.mark.parametrize(
    ("tests", "outcome", "why"),
    [
        ([result("two", "failed", "\nbroken\nand more")], "failed", "two: broken"),
        ([result("two", "not-run", "no network")], "not-run", "two: no network"),
        ([result("two", "not-run", "x"), result("three", "failed", "broken")], "failed", "three: broken"),
    ],
)
def test_a_test_that_did_not_pass_determines_the_level(
    tests: list[TestResult], outcome: TestOutcome, why: str
) -> None:
    found = LevelResult.of([result("one", "passed"), *tests])
    assert (found.outcome, found.why) == (outcome, why)


@pytest.mark.parametrize("tests", [[], [result("one", "not-applicable", "no compiler")]])
def test_a_level_without_a_test_did_not_run(tests: list[TestResult]) -> None:
    assert LevelResult.of(tests).outcome == "not-run"


@pytest.mark.parametrize(
    "tests",
    [(), (result("one", "failed", "x"),), (result("one", "passed"), result("two", "not-run", "x"))],
)
def test_a_level_cannot_claim_to_have_passed_against_its_tests(tests: tuple[TestResult, ...]) -> None:
    with pytest.raises(ValidationError, match="ran and passed"):
        LevelResult(outcome="passed", tests=tests)


def test_a_level_that_did_not_pass_needs_a_reason() -> None:
    with pytest.raises(ValidationError, match="needs a reason"):
        LevelResult(outcome="not-run")


def test_required_levels_that_did_not_run_are_missing() -> None:
    found = record({"static": PASSED, "container": LevelResult.not_run("linux/arm64 on linux/amd64")})
    assert found.missing(["static", "container", "serve"]) == [
        "container: not run (linux/arm64 on linux/amd64)",
        "serve: no result",
    ]
    assert found.missing(["static"]) == []


def test_an_optional_level_is_missing_only_if_it_failed() -> None:
    broken = LevelResult.of([result("tokens", "failed", "garbage")])
    assert record({"static": PASSED, "gpu": broken}).missing(["static"]) == ["gpu: failed (tokens: garbage)"]
    assert record({"static": PASSED, "gpu": LevelResult.not_run("no GPU")}).missing(["static"]) == []


def test_a_record_can_be_written_and_read(tmp_path: Path) -> None:
    found = record({"static": PASSED})
    found.write(tmp_path / "smoke.json")
    assert SmokeRecord.read(tmp_path / "smoke.json") == found


def test_levels_of_an_earlier_run_keep_their_time_and_machine() -> None:
    earlier = record({"static": PASSED, "container": LevelResult.not_run("no engine")})
    later = record({"container": PASSED}).model_copy(update={"machine": SmokeMachine(platform="linux/arm64")})
    found = later.with_earlier(earlier)
    assert list(found.levels) == ["static", "container"]
    static = found.levels["static"]
    assert (static.started, static.machine) == (earlier.started, earlier.machine)
    assert found.levels["container"] == PASSED
    again = record({"serve": PASSED}).with_earlier(found)
    assert again.levels["static"] == static
    assert again.levels["container"].machine == later.machine


def test_records_of_different_images_cannot_be_merged() -> None:
    other = record({"static": PASSED}, digest=f"sha256:{'c' * 64}")
    with pytest.raises(ValueError, match="different images"):
        record({"container": PASSED}).with_earlier(other)


def test_a_tampered_record_is_refused(tmp_path: Path) -> None:
    data = json.loads(record({"container": LevelResult.not_run("no engine")}).to_json())
    data["levels"]["container"]["outcome"] = "passed"
    (tmp_path / "smoke.json").write_text(json.dumps(data))
    with raises("bad-smoke-record", match="cannot be read") as caught:
        SmokeRecord.read(tmp_path / "smoke.json")
    assert "ran and passed" in caught.value.why


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    with raises("bad-smoke-record", match="no smoke record"):
        SmokeRecord.read(tmp_path / "none.json")


def test_a_record_needs_a_digest() -> None:
    with pytest.raises(ValidationError):
        record({"static": PASSED}, digest="latest")
