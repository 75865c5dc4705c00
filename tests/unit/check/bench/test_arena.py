"""The profile `arena`: how llama-benchy is run, and how its report is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagefactory.check.bench import arena
from imagefactory.check.bench.endpoint import Endpoint, ServedAs
from imagefactory.check.bench.profiles import load_profiles
from imagefactory.check.bench.tool import ToolError
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

ENDPOINT = Endpoint("http://127.0.0.1:1", "secret")
PROFILE = load_profiles(REPOSITORY).named("arena")


def metric(*values: float) -> dict[str, Any]:
    return {"mean": sum(values) / len(values), "std": 0.0, "values": list(values)}


def run(**changes: Any) -> dict[str, Any]:
    facts = {"concurrency": 2, "context_size": 4096, "prompt_size": 2048, "response_size": 128}
    figures = {
        "pp_throughput": metric(900, 1100),
        "tg_throughput": metric(60, 64),
        "tg_req_throughput": metric(31),
    }
    return {**facts, **figures, "is_context_prefill_phase": False, "e2e_ttft": metric(10, 20, 30), **changes}


def test_a_report_becomes_one_measurement_for_each_run() -> None:
    first, second = arena.read_report({"benchmarks": [run(is_context_prefill_phase=True), run()]})
    assert (first.kind, first.users, first.depth, first.repeat, second.repeat) == ("book", 2, 4096, 1, 2)
    assert (first.tokens_per_second, second.tokens_per_second) == (60, 64)
    assert (first.tokens_per_second_per_user, first.prefill_per_second) == (31, 1000)
    assert first.first_token is not None
    assert first.first_token.p50 == 20
    assert first.first_token.p99 == pytest.approx(29.8)
    assert first.output_tokens / first.seconds == pytest.approx(60)
    with pytest.raises(ToolError, match="no speed at depth 4096"):
        list(arena.read_report({"benchmarks": [run(tg_throughput=None)]}))


def test_depths_that_do_not_fit_are_left_out() -> None:
    assert arena.fitting_depths(ENDPOINT, ServedAs("m", "m", 16_384), PROFILE) == [0, 4096, 8192]
    assert arena.fitting_depths(ENDPOINT, ServedAs("m", "m", 0), PROFILE) == list(PROFILE.depths)
    with raises("bench-incomplete", match="2240 tokens; the server has 256"):
        arena.fitting_depths(ENDPOINT, ServedAs("m", "m", 256), PROFILE)


def test_the_tool_gets_the_profile_of_the_arena(tmp_path: Path) -> None:
    served = ServedAs("name", "org/model", 0)
    words = arena.arguments(
        ENDPOINT, served, PROFILE, depths=[0, 4096], tokenizer="org/model", report=tmp_path / "r"
    )
    line = " ".join(words)
    assert "--pp 2048 --tg 128 --depth 0 4096 --concurrency 1 2 5 10 --runs 3 --enable-prefix-caching" in line
    assert "--base-url http://127.0.0.1:1/v1" in line


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no book')", "ended with code 1: no book"),
        ("pass", "ended with code 0: it wrote nothing"),
        ("import time; time.sleep(60)", "hangs"),
        (
            "import json, sys; print(\"Falling back to 'gpt2'\"); open(json.load(sys.stdin)[-1], 'w')",
            "cannot load the model's tokenizer",
        ),
    ],
)
def test_a_failing_tool_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, reason: str
) -> None:
    monkeypatch.setattr(arena, "_PROGRAM", program)
    with pytest.raises(ToolError, match=reason):
        arena._run(
            ["llama-benchy", "--save-result", str(tmp_path / "r.json")], 0.5 if reason == "hangs" else 30
        )


def test_the_key_is_not_among_the_arguments_of_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    report = tmp_path / "r.json"
    monkeypatch.setattr(
        arena,
        "_PROGRAM",
        "import json, sys; told = json.load(sys.stdin); open(told[-1], 'w').write(json.dumps([sys.orig_argv, told]))",
    )
    arena._run(["llama-benchy", "--api-key", "secret", "--save-result", str(report)], 30)
    seen, told = json.loads(report.read_text())
    assert "secret" not in " ".join(seen)
    assert "secret" in told
