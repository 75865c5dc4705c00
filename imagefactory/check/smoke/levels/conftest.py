"""Reads the assignment of a smoke run from a file of `./inv smoke`, and writes its results to another."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import testinfra

from imagefactory.check.smoke.assignment import Assignment
from imagefactory.check.smoke.containers import ContainerError, Containers, RunningServer, docker
from imagefactory.check.smoke.record import TestOutcome
from imagefactory.check.smoke.runner import results_folder
from imagefactory.check.smoke.subject import Subject, plan_of
from imagefactory.launch.docker_run import STOP_SECONDS
from imagefactory.plan.plan import Plan
from imagefactory.project.counterparts import has_gpu
from imagefactory.project.project import Project
from imagefactory.project.servers.known import server_of
from imagefactory.project.servers.server import Server
from imagefactory.serve_program import Server as ProgramServer
from imagefactory.store.atomic import write_text

INSIDE = Path(__file__).parent / "inside"
IN_CONTAINER = "/tmp/smoke"  # noqa: S108 - in a container of our own
NOT_APPLICABLE = "not applicable"
LONGEST_MESSAGE = 2000  # characters


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--assignment", type=Path, required=True, help="what to test, as JSON")
    parser.addoption("--results", type=Path, required=True, help="where results go, one JSON line each")


def pytest_report_header(config: pytest.Config) -> str:
    return f"smoke run {read_assignment(config).run}"


def level_of(item: pytest.Item | pytest.Collector) -> str:
    return item.path.stem.removeprefix("test_")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    assignment = read_assignment(config)
    for item in items:
        means = " ".join((getattr(item, "function", item).__doc__ or "").split())
        if not means:
            raise pytest.UsageError(f"{item.nodeid} does not say what a failure means for a user")
        write(config, {"kind": "planned", "level": level_of(item), "name": name_of(item), "means": means})
        why = assignment.hindered.get(level_of(item))  # type: ignore[call-overload]
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    stash = item.stash.setdefault(PHASES, [])
    stash.append((report, call.excinfo))
    if report.when == "teardown":
        write(item.config, ended(item, stash))
    return report


# Setup, call and teardown of a test; the last completes its result.
PHASES = pytest.StashKey[list[tuple[pytest.TestReport, Any]]]()


def ended(item: pytest.Item, phases: list[tuple[pytest.TestReport, Any]]) -> dict[str, object]:
    outcome: TestOutcome = "passed"
    message = ""
    for report, raised in phases:
        if report.failed and outcome != "failed":
            outcome, message = "failed", str(raised.value) if raised else report.longreprtext
        elif report.skipped and outcome == "passed":
            message = str(raised.value) if raised else str(report.longrepr)
            outcome = "not-applicable" if message.startswith(NOT_APPLICABLE) else "not-run"
            message = message.removeprefix(f"{NOT_APPLICABLE}: ")
    return {
        "kind": "ended",
        "level": level_of(item),
        "name": name_of(item),
        "outcome": outcome,
        "message": message[-LONGEST_MESSAGE:],  # the reason comes last
        "seconds": round(sum(report.duration for report, _ in phases), 2),
        "measured": {name: value for name, value in item.user_properties if isinstance(value, int | float)},
    }


def name_of(item: pytest.Item) -> str:
    return item.name.removeprefix("test_").replace("_", " ")


def write(config: pytest.Config, entry: dict[str, object]) -> None:
    with config.getoption("--results").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def read_assignment(config: pytest.Config) -> Assignment:
    return Assignment.model_validate_json(config.getoption("--assignment").read_bytes())


@pytest.fixture(scope="session")
def assignment(pytestconfig: pytest.Config) -> Assignment:
    return read_assignment(pytestconfig)


@pytest.fixture(scope="session")
def subject(assignment: Assignment) -> Subject:
    return assignment.subject


@pytest.fixture(scope="session")
def project(assignment: Assignment) -> Project:
    return Project(assignment.root)


@pytest.fixture(scope="session")
def plan(project: Project, subject: Subject) -> Plan:
    plan = plan_of(project, subject)
    assert plan is not None, f"the image's plan is {subject.plan_key}; this checkout has another one"
    return plan


@pytest.fixture(scope="session")
def about(subject: Subject) -> Server:
    """What the factory knows about the image's server."""
    return server_of(subject.cell)


@pytest.fixture(scope="session")
def program(subject: Subject) -> ProgramServer:
    """What the serve program of the image knows about its server."""
    server: ProgramServer = import_module(f"images.serve.program.servers.{subject.cell.server}").SERVER
    return server


@pytest.fixture
def applies() -> Callable[[bool, str], None]:
    """Skip a test that does not apply to the image: `applies(condition, why not)`."""

    def decide(condition: bool, reason: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not condition:
            pytest.skip(f"{NOT_APPLICABLE}: {reason}")

    return decide


@pytest.fixture(scope="session")
def containers(assignment: Assignment) -> Containers:
    return Containers(assignment.run)


@pytest.fixture(scope="session")
def inside(assignment: Assignment, containers: Containers) -> Iterator[Any]:
    """An idle container without network, for testinfra."""
    options = ("--network", "none", "--entrypoint", "/usr/bin/sleep", *containers.caches(assignment.image))
    container = containers.start(assignment.image, "infinity", options=options)
    copied = docker("cp", str(INSIDE), f"{container.name}:{IN_CONTAINER}")
    assert copied.returncode == 0, f"docker cp: {copied.stderr}"
    yield testinfra.get_host(f"docker://{container.name}")
    container.remove()


@pytest.fixture(scope="module")
def ready(
    server: RunningServer, project: Project, subject: Subject, request: pytest.FixtureRequest
) -> tuple[RunningServer, float]:
    """Wait for the module's server; return it with the seconds it took. Of one that does not start, the log stays."""
    try:
        return server, server.wait_until_healthy(request.module.START_LIMIT)
    except ContainerError as error:
        path = results_folder(project, subject.digest) / f"server-{level_of(request.node)}.log"
        write_text(path, server.container.log)
        raise ContainerError(f"{error} (the whole log: {path.relative_to(project.root)})") from None


@pytest.fixture
def served(ready: tuple[RunningServer, float]) -> RunningServer:
    return ready[0]


@pytest.fixture
def stop_seconds(served: RunningServer, record_property: Callable[[str, object], None]) -> float:
    """Stop the server as `docker stop` does; return the seconds it took."""
    seconds = served.container.stop(STOP_SECONDS)
    record_property("stop_seconds", round(seconds, 1))
    code = served.container.exit_code
    assert code == 0, f"the server ended with code {code}: {served.last_words()}"
    return seconds


@pytest.fixture(scope="session")
def in_python(inside: Any, project: Project, subject: Subject) -> Callable[..., Any]:
    """Run a program of the folder `inside` with the image's Python; GPU images get a stub of the driver."""

    def run(program: str, *arguments: str) -> Any:
        words = [f"{IN_CONTAINER}/{program}", *arguments]
        if has_gpu(project.matrix, subject.cell.arch):
            words.insert(0, f"sh {IN_CONTAINER}/with_driver_stub.sh")
        else:
            words.insert(0, "python3")
        done = inside.run(" ".join(words))
        assert done.rc == 0, f"{program} ended with code {done.rc}: {(done.stderr or done.stdout)[-1500:]}"
        # Imported packages may print first.
        return json.loads(done.stdout.splitlines()[-1])

    return run
