"""Smoke records: a level that did not run never passes, and a record is about one image."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from imagefactory.check.smoke.containers import ContainerError, RunningServer
from imagefactory.check.smoke.record import (
    LEVELS,
    Level,
    LevelResult,
    SmokeMachine,
    SmokeRecord,
    TestOutcome,
    TestResult,
    levels_named,
    levels_of,
    reason_in,
    required_levels,
)
from imagefactory.project.matrix import Matrix
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


@pytest.mark.parametrize(
    ("tests", "outcome", "why"),
    [
        ([result("one", "passed"), result("two", "not-applicable", "no GPU")], "passed", ""),
        ([result("one", "failed", "broken\nassert 1 == 2\n + where")], "failed", "one: broken"),
        ([result("one", "failed", "assert 1 == 2\n + where")], "failed", "one: assert 1 == 2"),
        ([result("two", "failed", "it ended:\n  in a.py\nNameError: x\n")], "failed", "two: NameError: x"),
        ([result(name, "failed", "x") for name in ("one", "two", "three")], "failed", "one: x (and 2 more)"),
        ([result("one", "passed"), result("two", "not-run", "no network")], "not-run", "two: no network"),
        ([result("two", "not-run", "x"), result("three", "failed", "broken")], "failed", "three: broken"),
        ([], "not-run", "it has no test for this image"),
        ([result("one", "not-applicable", "no compiler")], "not-run", "it has no test for this image"),
    ],
)
def test_a_level_passes_when_every_test_ran_and_passed(tests: list[TestResult], outcome: TestOutcome, why: str) -> None:
    found = LevelResult.of(tests)
    assert (found.outcome, found.why) == (outcome, why)


@pytest.mark.parametrize(
    "tests", [(), (result("one", "failed", "x"),), (result("one", "passed"), result("two", "not-run", "x"))]
)
def test_a_level_cannot_claim_to_have_passed_against_its_tests_or_not_to_without_a_reason(
    tests: tuple[TestResult, ...],
) -> None:
    with pytest.raises(ValidationError, match="ran and passed"):
        LevelResult(outcome="passed", tests=tests)
    with pytest.raises(ValidationError, match="needs a reason"):
        LevelResult(outcome="not-run")


def test_required_levels_that_did_not_run_are_missing() -> None:
    found = record({"static": PASSED, "container": LevelResult.not_run("linux/arm64 on linux/amd64")})
    hindered = "container: not run (linux/arm64 on linux/amd64)"
    assert found.missing(["static", "container", "serve"]) == [hindered, "serve: no result"]
    assert found.missing(["static"]) == []


def test_an_optional_level_is_missing_only_if_it_failed() -> None:
    broken = LevelResult.of([result("tokens", "failed", "garbage")])
    assert record({"static": PASSED, "gpu": broken}).missing(["static"]) == ["gpu: failed (tokens: garbage)"]
    assert record({"static": PASSED, "gpu": LevelResult.not_run("no GPU")}).missing(["static"]) == []


def test_a_level_passed_with_generated_weights_says_so_and_is_not_enough_where_it_is_required() -> None:
    settings = {"MODEL_PATH": "/models/generated-small", "LOAD_FORMAT": "dummy"}
    passed = LevelResult.of([result("one", "passed")], settings=settings)
    assert (passed.outcome, passed.weights, passed.settings) == ("passed", "generated", settings)
    assert LevelResult.of([result("one", "passed")], settings={"MODEL_PATH": "/models/real"}).weights == ""
    found = record({"static": PASSED, "gpu": passed})
    assert found.missing(["static"]) == []
    assert found.missing(["static", "gpu"]) == ["gpu: passed with generated weights only"]


def test_a_record_can_be_written_and_read_unless_it_was_tampered_with(tmp_path: Path) -> None:
    found, path = record({"container": LevelResult.not_run("no engine")}), tmp_path / "smoke.json"
    with raises("bad-smoke-record", match="No such file"):
        SmokeRecord.read(path)
    found.write(path)
    assert SmokeRecord.read(path) == found
    path.write_text(path.read_text().replace("not-run", "passed"))
    with raises("bad-smoke-record", match="cannot be read") as caught:
        SmokeRecord.read(path)
    assert "ran and passed" in caught.value.why


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


def test_a_slow_start_is_the_reason_whatever_the_log_ends_with() -> None:
    container: Any = SimpleNamespace(log="starting\nWarning: numa_set_membind failed\n")
    with pytest.raises(ContainerError) as failure:
        RunningServer(container, "http://127.0.0.1:1", "key").wait_until_healthy(0)
    assert reason_in(str(failure.value)) == "the server was not ready after 0 s"


def test_the_error_is_the_reason_though_python_warns_where_it_ends() -> None:
    leaked = "resource_tracker.py:254: UserWarning: There appear to be 1 leaked objects\n  warnings.warn('There %d '"
    error = "RuntimeError: broken on purpose"
    assert reason_in(f"Traceback:\n{error}\n{leaked}\nassert False") == error
    assert reason_in("DeprecationWarning: all there is") == "DeprecationWarning: all there is"


def test_the_reason_is_the_error_of_the_engine_not_of_what_waits_for_it() -> None:
    engine = "ValueError: No available memory for the cache blocks."
    waits = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    traced = "Traceback (most recent call last):"
    lines = [
        traced,
        f"(EngineCore pid=56) {engine}",
        *["…"] * 20,
        traced,
        waits,
        "[serve] the server ended by itself: code 1",
    ]
    container: Any = SimpleNamespace(log="\n".join(lines), is_running=False, exit_code=1)
    with pytest.raises(ContainerError) as failure:
        RunningServer(container, "http://127.0.0.1:1", "key").wait_until_healthy(9)
    assert reason_in(str(failure.value)) == engine


def test_the_reason_of_docker_is_not_where_its_help_is() -> None:
    refused = "docker: Error response from daemon: no space left on device."
    assert reason_in(f"{refused}\nSee 'docker run --help'.\nassert 125 == 0") == refused


def test_a_cpu_image_has_no_gpu_level_and_no_tag_requires_it(serving_matrix: Matrix) -> None:
    assert levels_of(serving_matrix, "cpu") == ("static", "container", "serve")
    assert levels_of(serving_matrix, "gb10") == LEVELS
    for arch in ("cpu", "gb10", "rtx5090"):
        assert required_levels(serving_matrix, arch) == ("static", "container", "serve")


def test_requested_levels_are_sorted_and_an_unknown_one_is_refused_with_the_nearest_name(
    serving_matrix: Matrix,
) -> None:
    assert levels_named(["serve,static", "gpu"], serving_matrix, "cpu") == ("static", "serve", "gpu")
    assert levels_named([], serving_matrix, "cpu") == levels_of(serving_matrix, "cpu")
    with raises("unknown-name", match="Unknown level 'statik'") as caught:
        levels_named(["statik"], serving_matrix, "cpu")
    assert caught.value.fix == "Did you mean static?"
