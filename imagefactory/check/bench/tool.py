"""Runs `vllm bench serve` in a container, job by job, and reads its results."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

from imagefactory.check.bench.result import Acceptance, Measurement, Spread
from imagefactory.errors import clean
from imagefactory.oci.format import VENV
from imagefactory.store.digests import parse_json
from imagefactory.store.progress import count

_LOADING: Final = 600  # seconds that the tool may take to import itself
_FIELDS: Final = ("first_token", "per_token", "between_tokens", "whole_request")
_SPREADS: Final = ("ttft", "tpot", "itl", "e2el")  # the fields as the tool names them
_LONGEST: Final = 160  # characters of an error
_LARGEST: Final = 256 * 1024 * 1024  # the longest line in bytes; a result has the answers to all requests
_SHOWN: Final = 3  # errors of a measurement that are kept, the most frequent


class ToolError(Exception):
    """The tool or the server failed; the message says how."""


@dataclass(frozen=True)
class BenchJob:
    """A measurement to make."""

    repeat: int
    kind: str
    users: int
    depth: int
    prompts: tuple[str, ...]
    output: int
    fixed_length: bool
    temperature: float = 0.0
    body: str = ""  # more of each request, as JSON

    def __str__(self) -> str:
        depth = f", {self.depth} tokens deep" if self.depth else ""
        return f"repeat {self.repeat}, {self.kind}, {count(self.users, 'user')}{depth}"

    def document(self, address: str, model: str, tokenizer: str) -> dict[str, Any]:
        """Return the job as run_jobs.py reads it."""
        arguments = [
            *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", address),
            *("--model", model, "--tokenizer", tokenizer, "--seed", "0", "--disable-tqdm"),
            *("--dataset-name", "custom", "--dataset-path", "prompts.jsonl", "--disable-shuffle"),
            *("--skip-chat-template", "--custom-output-len", str(self.output)),
            *("--temperature", f"{self.temperature:g}"),
            *(("--extra-body", self.body) if self.body else ()),
            *("--num-prompts", str(len(self.prompts)), "--max-concurrency", str(self.users)),
            *("--percentile-metrics", ",".join(_SPREADS), "--metric-percentiles", "50,90,99"),
            *("--save-detailed", *(["--ignore-eos"] if self.fixed_length else [])),
        ]
        return {"prompts": self.prompts, "arguments": arguments}


def command_in(container: str) -> list[str]:
    program = Path(__file__).with_name("run_jobs.py").read_text("utf-8")
    return ["docker", "exec", "--interactive", container, f"/{VENV}/bin/python3", "-c", program]


@contextmanager
def running_tool(command: Sequence[str], work: Mapping[str, Any]) -> Iterator[ToolRun]:
    """Start the tool with its work, and end it with the block."""
    # Input and log are files: a full pipe that nobody empties would stop both sides.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as log:
        stdin.write(json.dumps(work).encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own docker
                list(command), stdin=stdin, stdout=subprocess.PIPE, stderr=log
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be run: {error.strerror}") from None
        with process:
            try:
                yield ToolRun(process, log)
            finally:
                process.kill()


@dataclass(frozen=True)
class ToolRun:
    """A running tool, which is killed if its next line takes too long."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def name(self) -> str:
        """Wait until the tool is loaded, and return its name and version."""
        return str(self._next(_LOADING).get("tool", ""))

    def result(self, job: BenchJob, limit: float) -> tuple[Measurement, list[str]]:
        """Wait for the next measurement and the answers behind it."""
        report = self._next(limit)
        if "error" in report:
            raise ToolError(f"the tool failed: {report['error']}")
        try:
            return read_result(job, report["result"])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ToolError(f"the tool's result cannot be read: {type(error).__name__}: {error}") from None

    def _next(self, limit: float) -> dict[str, Any]:
        ends = time.monotonic() + limit
        # Reading a line has no timeout; the death of the tool ends it.
        watchdog = threading.Timer(limit, self.process.kill)
        watchdog.start()
        try:
            while self.process.stdout and (line := self.process.stdout.readline(_LARGEST)):
                with suppress(ValueError):  # a library printed something
                    report = parse_json(line)
                    if isinstance(report, dict) and report.keys() & {"tool", "result", "error"}:
                        return report
        finally:
            watchdog.cancel()
        if time.monotonic() >= ends:
            raise ToolError(f"no result after {limit:.0f} s: the server hangs, or is too slow")
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        raise ToolError(f"the tool ended early: {' | '.join(lines[-3:])[-600:] or 'it wrote nothing'}")


def read_result(job: BenchJob, result: Mapping[str, Any]) -> tuple[Measurement, list[str]]:
    """Turn a result of `vllm bench serve` into a measurement and its answers; refuse one without any answer."""
    lengths, times = result["output_lens"], result["latencies"]
    speeds = [length / time for length, time in zip(lengths, times, strict=True) if length and time]
    failures = (str(error).strip().splitlines()[-1] for error in result["errors"] if error)
    errors = Counter(clean(failure[:_LONGEST]) for failure in failures)
    if not speeds:
        why = "; ".join(f"{count} times {error}" for error, count in errors.items())
        raise ToolError(f"every request failed: {why or 'the answers are empty'}")
    measurement = Measurement(
        repeat=job.repeat,
        kind=job.kind,
        users=job.users,
        depth=job.depth,
        requests=len(job.prompts),
        failed=len(job.prompts) - int(result["completed"]),
        seconds=result["duration"],
        input_tokens=result["total_input_tokens"],
        output_tokens=result["total_output_tokens"],
        tokens_per_second=result["output_throughput"],
        tokens_per_second_per_user=median(speeds),
        acceptance=Acceptance(
            drafts=result["spec_decode_num_drafts"],
            drafted=result["spec_decode_draft_tokens"],
            accepted=result["spec_decode_accepted_tokens"],
        )
        if "spec_decode_num_drafts" in result
        else None,
        errors=dict(errors.most_common(_SHOWN)),
        **{
            field: Spread(**{name: result[f"{name}_{prefix}_ms"] for name in Spread.model_fields})
            for field, prefix in zip(_FIELDS, _SPREADS, strict=True)
        },
    )
    texts = zip(result["generated_texts"], result["errors"], strict=True)
    return measurement, [text for text, error in texts if not error]
