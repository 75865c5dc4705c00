"""Measures a server by a profile, with the use of its GPUs, and keeps what was measured, whatever happens."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Final

from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.answers.behaviour import Behaviour
from imagefactory.check.bench.datasets import SUFFIX, read_dataset
from imagefactory.check.bench.endpoint import Endpoint, ServedAs, check_answers, check_repeatable
from imagefactory.check.bench.profiles import MIXED, Profile, Prompts, load_profiles, load_prompts, salted
from imagefactory.check.bench.result import BenchMachine, BenchResult, GpuUse
from imagefactory.check.bench.tool import BenchJob, ToolError, running_tool
from imagefactory.check.smoke.containers import Container, ContainerError
from imagefactory.errors import CheckError
from imagefactory.project.project import Project
from imagefactory.store.progress import Say

_MARGIN: Final = 16  # tokens by which prompts may be longer than the one that was counted
_SHORTEST: Final = 16  # tokens of an answer
_FIELDS: Final = ("index", "name", "driver_version", "memory.used", "power.draw", "clocks.sm")
_QUERY: Final = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", "--loop=1")
# Of control groups, version 2 and version 1.
_MEMORY_PEAKS: Final = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")
_UNDER_WAY: Final = "it is still running, its process was killed, or its disk was full"


def gpus_in(lines: Iterable[str]) -> tuple[GpuUse, ...]:
    """Summarise what nvidia-smi reported, by GPU."""
    reports: dict[str, list[list[str]]] = {}
    for line in lines:
        row = [part.strip() for part in line.split(",")]
        if len(row) == len(_FIELDS) and row[0].isdecimal():
            reports.setdefault(row[0], []).append(row)
    return tuple(_summary(rows) for _, rows in sorted(reports.items(), key=lambda report: int(report[0])))


def _summary(rows: list[list[str]]) -> GpuUse:
    _, (name, *_), (driver, *_), *columns = zip(*rows, strict=True)
    # nvidia-smi writes [N/A] for what a GPU does not report.
    numbers = ([float(text) for text in column if re.fullmatch(r"\d+(\.\d+)?", text)] for column in columns)
    memory, power, clock = (round(fmean(values), 1) if values else None for values in numbers)
    return GpuUse(name=name, driver=driver, samples=len(rows), memory_mb=memory, power_w=power, clock_mhz=clock)


class GrowingResult:
    """A result that is written to its file whenever it grows."""

    def __init__(self, path: Path, result: BenchResult) -> None:
        self.path = path
        self.result = result.model_copy(update={"complete": False, "why": _UNDER_WAY})
        self.result.write(path)

    def add(self, **fields: object) -> None:
        self.result = BenchResult.model_validate({**dict(self.result), **fields})
        self.result.write(self.path)

    @contextmanager
    def watching(self, container: Container | None) -> Iterator[None]:
        """Add what the machine did during the block, if a container and its nvidia-smi can say."""
        if container is None:
            yield
            return
        lines: list[str] = []
        with subprocess.Popen(  # noqa: S603 - the user's own docker
            ["docker", "exec", container.name, "nvidia-smi", *_QUERY],  # noqa: S607
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ) as process:
            reader = Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
            reader.start()
            try:
                yield
            finally:
                process.kill()
                reader.join(timeout=10)
        machine = self.result.machine.model_copy(update={"gpus": gpus_in(lines)})
        peaks = container.execute("cat", *_MEMORY_PEAKS, timeout=30).stdout.split()
        self.add(machine=machine, peak_memory=int(peaks[0]) if peaks and peaks[0].isdecimal() else 0)


@contextmanager
def recording(path: Path, result: BenchResult) -> Iterator[GrowingResult]:
    """Record a benchmark; if the block fails, its result stays, marked as incomplete."""
    record = GrowingResult(path, result)
    try:
        yield record
    except (ToolError, ContainerError) as error:
        record.add(why=str(error))
        raise CheckError(
            "bench-incomplete",
            "The benchmark ended early.",
            where=path,
            why=str(error),
            fix=f"The file keeps what was measured ({len(record.result.measurements)}), marked as incomplete. "
            "Read the server's log, and measure again.",
        ) from None
    except CheckError as error:
        record.add(why=f"{error.what} {error.why}")
        raise
    except (KeyboardInterrupt, SystemExit):
        record.add(why="it was interrupted")
        raise
    record.add(complete=True, why="")


@dataclass(frozen=True)
class Asking:
    """What requests have beside a prompt of ours, at temperature 0."""

    dataset: str = ""  # a name, or a file
    temperature: float = 0.0
    thinking: bool | None = None  # None: as the model's template has it
    tools: bool = False  # whether the tools of the scenarios are offered, which chat templates put before the prompt

    def body(self, root: Path) -> str:
        """Return what each request has more, as JSON."""
        offered = Behaviour.of(root).tools if self.tools else {}
        # No answer is to be a call: whoever measures wants text, also from a server without a parser.
        tools = {"tools": [tool.offered(name) for name, tool in offered.items()], "tool_choice": "none"}
        thinking = {"chat_template_kwargs": {"enable_thinking": self.thinking}}
        body = (tools if offered else {}) | (thinking if self.thinking is not None else {})
        return json.dumps(body) if body else ""

    def words(self) -> dict[str, str]:
        """Return it for a result; empty for plain requests."""
        words = {
            "dataset": Path(self.dataset).name.removesuffix(SUFFIX),
            "temperature": f"{self.temperature:g}" if self.temperature else "",
            "thinking": "" if self.thinking is None else "on" if self.thinking else "off",
            "tools": "offered" if self.tools else "",
        }
        return {name: word for name, word in words.items() if word}


@dataclass(frozen=True)
class Bench:
    """A benchmark to run."""

    project: Project
    profile_name: str
    settings: Mapping[str, str]
    users: tuple[int, ...] = ()
    repeats: int | None = None
    limit: float = 1800  # seconds that one measurement may take
    asking: Asking = Asking()

    @cached_property
    def profile(self) -> Profile:
        """The chosen profile, with the numbers of this run."""
        profile = load_profiles(self.project.root).named(self.profile_name)
        changes = {"users": self.users or profile.users, "repeats": self.repeats or profile.repeats}
        if self.asking.dataset and profile.per_kind:
            # A data set is a single kind: as many of its prompts as the profile has of all kinds.
            changes["requests"] = profile.requests * len(profile.kinds)
        return profile.model_copy(update=changes)

    @cached_property
    def prompts(self) -> Prompts:
        """The prompts of the profile's kinds, or of the data set."""
        root = self.project.root
        if self.asking.dataset:
            name, texts = read_dataset(root, self.project.store.root / "datasets", self.asking.dataset)
            return Prompts({name: texts})
        every = load_prompts(root)
        return Prompts({kind: every.of(kind) for kind in self.profile.kinds})

    def jobs(self, fitted: Fit) -> list[BenchJob]:
        """List the measurements in their order: a warm-up, all of the first repeat, then all of the second."""
        profile, prompts = self.profile, self.prompts
        most = max(profile.users)
        how = (fitted.output, profile.fixed_length, self.asking.temperature, self.asking.body(self.project.root))
        kinds = tuple(prompts.root) if profile.per_kind or self.asking.dataset else (MIXED,)
        texts = salted(prompts.of(MIXED), max(most, len(prompts.root)), 0)
        filler = " ".join(prompts.of(MIXED)) + " "

        def deep(text: str, depth: int) -> str:
            needed = int(depth / fitted.tokens_per_character)
            # The mark of the text comes first, so that no two prompts share a prefix.
            return f"{text}\n\n{(filler * (needed // len(filler) + 1))[:needed]}" if depth else text

        return [BenchJob(0, MIXED, most, 0, tuple(texts), *how)] + [
            BenchJob(repeat, kind, users, depth, tuple(deep(text, depth) for text in texts), *how)
            for repeat in range(1, profile.repeats + 1)
            for depth in fitted.depths
            for users in profile.users
            for kind in kinds
            for number in [profile.requests * (1 if profile.per_kind else users)]
            for texts in [salted(prompts.of(kind), number, repeat, plain=bool(self.asking.dataset))]
        ]


