"""Runs benchmarks: starts the image of a target, or uses a server that runs already."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

from imagefactory.check.bench.comparison import SETTING
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.check.bench.measuring import (
    Bench,
    GrowingResult,
    kernels_of,
    measure,
    recording,
    steps_of,
    this_machine,
)
from imagefactory.check.bench.profiles import load_profiles
from imagefactory.check.bench.result import BenchResult, BoundTo, MeasuredStart
from imagefactory.check.bench.tool import ToolError, command_in
from imagefactory.check.smoke.containers import ContainerError, Containers, RunningServer
from imagefactory.check.smoke.subject import Subject, in_daemon, plan_of
from imagefactory.check.weights import weights_of
from imagefactory.errors import CheckError, UsageError
from imagefactory.launch.docker_run import HUB_CACHE
from imagefactory.plan.serve.description import describe_cell
from imagefactory.plan.serve.image_paths import MODEL_CACHE
from imagefactory.project.cells import Cell
from imagefactory.project.counterparts import has_gpu
from imagefactory.project.project import Project
from imagefactory.project.server_versions import VLLM
from imagefactory.store.atomic import write_text
from imagefactory.store.paths import expand_home
from imagefactory.store.progress import Say
from imagefactory.store.signals import ending_in_order

START_LIMIT: Final = 7200  # seconds for a start, which may download the model
DRAFTER: Final = "DFLASH_DRAFTER"  # the setting of the drafter


def refuse_other_servers(bench: Bench, cell: Cell) -> None:
    """Raise if the profile's tool is missing in images of the cell's server."""
    if cell.server != VLLM and bench.profile.tool == "vllm":
        raise UsageError(
            "bad-option",
            f"The profile {bench.profile_name} needs an image with vLLM.",
            where=str(cell),
            why="Its tool is `vllm bench serve`, which runs inside the image.",
            fix="Use --profile start; or serve this image, and measure it with --url and a vLLM target, "
            "whose image brings the tool.",
        )


def bench_image(bench: Bench, subject: Subject, say: Say) -> tuple[BenchResult, Path]:
    """Start an image, measure it, and remove its containers; return the result and its file."""
    refuse_other_servers(bench, subject.cell)
    options = server_options(bench.project, subject, bench.settings)
    bound = bound_to(bench.project, subject, bench.settings)
    with _running(bench, subject, bound, say) as (image, containers, record):
        # The starts share a volume for caches, which the first one finds empty.
        for cache in bench.profile.starts or ("cold",):
            say(f"starting {subject.cell} ({cache} cache)")
            with (
                tempfile.TemporaryDirectory() as folder,
                containers.serve(image, Path(folder), options=options) as server,
                keeping_log(server, record.path),
            ):
                _start_and_measure(bench, record, server, cache, say)
    return record.result, record.path


def bench_url(bench: Bench, endpoint: Endpoint, tool: Subject, say: Say) -> tuple[BenchResult, Path]:
    """Measure a running server; the image of a target brings the tool."""
    if bench.profile.tool == "none":
        raise UsageError(
            "bad-option",
            f"The profile {bench.profile_name} needs to start the server.",
            where="the --url option",
            why="It measures starts, and this server runs already.",
            fix="Leave --url out, or choose another profile.",
        )
    refuse_other_servers(bench, tool.cell)
    model = endpoint.models().root
    random = bool(weights_of({}, model)) or bench.project.matrix.models[tool.cell.model].generated is not None
    address, version = endpoint.public_address, endpoint.version()
    bound = BoundTo(address=address, server="unknown", server_version=version, model=model, generated=random)
    with _running(bench, tool, bound, say) as (image, containers, record):
        options = ("--network", "host", *models_volume())
        beside = containers.start(image, "sleep", "infinity", options=options)
        measure(bench, record, endpoint, command_in(beside.name), say)
    return record.result, record.path


def server_options(project: Project, subject: Subject, settings: Mapping[str, str]) -> tuple[str, ...]:
    gpus = ("--gpus", "all") if has_gpu(project.matrix, subject.cell.arch) else ()
    given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return (*gpus, *given, *models_volume())


def models_volume() -> tuple[str, str]:
    return ("--volume", f"{expand_home(HUB_CACHE, 'HOME')}:{MODEL_CACHE}")


@contextmanager
def containers_of(subject: Subject, say: Say) -> Iterator[tuple[str, Containers]]:
    """Bring an image into the daemon; yield its id there, and its containers, which are removed afterwards."""
    with ending_in_order(), in_daemon(subject, say) as image:
        containers = Containers(uuid4().hex[:12])
        try:
            yield image, containers
        finally:
            containers.remove_all()


@contextmanager
def keeping_log(server: RunningServer, beside: Path) -> Iterator[None]:
    """If the block fails, keep the server's log beside a result, and name the file in the error."""
    try:
        yield
    except (CheckError, ContainerError, ToolError) as error:
        path = beside.with_suffix(".log")
        write_text(path, server.container.log)
        named = "/".join(path.parts[-3:])  # build/KIND/NAME: the reason may go into a result that others read
        if not isinstance(error, CheckError):
            error.args = (f"{error} (the whole log is {named})",)
            raise
        fix = f"Read the server's log, {named}."
        raise CheckError(error.name, error.what, where=error.where, why=error.why, fix=fix) from None


