"""The tool: its results, and every way in which it or the server fails."""

import json
import sys
import textwrap
from typing import Any

import pytest

from imagefactory.check.bench.tool import BenchJob, ToolError, read_result, running_tool
from tests.fixtures.benchmarks import printed

JOB = BenchJob(1, "code", 1, 0, ("a", "b"), 64, fixed_length=True)
UNEVEN = {"output_lens": [1], "latencies": [1], "errors": [" "]}


def tool(body: str) -> list[str]:
    """Return a program in the tool's place."""
    head = "import json, sys, time\nwork = json.load(sys.stdin)\nprint('loading', flush=True)\n"
    return [sys.executable, "-c", head + textwrap.dedent(body)]


def run(body: str, limit: float = 30) -> Any:
    with running_tool(tool(body), {"key": "", "jobs": [JOB.document("http://x", "m", "m")]}) as running:
        return running.result(JOB, limit)


def test_results_arrive_among_other_output() -> None:
    found = run(f"print(json.dumps({{'result': {printed()}}}))")[0]
    assert (found.tokens_per_second, found.tokens_per_second_per_user, found.failed) == (64.0, 64.0, 0)
    assert found.first_token is not None
    assert found.acceptance is None


def test_the_work_reaches_the_tool_and_the_key_is_not_among_its_arguments() -> None:
    assert "secret" not in json.dumps(JOB.document("http://x", "m", "m"))
    body = "print(json.dumps({'error': ' '.join(work['jobs'][0]['arguments'])}))"
    with pytest.raises(ToolError, match=r"--max-concurrency 1 .*--ignore-eos"):
        run(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("time.sleep(60)", "hangs"),
        ("sys.exit('killed')", "ended early: killed"),
        ("print(json.dumps({'error': 'ValueError: no'}))", "ValueError: no"),
        ("print(json.dumps({'result': {}}))", "cannot be read: KeyError"),
        ("print('[' * 100_000); print(json.dumps({'result': []}))", "cannot be read: TypeError"),
        (f"print(json.dumps({{'result': {UNEVEN}}}))", "cannot be read: IndexError"),
        ("print('nonsense')", "ended early"),
    ],
)
def test_failures_are_told_apart(body: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        run(body, limit=0.5 if reason == "hangs" else 30)


def test_a_missing_docker_is_named() -> None:
    with pytest.raises(ToolError, match="no-such-docker cannot be run"), running_tool(["no-such-docker"], {}):
        pass


def test_failed_requests_are_counted_with_their_reason() -> None:
    found = read_result(JOB, printed(2, failed=1))[0]
    assert (found.requests, found.failed, found.errors) == (2, 1, {"Bad Gateway": 1})
    with pytest.raises(ToolError, match="every request failed: 2 times Bad Gateway"):
        read_result(JOB, printed(2, failed=2))


def test_accepted_drafts_are_recorded() -> None:
    drafts = {"spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 40, "spec_decode_accepted_tokens": 20}
    found = read_result(JOB, printed() | drafts)[0].acceptance
    assert found is not None
    assert (found.rate, found.length) == (0.5, 3.0)
