"""The result of a benchmark: what was measured, and everything that it is bound to.

A result is written after every measurement. Until its end it is marked as incomplete, and so is what an interrupt or a
failure leaves behind.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from imagefactory.errors import InputError
from imagefactory.project.data import DATA
from imagefactory.project.locks.files import Document, Frozen
from imagefactory.store.progress import count

_DIGEST: Final = r"^(sha256:[0-9a-f]{64})?$"
_KEY: Final = r"^([0-9a-f]{64})?$"
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=1 << 60)]
"""Without a limit, a sum or a quotient could be more than a number holds."""


class Spread(Frozen):
    """A distribution, in milliseconds."""

    mean: Amount
    p50: Amount
    p90: Amount
    p99: Amount


class Acceptance(Frozen):
    """What became of the tokens that a drafter proposed."""

    drafts: Count
    drafted: Count
    accepted: Count

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def length(self) -> float:
        """Tokens per step: the accepted ones, and the one that the model itself adds."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0


class Measurement(Frozen):
    """One run of the tool: some requests of one kind, by a number of users at once."""

    repeat: Count
    kind: str
    users: Count
    depth: Count = 0
    requests: Count
    failed: Count = 0
    seconds: Amount
    input_tokens: Count
    output_tokens: Count
    tokens_per_second: Amount  # of all users together
    tokens_per_second_per_user: Amount  # the median over the requests of their tokens by their time
    first_token: Spread
    per_token: Spread  # the time of a request after its first token, divided by its other tokens
    between_tokens: Spread
    whole_request: Spread
    acceptance: Acceptance | None = None
    errors: dict[str, int] = Field(default={})

    @property
    def cell(self) -> tuple[str, int, int]:
        """What the repeats of a measurement have in common."""
        return self.kind, self.users, self.depth


class MeasuredStart(Frozen):
    """A start of the server, until it responds."""

    cache: Literal["cold", "warm", "given"]
    seconds: Amount
    steps: dict[str, float] = Field(default={})  # where the time went, as the image reports it
    kernels: str = ""  # which modules of FlashInfer were in the image, in the cache or absent
    compiled: dict[str, Amount] = Field(default_factory=dict)
    """Seconds that those took which were compiled beside the start."""


class SanityCheck(Frozen):
    """A check of the answers."""

    name: str
    outcome: Literal["passed", "failed", "not-applicable"]
    detail: str = ""


class GpuUse(Frozen):
    """A GPU, and what it did during the measurements; None where NVML has no figure, as for a Spark's memory."""

    name: str
    driver: str
    memory_mb: Amount | None = None
    power_w: Amount | None = None  # the mean
    clock_mhz: Amount | None = None  # the mean
    samples: Count = 0


class BenchMachine(Frozen):
    """The machine that ran the server."""

    platform: str
    kernel: str
    cpu: str = ""
    cpus: Count
    memory: Count  # bytes
    engine: str = ""
    load: Amount | None = None
    """Processes that wanted a CPU in the minute before the server was started: other work slows it down."""
    gpus: tuple[GpuUse, ...] = ()


class BoundTo(Frozen):
    """What was measured: enough to run it again."""

    target: str = ""  # empty for a running server of unknown origin
    address: str = ""  # of a running server
    digest: Annotated[str, Field(pattern=_DIGEST)] = ""
    plan_key: Annotated[str, Field(pattern=_KEY)] = ""
    server: str
    server_version: str
    model: str
    model_revision: str = ""
    drafter: str = ""
    drafter_revision: str = ""
    mods: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default={})  # what differs from the image's defaults
    generated: bool = False  # whether the model has random weights, so that its answers mean nothing

    @property
    def matrix_model(self) -> str:
        """The model's name in matrix.yaml; empty for a running server."""
        return self.target.partition("@")[0]


