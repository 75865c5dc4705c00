"""Runs llama-benchy, the tool behind Spark Arena, against a server, and reads its report.

It takes its text from a book that it downloads once, and the model's tokenizer from the hub.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from imagefactory.assemble.layers.own_layers import tiny_model
from imagefactory.check.bench.endpoint import Endpoint, ServedAs, check_repeatable
from imagefactory.check.bench.measuring import Course, GrowingResult, deeper, does_not_fit
from imagefactory.check.bench.profiles import Profile
from imagefactory.check.bench.result import Measurement, Spread
from imagefactory.check.bench.tool import ToolError, last_lines, too_slow
from imagefactory.store.progress import Say

PACKAGES: Final = "arena"
"""The locked set that has the tool."""
KIND: Final = "book"
_MARGIN: Final = 64
_OTHER_TOKENIZER: Final = "Falling back to 'gpt2'"
"""What the tool says before it goes on with prompts of wrong lengths."""
# The key would be visible among the arguments of a process, so they come by standard input.
_PROGRAM: Final = (
    "import json, sys; sys.argv = json.load(sys.stdin); from llama_benchy.__main__ import main; main()"
)


def measure_arena(record: GrowingResult, endpoint: Endpoint, course: Course, say: Say) -> None:
    """Run the tool once for the whole profile; it warms up itself."""
    profile, served, bound = course.profile, endpoint.models(), record.result.bound
    depths = fitting_depths(endpoint, served, profile)
    record.add(left_out=deeper(profile, depths, served), sanity=(check_repeatable(endpoint, served.name),))
    with tempfile.TemporaryDirectory() as folder, record.watching(endpoint.container):
        report = Path(folder, "report.json")
        # SGLang gives its served name as the root, and a folder of the container is not here.
        tokenizer = bound.model if bound.target else served.root
        skipped = []
        if bound.generated:  # no hub has its tokenizer, and it fails the question that the tool asks
            tokenizer, skipped = folder, ["--skip-coherence"]
            for name, data in tiny_model().items():
                Path(folder, name).write_bytes(data)
        words = arguments(endpoint, served, profile, depths=depths, tokenizer=tokenizer, report=report)
        _run([*words, *skipped], course.limit * len(depths) * len(profile.users))
        found = json.loads(report.read_text("utf-8"))
        measurements = tuple(read_report(found))
        record.add(tools={"llama-benchy": str(found["version"])}, measurements=measurements)
    say(f"llama-benchy: {len(measurements)} measurements")


def fitting_depths(endpoint: Endpoint, served: ServedAs, profile: Profile) -> list[int]:
    """Return the depths that the server's context has room for."""
    needed = profile.input + profile.output + _MARGIN
    depths = [depth for depth in profile.depths if not served.context or depth + needed <= served.context]
    if not depths:
        raise does_not_fit(
            endpoint, f"It needs a context of {needed} tokens; the server has {served.context}."
        )
    return depths


def arguments(
    endpoint: Endpoint,
    served: ServedAs,
    profile: Profile,
    *,
    depths: Sequence[int],
    tokenizer: str,
    report: Path,
) -> list[str]:
    """Return the command line of the tool."""
    return [
        *("llama-benchy", "--base-url", f"{endpoint.address}/v1", "--api-key", endpoint.key or "EMPTY"),
        *("--model", served.root, "--served-model-name", served.name, "--tokenizer", tokenizer),
        *("--pp", str(profile.input), "--tg", str(profile.output), "--depth", *map(str, depths)),
        *("--concurrency", *map(str, profile.users), "--runs", str(profile.repeats)),
        *("--enable-prefix-caching", "--exit-on-first-fail", "--format", "json"),
        *("--save-result", str(report)),
    ]


def _run(words: Sequence[str], limit: float) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [sys.executable, "-c", _PROGRAM],
            input=json.dumps(list(words)),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(too_slow(limit)) from None
    if done.returncode or not Path(words[words.index("--save-result") + 1]).exists():
        last = last_lines(done.stdout + done.stderr)
        raise ToolError(f"llama-benchy ended with code {done.returncode}: {last}")
    if _OTHER_TOKENIZER in done.stdout:
        raise ToolError(
            "llama-benchy cannot load the model's tokenizer: its prompts would be of wrong lengths"
        )


def read_report(report: Mapping[str, Any]) -> Iterator[Measurement]:
    """Turn the tool's report into measurements, one for each run; the filling of the cache is not one."""
    for run in report["benchmarks"]:
        speeds = (run.get("tg_throughput") or {}).get("values", ())
        if run["is_context_prefill_phase"]:
            continue
        if not speeds:
            depth = run["context_size"]
            raise ToolError(
                f"llama-benchy has no speed at depth {depth}: requests failed, or answered one token"
            )
        users, tokens = run["concurrency"], run["response_size"]
        per_user = (run.get("tg_req_throughput") or run["tg_throughput"])["mean"]
        for repeat, speed in enumerate(speeds, 1):
            yield Measurement(
                repeat=repeat,
                kind=KIND,
                users=users,
                depth=run["context_size"],
                requests=users,
                seconds=tokens * users / speed,
                input_tokens=(run["prompt_size"] + run["context_size"]) * users,
                output_tokens=tokens * users,
                tokens_per_second=speed,
                tokens_per_second_per_user=per_user,
                prefill_per_second=(run.get("pp_throughput") or {}).get("mean"),
                first_token=Spread.of((run.get("e2e_ttft") or {}).get("values", ())),
            )
