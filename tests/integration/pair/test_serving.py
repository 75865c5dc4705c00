"""A pair that serves: vLLM on the CPUs of two machines, up to a completion, and through crashes and reboots."""

import json
import time

import pytest

from tests.fixtures.engines import PATIENCE, wait_until
from tests.integration.pair.bed import CABLE, Spark
from tests.integration.pair.conftest import NAME, Commands

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
START_LIMIT = 900
"""Seconds for two servers on one busy machine."""
NOTICED = 60
"""Seconds within which a failure is noticed."""


@pytest.fixture(scope="module")
def serving(commands: Commands) -> Commands:
    done = commands.up("--limit", str(START_LIMIT), timeout=START_LIMIT + 120)
    assert done.returncode == 0, done.stderr
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (told["model"], told["serving"].endswith(":8000/v1")) == ("tiny", True)
    answer = commands.head.run("sh", "-c", told["ask"])
    assert json.loads(answer.stdout)["choices"], answer
    assert "proof: gloo over" in done.stderr
    assert "is not healthy" not in done.stderr, "a start is no failure"
    return commands


@pytest.fixture
def joined(pair: Commands) -> Commands:
    """Two servers that start; what holds them together is there long before the first request can be answered."""
    done = pair.up("--limit", "1", timeout=180)
    assert "not healthy after 1 s" in done.stderr, done.stderr
    wait_until_joined(pair)
    return pair


def wait_until_joined(pair: Commands) -> None:
    for spark in pair.bed.sparks:
        wait_for_line(spark, "joined with")


def wait_for_line(spark: Spark, text: str) -> None:
    """Wait until a server says something; a container that Docker has just started has said nothing yet."""
    deadline = time.monotonic() + NOTICED
    while text not in log_of_this_start(spark):
        assert time.monotonic() < deadline, log_of_this_start(spark)[-2000:]
        time.sleep(1)


def log_of_this_start(spark: Spark) -> str:
    since = spark.check("docker", "inspect", "--format", "{{.State.StartedAt}}", NAME).strip()
    done = spark.run("docker", "logs", "--since", since, NAME)
    return done.stdout + done.stderr


def states(pair: Commands) -> list[dict[str, object]]:
    found = [spark.check("docker", "container", "inspect", NAME) for spark in pair.bed.sparks]
    return [json.loads(one)[0] for one in found]


def ask(spark: Spark, limit: int = 30) -> str:
    """Ask for a completion; return the status, or curl's failure."""
    body = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 2})
    form = ("--header", "Content-Type: application/json", "--data", body, "http://127.0.0.1:8000/v1/completions")
    done = spark.run("curl", "-s", "-m", str(limit), "-o", "/dev/null", "-w", "%{http_code}", *form)
    return done.stdout if not done.returncode else f"curl {done.returncode}"


def restarts(pair: Commands) -> list[int]:
    return [int(str(state["RestartCount"])) for state in states(pair)]


def wait_for_restart(pair: Commands, before: list[int], nodes: tuple[int, ...] = (0, 1)) -> float:
    began = time.monotonic()
    while not all(restarts(pair)[node] > before[node] for node in nodes):
        assert time.monotonic() - began < NOTICED, [pair.run("status").stdout, pair.run("logs").stdout[-3000:]]
        time.sleep(1)
    return time.monotonic() - began


def pid_of(spark: Spark) -> str:
    return spark.check("docker", "inspect", "--format", "{{.State.Pid}}", NAME).strip()


def test_a_restart_says_what_it_does_and_not_what_an_earlier_start_said(joined: Commands) -> None:
    # Whichever ends second notes that the other is gone, and the note is in its container when that starts again.
    done = joined.run("restart", "--limit", "1", timeout=180)
    said = [line for line in done.stderr.splitlines() if line.startswith(("this machine: ", "spark2: "))]
    assert said, done.stderr
    assert [line for line in said if "started" not in line and "starting" not in line] == []


@pytest.mark.each_run
def test_a_second_up_finds_all_done_and_both_are_shown(serving: Commands) -> None:
    before = [state["Id"] for state in states(serving)]
    again = serving.up(timeout=180)
    assert again.returncode == 0, again.stderr
    assert "both containers run as wanted" in again.stderr
    assert [state["Id"] for state in states(serving)] == before
    shown = serving.run("status").stdout
    assert all(spark.address in shown for spark in serving.bed.sparks)
    lines = serving.run("logs", "--lines", "5").stdout.splitlines()
    assert {line.partition("|")[0].strip() for line in lines} == {"this machine", "spark2"}


def test_a_rebooted_worker_comes_back_by_itself(serving: Commands) -> None:
    before = restarts(serving)
    serving.bed.reboot(serving.worker)
    wait_for_restart(serving, before, nodes=(0,))
    deadline = time.monotonic() + START_LIMIT
    while ask(serving.head) != "200":
        assert time.monotonic() < deadline, serving.run("logs").stdout[-3000:]
        time.sleep(5)


def test_down_leaves_no_container(serving: Commands) -> None:
    done = serving.run("down", timeout=120)
    assert done.returncode == 0, done.stderr
    for spark in serving.bed.sparks:
        assert not spark.check("docker", "ps", "--all", "--quiet")
    assert "error[no-pair]" in serving.run("status").stderr


@pytest.mark.parametrize("node", [1, 0])
def test_both_start_again_when_one_is_killed(joined: Commands, node: int) -> None:
    spark, before = joined.bed.sparks[node], restarts(joined)
    spark.check("kill", "-KILL", pid_of(spark))
    wait_for_restart(joined, before)
    wait_until_joined(joined)


def test_a_frozen_worker_is_noticed(joined: Commands) -> None:
    worker, before = joined.worker, restarts(joined)
    # runc gives up on busy cores while new threads come: "unable to freeze".
    wait_until(lambda: worker.run("docker", "pause", NAME).returncode == 0, PATIENCE)
    wait_for_restart(joined, before, nodes=(0,))
    worker.check("docker", "unpause", NAME)
    wait_for_restart(joined, before)
    wait_until_joined(joined)


def test_a_cable_that_is_pulled_out_is_noticed(joined: Commands) -> None:
    before = restarts(joined)
    joined.worker.check("ip", "link", "set", CABLE, "down")
    wait_for_restart(joined, before)
    wait_for_line(joined.head, CABLE)
    joined.worker.check("ip", "link", "set", CABLE, "up")
    wait_until_joined(joined)
