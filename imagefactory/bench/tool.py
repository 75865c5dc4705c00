"""Runs `vllm bench serve` in a container, job by job, and reads its results."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

from imagefactory.bench.profiles import FOLDER
from imagefactory.bench.result import Acceptance, Measurement, Spread, users_text
from imagefactory.oci.format import VENV

_LOADING: Final = 600
"""Seconds that the tool may take to import itself."""
_SPREADS: Final = {
    "first_token": "ttft",
    "per_token": "tpot",
    "between_tokens": "itl",
    "whole_request": "e2el",
}
_LONGEST: Final = 160
_SHOWN: Final = 3


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

    def __str__(self) -> str:
        depth = f", {self.depth} tokens deep" if self.depth else ""
        return f"repeat {self.repeat}, {self.kind}, {users_text(self.users)}{depth}"

    def document(self, number: int, address: str, model: str, tokenizer: str) -> dict[str, Any]:
        """Return the job as benchmarks/run_jobs.py reads it."""
        arguments = [
            *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", address),
            *("--model", model, "--tokenizer", tokenizer, "--seed", "0", "--disable-tqdm"),
            *("--dataset-name", "custom", "--dataset-path", "prompts.jsonl", "--disable-shuffle"),
            *("--skip-chat-template", "--custom-output-len", str(self.output), "--temperature", "0"),
            *("--num-prompts", str(len(self.prompts)), "--max-concurrency", str(self.users)),
            *("--percentile-metrics", ",".join(_SPREADS.values()), "--metric-percentiles", "50,90,99"),
            *("--save-detailed", *(["--ignore-eos"] if self.fixed_length else [])),
        ]
        return {"id": number, "prompts": self.prompts, "arguments": arguments}


def command_in(container: str, root: Path) -> list[str]:
    """Return the command that runs the jobs in a running container."""
    program = (root / FOLDER / "run_jobs.py").read_text("utf-8")
    return ["docker", "exec", "--interactive", container, f"/{VENV}/bin/python3", "-c", program]


@dataclass(frozen=True)
class JobResult:
    """A measurement, and the answers behind it."""

    measurement: Measurement
    answers: tuple[str, ...]


@contextmanager
def running_tool(command: Sequence[str], work: Mapping[str, Any]) -> Iterator[ToolRun]:
    """Start the tool with its work, and end it with the block."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(  # noqa: S603 - the user's own docker
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        except OSError as error:
            raise ToolError(f"{command[0]} cannot be run: {error.strerror}") from None
        run = ToolRun(process, log)
        try:
            run.send(json.dumps(work).encode())
            yield run
        finally:
            process.kill()
            process.wait()
            run.close()


class ToolRun:
    """A running tool."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, work: bytes) -> None:
        """Hand over the work."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(work)
            self._process.stdin.close()
        except BrokenPipeError:
            raise ToolError(self._last_words()) from None

    def name(self) -> str:
        """Wait until the tool is loaded, and return its name and version."""
        return str(self._next(_LOADING).get("tool", ""))

    def result(self, job: BenchJob, limit: float) -> JobResult:
        """Wait for the next result."""
        found = self._next(limit)
        if "error" in found:
            raise ToolError(f"the tool failed: {found['error']}")
        try:
            return read_result(job, found["result"])
        except (KeyError, TypeError, ValueError) as error:
            raise ToolError(f"the tool's result cannot be read: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        """End the thread that reads."""
        self._reader.join(timeout=10)
        for pipe in (self._process.stdout, self._process.stdin):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def _next(self, limit: float) -> dict[str, Any]:
        ends = time.monotonic() + limit
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                raise ToolError(f"no result after {limit:.0f} s: the server hangs, or is too slow") from None
            if not line:
                raise ToolError(f"the tool ended early: {self._last_words()}")
            try:
                found = json.loads(line)
            except ValueError:
                continue  # a library printed something
            if isinstance(found, dict) and found.keys() & {"tool", "job"}:
                return found

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return " | ".join(lines[-3:])[-600:] or "it wrote nothing"


def read_result(job: BenchJob, found: Mapping[str, Any]) -> JobResult:
    """Turn a result of `vllm bench serve` into a measurement; raise ToolError if no request succeeded."""
    lengths, times = found["output_lens"], found["latencies"]
    speeds = [length / time for length, time in zip(lengths, times, strict=True) if length and time]
    errors = _counted(found["errors"])
    failed = len(job.prompts) - int(found["completed"])
    if not speeds:
        why = "; ".join(f"{count} times {error}" for error, count in errors.items())
        raise ToolError(f"every request failed: {why or 'the answers are empty'}")
    measurement = Measurement(
        repeat=job.repeat,
        kind=job.kind,
        users=job.users,
        depth=job.depth,
        requests=len(job.prompts),
        failed=failed,
        seconds=found["duration"],
        input_tokens=found["total_input_tokens"],
        output_tokens=found["total_output_tokens"],
        tokens_per_second=found["output_throughput"],
        tokens_per_second_per_user=median(speeds),
        acceptance=_acceptance(found),
        errors=errors,
        **{name: _spread(found, prefix) for name, prefix in _SPREADS.items()},
    )
    answers = [
        text for text, error in zip(found["generated_texts"], found["errors"], strict=True) if not error
    ]
    return JobResult(measurement, tuple(answers))


def _counted(errors: Sequence[str]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for error in filter(None, errors):
        line = str(error).strip().splitlines()[-1][:_LONGEST]
        counted[line] = counted.get(line, 0) + 1
    return dict(list(counted.items())[:_SHOWN])


def _spread(found: Mapping[str, Any], prefix: str) -> Spread:
    names = {"mean": f"mean_{prefix}_ms", **{f"p{share}": f"p{share}_{prefix}_ms" for share in (50, 90, 99)}}
    return Spread(**{name: found[key] for name, key in names.items()})


def _acceptance(found: Mapping[str, Any]) -> Acceptance | None:
    if "spec_decode_num_drafts" not in found:
        return None
    return Acceptance(
        drafts=found["spec_decode_num_drafts"],
        drafted=found["spec_decode_draft_tokens"],
        accepted=found["spec_decode_accepted_tokens"],
    )