class BenchResult(Document):
    """A benchmark."""

    format: Literal[1] = 1
    profile: str
    profile_version: Count
    output: Count  # tokens of each answer; fewer than the profile's if the context of the server is short
    repeats: Count
    asked: dict[str, str] = Field(default={})
    """How requests differ from plain ones at temperature 0: data set, temperature, thinking, tools."""
    tools: dict[str, str]
    started: AwareDatetime
    complete: bool = False
    why: str = ""  # why it is incomplete
    bound: BoundTo
    machine: BenchMachine
    starts: tuple[MeasuredStart, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    left_out: tuple[str, ...] = ()  # parts of the profile that do not fit this server
    sanity: tuple[SanityCheck, ...] = ()
    peak_memory: Count = 0  # bytes that the container used at most, without what a GPU has of its own

    @model_validator(mode="after")
    def _says_why(self) -> Self:
        if not self.complete and not self.why:
            raise ValueError("an incomplete result says why")
        return self

    @property
    def sane(self) -> bool:
        return all(check.outcome != "failed" for check in self.sanity)

    def cells(self) -> dict[tuple[str, int, int], list[Measurement]]:
        cells: dict[tuple[str, int, int], list[Measurement]] = {}
        for measurement in self.measurements:
            cells.setdefault(measurement.cell, []).append(measurement)
        return cells

    @property
    def users(self) -> set[int]:
        return {measurement.users for measurement in self.measurements}

    def throughput(self, users: int = 0) -> list[float]:
        """Return the tokens per second of each repeat, over all its measurements or those with some users."""
        repeats: dict[int, list[Measurement]] = {}
        for measurement in self.measurements:
            if users in {0, measurement.users}:
                repeats.setdefault(measurement.repeat, []).append(measurement)
        return [pooled(measurements) for _, measurements in sorted(repeats.items())]

    @staticmethod
    def unreadable(where: Path | str, why: str) -> InputError:
        what, fix = "The benchmark result cannot be read.", "Measure again; docs/schemas has the format."
        return InputError("bad-bench-result", what, where=where, why=why, fix=fix)


def known_percentiles(measurements: Iterable[Measurement]) -> list[str]:
    """Return the percentiles that so many requests can show: of fewer than 100, p99 is only the slowest."""
    requests = min((measurement.requests for measurement in measurements), default=0)
    return [name for name, least in {"p50": 1, "p90": 10, "p99": 100}.items() if requests >= least]


def pooled(measurements: Iterable[Measurement]) -> float:
    """Return the tokens per second over several measurements."""
    runs = list(measurements)
    # All tokens by all seconds: a mean of rates would give short runs the weight of long ones.
    seconds = sum(run.seconds for run in runs)
    return sum(run.output_tokens for run in runs) / seconds if seconds else 0.0


def pooled_acceptance(measurements: Iterable[Measurement]) -> Acceptance | None:
    acceptances = [measurement.acceptance for measurement in measurements if measurement.acceptance is not None]
    sums = {name: sum(getattr(acceptance, name) for acceptance in acceptances) for name in Acceptance.model_fields}
    return Acceptance(**sums) if acceptances else None


def mean_spread(spreads: Iterable[Spread]) -> Spread:
    distributions = list(spreads)
    return Spread(
        **{name: fmean(getattr(distribution, name) for distribution in distributions) for name in Spread.model_fields}
    )


RESULTS: Final = Path(DATA, "results")
_MOST: Final = 1_000_000  # tokens per second that no machine of this matrix gives
_SLACK: Final = 1.02  # by how much figures of one measurement may disagree


def shared_files(root: Path) -> list[Path]:
    return sorted(file.relative_to(root) for file in (root / RESULTS).rglob("*.json"))


def shared_results(root: Path) -> list[BenchResult]:
    return [BenchResult.read(root / file) for file in shared_files(root)]


def unchanged_files(root: Path, earlier: Path) -> set[Path]:
    """List the shared results that an earlier checkout has too, byte for byte."""
    return {
        file
        for file in shared_files(earlier)
        if (root / file).exists() and (root / file).read_bytes() == (earlier / file).read_bytes()
    }


def check_shared(root: Path, digests: Collection[str], unchanged: Collection[Path] = ()) -> int:
    """Check all shared results; return their number.

    Locks move on, so the images of `unchanged` results need not be among `digests` any more.
    """
    wrong = []
    files = shared_files(root)
    for file in files:
        result = BenchResult.read(root / file)
        gone = result.bound.digest not in digests and file not in unchanged
        wrong += [f"{file}: {problem}" for problem in _problems(result, gone=gone)]
    if wrong:
        raise InputError(
            "bad-bench-result",
            "The benchmark cannot be shared.",
            where=str(RESULTS),
            why="; ".join(wrong) + ".",
            fix="Measure an image of this repository again, and add the file as it was written.",
        )
    return len(files)


def _problems(result: BenchResult, *, gone: bool) -> Iterator[str]:
    if not result.complete:
        yield f"it is incomplete: {result.why}"
    if not result.sane or (result.measurements and not result.sanity):
        yield "its answers were not checked, or did not pass"
    if not result.bound.digest:
        yield "it names no image: results of --url cannot be run again"
    elif gone:
        yield f"no image of this repository has the digest {result.bound.digest}"
    if not result.measurements and not result.starts:
        yield "it has no figures"
    for measurement in result.measurements:
        cell = f"{measurement.kind}, {count(measurement.users, 'user')}, repeat {measurement.repeat}"
        yield from (f"{cell}: {why}" for why in _implausible(measurement))


def _implausible(measurement: Measurement) -> Iterator[str]:
    if measurement.failed:
        yield f"failed: {count(measurement.failed, 'request')}"
    if not 0 < measurement.tokens_per_second < _MOST:
        yield f"{measurement.tokens_per_second} tokens per second"
    elif (
        measurement.seconds
        and not 1 / _SLACK < measurement.output_tokens / measurement.seconds / measurement.tokens_per_second < _SLACK
    ):
        yield "tokens, seconds and tokens per second do not agree"
    if measurement.acceptance and not measurement.acceptance.accepted <= measurement.acceptance.drafted:
        yield "more drafts accepted than made"
    spreads = (measurement.first_token, measurement.per_token, measurement.between_tokens, measurement.whole_request)
    if any(not spread.p50 <= spread.p90 <= spread.p99 for spread in spreads):
        yield "percentiles are not in order"


def baseline_for(result: BenchResult, shared: Iterable[BenchResult]) -> BenchResult | None:
    """Return the newest shared result of the same target, profile, settings and machine."""

    def alike(candidate: BenchResult) -> object:
        machine, gpus = candidate.machine, [gpu.name for gpu in candidate.machine.gpus]
        hardware = (machine.platform, machine.cpu, machine.cpus, machine.memory, gpus)
        asked = (candidate.profile, candidate.profile_version, candidate.output, candidate.asked)
        shape = (*asked, tuple(candidate.cells()))
        return candidate.bound.target, candidate.bound.settings, shape, hardware

    earlier = [
        candidate for candidate in shared if candidate.started < result.started and alike(candidate) == alike(result)
    ]
    return max(earlier, key=lambda candidate: candidate.started, default=None)