@dataclass(frozen=True)
class Fit:
    """How a profile fits the context of a server."""

    output: int
    depths: tuple[int, ...]
    tokens_per_character: float
    left_out: tuple[str, ...]


def fit(endpoint: Endpoint, served: ServedAs, profile: Profile, prompts: Prompts, body: str = "") -> Fit:
    """Shorten answers and leave out depths that the server's context is too short for; `body` may have tools."""
    longest = max(prompts.of(MIXED), key=len)
    marked = f"(10-1000) {longest}"  # as long as `salted` writes
    counted = endpoint.count_tokens(served.name, marked)
    asked = endpoint.count_tokens(served.name, marked, body) if body else counted
    # Without a count: three tokens in ten characters; to be safe, a prompt takes one for each.
    ratio = counted / len(longest) if counted else 0.3
    room = served.context - (asked or len(marked) + len(body)) - _MARGIN if served.context else profile.output
    output = min(profile.output, room)
    depths = tuple(depth for depth in profile.depths if depth == 0 or depth <= room - output)
    if output < _SHORTEST or not depths:
        lack = f"leaves {max(room, 0)} for an answer" if output < _SHORTEST else "is shorter than every depth"
        raise CheckError(
            "bench-incomplete",
            "The profile does not fit the server.",
            where=endpoint.public_address,
            why=f"Its context of {served.context} tokens {lack}.",
            fix="Serve with a larger MAX_MODEL_LEN, or choose another profile.",
        )
    deeper = [depth for depth in profile.depths if depth not in depths]
    left_out = [f"depth {depth}: the context has {served.context} tokens" for depth in deeper]
    if output < profile.output:
        left_out.append(f"answers of {profile.output} tokens: {output} fit the context of {served.context}")
    return Fit(output, depths, ratio, tuple(left_out))


