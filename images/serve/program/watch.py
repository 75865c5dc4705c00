"""Runs beside the server: warms it up, and reports how it started, the kernels it chose and its draft acceptance.

This companion process is forked before the program becomes the server, and ends with it. Its failures do not affect the
server.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from . import (
    ahead,
    drafting,
    hangs,
    health,
    hosts,
    link,
    memory_guard,
    private_files,
    readiness,
    reading,
    state,
    timeline,
)
from . import command as commands
from .channel import STARTING, Group
from .findings import Start
from .redaction import say
from .servers.server import Choices, hook_variables

WARN_EVERY = 60.0
"""Seconds between warnings."""
PAUSE, KEY_LIMIT = 2.0, 600.0
"""Seconds between two questions, and until the server has refused a request without its key."""
WITHOUT_HTTP = {"--uds", "--grpc", "--grpc-mode", "--smg-grpc-mode"}
"""Flags of servers that answer at no port: nobody can say whether they hang."""
UNKNOWN_PATH, REFUSALS = "/imagefactory", (401, 403)
"""A path that no server has: one that is not guarded responds with 404."""


class Task:
    """The task of the companion."""

    def __init__(
        self, start: Start, where: health.Address, key_file: str, began: float | None, group: Group | None
    ) -> None:
        self.server, self.address, self.group = start.server, where, group
        self.model, self.drafting = start.command.served_names[0], start.command.speculative is not None
        self.api_key, self.key_file = start.settings.secrets.api_key, key_file
        self.rounds, self.compilers = start.settings.number("WARMUP") or 0, _compilers(start)
        limit = start.settings.number("HANG_LIMIT") or 0
        reached = not WITHOUT_HTTP & {word.partition("=")[0].replace("_", "-") for word in start.command.arguments}
        asked = where if reached else where._replace(port=0)
        self.watched = hangs.Watched(self.server, asked, self.model, self.api_key, limit, group, start.cache)
        self.guarded = memory_guard.Guarded(start.memory_floor, start.planned_rest, unified=start.readings.unified)
        self.find_kernels = partial(ahead.find, start.image.facts, os.environ)
        self.kernels = self.find_kernels()
        self.unified, self.disk = start.readings.unified, reading.ReadMeter(os.getpid())
        self.began = began
        """When the program's process started, on the monotonic clock."""
        try:
            self.choices = private_files.write(f"choices.{os.getpid()}", "")
        except OSError:
            self.choices = ""


def accompany(
    start: Start, where: health.Address, key_file: str, began: float | None, group: Group | None
) -> Mapping[str, str]:
    """Start the companion of the server; return variables that make the server record its choices for it."""
    task = Task(start, where, key_file, began, group)
    if where.port:
        state.starting("the model is being loaded")
    _fork(task)
    kept = {**start.server.watched, **({"MAX_JOBS": str(max(1, task.compilers))} if any(task.kernels) else {})}
    hooked = hook_variables(start.server.name, start.server.log, task.choices, os.environ) if task.choices else {}
    if task.choices and where.port:
        hooked["IMAGEFACTORY_NOTES"] = private_files.PLACE
    return hooked | {name: value for name, value in kept.items() if name not in os.environ}


def _compilers(start: Start) -> int:
    """Return how many compilers may run beside the server, which comes first where the GPU shares the host's memory."""
    chosen, machine = start.settings.number("COMPILERS"), start.readings
    if chosen is not None:
        return chosen
    reserved = start.share + ahead.floor(start.memory_floor)
    return ahead.jobs(len(os.sched_getaffinity(0)), machine.memory_available, reserved)


def address(start: Start) -> health.Address:
    """Return the address of the API; port 0 if this node has none."""
    words = start.command.arguments
    if start.server.without_api(words):
        return health.Address("", 0)
    host = commands.option(words, "--host") or start.settings.text("HOST")
    # A command of the user's own may leave the port to the server.
    port = commands.option(words, "--port") or start.image.settings["PORT"].server_default
    return health.Address(
        health.reachable(host),
        int(port) if port.isdecimal() else start.settings.number("PORT") or 8000,
        commands.option(words, "--ssl-certfile") is not None,
    )


def _fork(task: Task) -> None:
    server = os.getpid()
    if os.fork():
        return
    # The kernel ends this process with the server, in case the server is not process 1 of a container.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        if os.getppid() == server:
            _companion(task, server)
    except BaseException as error:  # noqa: BLE001 - there is no caller
        say(f"the companion ends: {type(error).__name__}")
    # An exit would leave a zombie: the server, as process 1, never waits for it.
    while os.getppid() == server:
        time.sleep(3600)
    os._exit(0)