def result_file(project: Project, kind: str, started: datetime, name: str) -> Path:
    # Two measurements may begin in the same second.
    unique = f"{started:%Y%m%dT%H%M%S}-{uuid4().hex[:4]}"
    return project.root / "build" / kind / f"{unique}-{name.replace('/', '-').replace('@', '-')}.json"


@contextmanager
def _running(
    bench: Bench, subject: Subject, bound: BoundTo, say: Say
) -> Iterator[tuple[str, Containers, GrowingResult]]:
    result = BenchResult(
        profile=bench.profile_name,
        profile_version=load_profiles(bench.project.root).version,
        output=bench.profile.output,
        repeats=bench.profile.repeats,
        asked=bench.asking.words(),
        tools={},
        started=datetime.now(UTC).replace(microsecond=0),
        why="it has not begun",
        bound=bound,
        machine=this_machine(),
    )
    path = result_file(bench.project, "bench", result.started, f"{bound.target or 'server'}-{result.profile}")
    with containers_of(subject, say) as (image, containers), recording(path, result) as record:
        yield image, containers, record


def bound_to(project: Project, subject: Subject, settings: Mapping[str, str]) -> BoundTo:
    """Describe an image and its settings; what its plan alone knows is empty if this checkout has another plan."""
    cell = subject.cell
    model = project.matrix.models[cell.model]
    given = settings.get("MODEL_PATH") or settings.get("MODEL", "")
    bound = BoundTo(
        target=cell.full_target,
        digest=subject.digest,
        plan_key=subject.plan_key,
        server=cell.server,
        server_version=cell.version,
        model=given or model.repo or str(model.generated),
        settings=dict(sorted(settings.items())),
        generated=model.generated is not None or bool(weights_of(settings)),
    )
    plan = plan_of(project, subject)
    if plan is None:
        return bound
    served = describe_cell(project, cell, project.wheel_lock(cell).kernels)
    drafter: dict[str, Any] = next(iter(served.model["drafters"]), {})
    chosen = settings.get(DRAFTER, drafter.get("repo", ""))
    facts = {
        "mods": tuple(mod.name for mod in plan.mods),
        "model_revision": "" if given else served.model.get("revision", ""),
        "drafter": "" if chosen == "off" else chosen,
        "drafter_revision": drafter.get("revision", "") if chosen == drafter.get("repo") else "",
    }
    return bound.model_copy(update=facts)


def _start_and_measure(
    bench: Bench, record: GrowingResult, server: RunningServer, cache: Literal["cold", "warm"], say: Say
) -> None:
    seconds = server.wait_until_healthy(START_LIMIT)
    steps, (kernels, compiled) = _steps(server), kernels_of(server.container.log)
    start = MeasuredStart(cache=cache, seconds=round(seconds, 2), steps=steps, kernels=kernels, compiled=compiled)
    record.add(starts=(*record.result.starts, start))
    say(f"ready after {seconds:.1f} s")
    if bench.profile.tool == "none":
        return
    endpoint = Endpoint(server.address, server.key, server.container)
    if version := endpoint.version():  # not every server says
        record.add(bound=record.result.bound.model_copy(update={"server_version": version}))
    measure(bench, record, endpoint, command_in(server.container.name), say)


def _steps(server: RunningServer) -> dict[str, float]:
    """Wait for the steps of a start: the image reports them once its warm-up requests are answered."""
    for _ in range(60):
        if steps := steps_of(server.container.log):
            return steps
        time.sleep(1)
    return {}


@dataclass(frozen=True)
class Side:
    """What one side of a comparison measures."""

    bench: Bench
    subject: Subject  # the image; of a running server, the one that brings the tool
    endpoint: Endpoint | None = None  # the server, if it runs already

    def measure(self, say: Say) -> BenchResult:
        if self.endpoint is None:
            return bench_image(self.bench, self.subject, say)[0]
        return bench_url(self.bench, self.endpoint, self.subject, say)[0]


def run_interleaved(left: Side, right: Side, rounds: int, say: Say) -> tuple[list[BenchResult], list[BenchResult]]:
    """Measure both sides in every round, images with a fresh start; every second round begins with the right one."""
    results: dict[str, list[BenchResult]] = {"A": [], "B": []}
    for number in range(rounds):
        # A machine that warms up or slows down then does so for both sides.
        for name in "AB" if number % 2 == 0 else "BA":
            say(f"round {number + 1} of {rounds}, {name}")
            results[name].append((left if name == "A" else right).measure(say))
    return results["A"], results["B"]


def asked_differences(left: Side, right: Side) -> set[str]:
    """Return in what two sides were asked to differ: their settings, and their images."""
    first, second = left.bench.settings, right.bench.settings
    changed = {name for name in {*first, *second} if first.get(name) != second.get(name)}
    asked = {f"{SETTING}{name}" for name in changed} | ({"drafter"} if DRAFTER in changed else set())
    if left.endpoint or right.endpoint or left.subject.digest != right.subject.digest:
        asked |= {"image", "server", "mods", "tool"}
    return asked