def measure(bench: Bench, record: GrowingResult, endpoint: Endpoint, command: Sequence[str], say: Say) -> None:
    """Warm up and measure; every result is on disk before the next measurement begins."""
    served = endpoint.models()
    fitted = fit(endpoint, served, bench.profile, bench.prompts, bench.asking.body(bench.project.root))
    repeatable = check_repeatable(endpoint, served.name)
    record.add(output=fitted.output, left_out=fitted.left_out, sanity=(repeatable,))
    jobs = bench.jobs(fitted)
    documents = [job.document(endpoint.address, served.name, served.root) for job in jobs]
    answers: list[str] = []
    with (
        record.watching(endpoint.container),
        running_tool(command, {"key": endpoint.key, "jobs": documents}) as tool,
    ):
        record.add(tools={"vllm bench serve": tool.name().rpartition(" ")[2]})
        for job in jobs:
            try:
                measurement, texts = tool.result(job, bench.limit)
            except ToolError as error:
                raise ToolError(f"{job}: {error}{endpoint.death()}") from None
            if job.repeat:
                answers += texts
                record.add(measurements=(*record.result.measurements, measurement))
                say(f"{job}: {measurement.tokens_per_second:.1f} tokens/s")
    judged = check_answers(answers, generated=record.result.bound.generated)
    record.add(sanity=(repeatable, *judged))


def refuse_wrong_answers(result: BenchResult, path: Path) -> None:
    wrong = [f"{check.name}: {check.detail}" for check in result.sanity if check.outcome == "failed"]
    if wrong:
        raise CheckError(
            "wrong-answers",
            "The server answers, but not as it should; its speed means nothing.",
            where=path,
            why="; ".join(wrong) + ".",
            fix="Ask the server yourself, and check its model, kernels and settings.",
        )


def steps_of(log: str) -> dict[str, float]:
    """Return where the time of a start went, from the last line about it in the server's log."""
    line = log.rpartition("start in seconds: ")[2].partition("\n")[0] if "start in seconds: " in log else ""
    return {name: float(seconds) for name, seconds in re.findall(r"(?<![a-z-])([a-z-]+) (\d+(?:\.\d+)?)", line)}


def kernels_of(log: str) -> tuple[str, dict[str, float]]:
    """Return where FlashInfer's modules were at a start, and what compiling took, from the server's log."""
    places = re.findall(r"\[serve\] kernels of FlashInfer: (.+)", log)
    compiled = re.findall(r"\[serve\] compiled (\w+) in (\d+(?:\.\d+)?) s", log)
    return places[-1] if places else "", {name: float(seconds) for name, seconds in compiled}


def this_machine(container: Container | None = None) -> BenchMachine:
    """Describe this machine, which is the Docker daemon's too, with the GPUs that a container sees."""
    engine = daemon.ask()
    described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    # x86 names the model; arm64 has only the number of the part.
    cpu = re.search(r"^(model name|CPU part)\s*:\s*(.+)$", described, re.MULTILINE)
    return BenchMachine(
        platform=f"linux/{engine.machine}",
        kernel=platform.release(),
        cpu=f"{cpu[1]} {cpu[2]}" if cpu else "",
        cpus=os.cpu_count() or 0,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        engine=f"Docker {engine.version}",
        load=os.getloadavg()[0],
        # Once, without --loop.
        gpus=gpus_in(container.execute("nvidia-smi", *_QUERY[:2], timeout=60).stdout.splitlines()) if container else (),
    )