def _companion(task: Task, server: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C stops the server, and with it this process
    memory_guard.begin(task.guarded, server)  # a thread that does not yield to others
    os.nice(10)
    watch = hangs.begin(task.watched, server)
    became = time.monotonic()
    started = became if task.began is None else task.began
    compiling = _compile(task)
    if task.group:
        threading.Thread(target=link.keep, args=(task.group, server, task.address.port), daemon=True).start()
    task.disk.begin()
    if not task.address.port or not _listens(task, server, started):
        return
    if task.key_file:
        with suppress(OSError):
            Path(task.key_file).unlink()
    if task.api_key and not _asks_for_key(task, server):
        return
    moments = _get_ready(task, server, timeline.Moments(task.began, became, listening=time.monotonic()), compiling)
    if os.getppid() != server:
        return
    private_files.forget(state.STARTING)
    if task.group:
        task.group.state = link.READY
    say(f"ready: {task.address.url}/v1, model {task.model}, after {(moments.ready or 0) - started:.0f} s")
    try:
        _tell_start(task, moments)
    except Exception as error:  # noqa: BLE001 - of a server's words
        say(f"the report of the start failed: {type(error).__name__}")
    _report(task, server, watch)


def _compile(task: Task) -> int:
    """Start to compile what is missing; return the number of the process that does, 0 if there is none."""
    if task.kernels.missing and task.compilers:
        return ahead.begin(task.kernels.missing, task.compilers, ahead.floor(task.guarded.floor))
    if task.kernels.missing:
        say("nothing is compiled beside the start: COMPILERS is 0, or memory is short")
    return 0


def _get_ready(task: Task, server: int, moments: timeline.Moments, compiling: int) -> timeline.Moments:
    """Wait for what sampling calls if it is compiled beside the start, and for the answer to a sampled request."""
    whole = task.address, task.model, task.api_key

    def lacks_sampling() -> bool:
        return ahead.SAMPLING in task.find_kernels().missing

    if compiling and lacks_sampling() and ahead.runs(compiling):
        say(f"the server listens; it is ready once {ahead.SAMPLING} is compiled")
        state.starting(f"{ahead.SAMPLING} is being compiled")
        while lacks_sampling() and ahead.runs(compiling) and os.getppid() == server:
            time.sleep(PAUSE)
        moments = moments._replace(kernels=time.monotonic())
    state.starting("it is being warmed up")
    answered = readiness.warm_up(*whole, task.rounds)
    moments = moments._replace(warm=time.monotonic() if answered else None)
    # Without a warm-up, the first user would wait for what could not be compiled beside the start.
    asks = task.rounds or lacks_sampling()
    while asks and not answered and os.getppid() == server:
        answered = readiness.answers(*whole)
        if not answered:
            time.sleep(PAUSE)
    return moments._replace(ready=time.monotonic())


def _asks_for_key(task: Task, server: int) -> bool:
    """See whether the server refuses who has no key; end one that does not, or that does not let itself be asked."""
    until, why = time.monotonic() + KEY_LIMIT, f"gave no answer to a request without its key for {KEY_LIMIT:.0f} s"
    while os.getppid() == server and time.monotonic() < until:
        try:
            if health.request(task.address, "GET", UNKNOWN_PATH, timeout=60).status in REFUSALS:
                return True
            why = "answers without its key"
            break
        except (OSError, ValueError):
            time.sleep(PAUSE)  # it may be late, and must not be believed before
    say(f"the server {why}: it is stopped")
    os.kill(server, signal.SIGTERM)
    return False


def _tell_start(task: Task, moments: timeline.Moments) -> None:
    """Report what the server chose, where the time went, and what became of the kernels."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path(task.choices).read_text("utf-8", "replace")[:1_000_000].splitlines()
    for line in report(task.server.choices(lines), drafting=task.drafting):
        say(line)
    moments = task.server.moments(lines, moments)
    say(timeline.describe(moments, warm_up=bool(task.rounds)))
    speed = task.disk.megabytes_per_second(moments.loading, moments.loaded)
    for fault in hosts.faults({"unified": task.unified, "read_mbps": speed}):
        say(f"WARNING: {fault.detail}. {fault.remedy}")
    if any(task.kernels):
        say(f"kernels of FlashInfer: {task.kernels.outcome(task.find_kernels())}")


def _listens(task: Task, server: int, started: float) -> bool:
    """Wait until the server takes requests; return whether it does."""
    said = time.monotonic()
    while not health.is_well(task.address):
        now = time.monotonic()
        if os.getppid() != server:
            return False
        if task.group and task.group.state == STARTING and now - said >= WARN_EVERY:
            said = now
            say(f"not ready after {now - started:.0f} s; alive: {task.group.names}")
        time.sleep(PAUSE)
    return True


def _report(task: Task, server: int, watch: hangs.Watch) -> None:
    """Report draft acceptance, and what came from KV_DISK, until the server ends."""
    drafts, from_disk, told = drafting.Reporter(), 0.0, 0.0
    while os.getppid() == server:
        time.sleep(hangs.LOOK)
        now, metrics = time.monotonic(), watch.metrics or b""
        for line in drafts.look(now, task.server.drafted(metrics)) if task.drafting and metrics else ():
            say(line)
        if (read := task.server.from_disk(metrics)) > from_disk and now - told >= WARN_EVERY:
            say(f"{read - from_disk:,.0f} tokens of prompts came from KV_DISK, {read:,.0f} since the start")
            from_disk, told = read, now


def report(chosen: Choices, *, drafting: bool) -> Iterator[str]:
    """Describe what the server chose, with a warning about slow kernels."""
    if chosen.attention:
        # The model is loaded before the drafter; a backend that both use is logged once.
        text = f"attention by {chosen.attention[0]}"
        if drafting:
            text += f", draft attention by {chosen.attention[1 if len(chosen.attention) > 1 else 0]}"
        yield text
    if chosen.kernels:
        yield "; ".join(chosen.kernels)
    marlin = [kernel for kernel in chosen.kernels if "marlin" in kernel.lower() and "fp4" in kernel.lower()]
    for kind in chosen.slow or (("FP4",) if marlin else ()):
        yield (
            f"WARNING: {kind} runs through Marlin, which unpacks the weights to 16 bits: often faster for one user's "
            "answers, slower for long prompts and many users. Unless the model's settings choose it, check that no "
            "variable forces it, and that the image is for this GPU"
        )
