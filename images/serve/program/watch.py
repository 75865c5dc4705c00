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

from . import ahead, health, liveness, private_files, readiness, readings, state, timeline
from . import command as commands
from . import link as links
from .channel import STARTING, Link
from .findings import Start
from .redaction import say
from .servers.server import Choices, hook_variables

START_LIMIT = 2 * 3600
"""Seconds for a first start, with download and autotuning."""
REPORT_EVERY = 600
"""Seconds between reports of draft acceptance."""
PAUSE = 2.0
SILENCE, KEY_LIMIT, WARM_UP_LIMIT = 60.0, 600.0, 2700.0
"""Seconds: of this process between two signs of life, until the server has refused a request without its key, and for a
round of warm-up requests, of which there are four, each with 600."""
LOOK, LOOK_AT_MEMORY, WARN_EVERY = 5.0, 1.0, 60.0
"""Seconds between looks at the server and at the host's memory, and between warnings."""
LOW_ACCEPTANCE = 0.1
UNKNOWN_PATH, REFUSALS = "/imagefactory", (401, 403)
"""A path that no server has: one that is not guarded responds with 404."""


class Task:
    """The task of the companion."""

    def __init__(
        self, start: Start, where: health.Address, key_file: str, began: float | None, link: Link | None
    ) -> None:
        self.server, self.address, self.link = start.server, where, link
        self.model, self.drafting = start.command.served_names[0], start.command.speculative is not None
        self.api_key, self.key_file = start.settings.secrets.api_key, key_file
        self.rounds, self.hang_limit = start.settings.number("WARMUP") or 0, start.settings.number("HANG_LIMIT") or 0
        self.memory_floor, self.compilers = start.memory_floor, _compilers(start)
        self.find_kernels = partial(ahead.find, start.image.facts, os.environ)
        self.kernels = self.find_kernels()
        self.began = began
        """When the program's process started, on the monotonic clock."""
        try:
            self.choices = private_files.write(f"choices.{os.getpid()}", "")
        except OSError:
            self.choices = ""


def accompany(
    start: Start, where: health.Address, key_file: str, began: float | None, link: Link | None
) -> Mapping[str, str]:
    """Start the companion of the server; return variables that make the server record its choices for it."""
    task = Task(start, where, key_file, began, link)
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
    share = start.settings.fraction("GPU_MEMORY_UTILIZATION") or start.server.share.default
    reserved = int(share * (machine.memory_total or 0)) if machine.unified else 0
    reserved += ahead.floor(start.memory_floor)
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
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C stops the server, and with it this process
    became = time.monotonic()
    started = became if task.began is None else task.began
    compiling = _compile(task)
    if task.memory_floor:
        threading.Thread(target=_guard_memory, args=(task.memory_floor, server), daemon=True).start()
    if task.link:
        threading.Thread(target=links.keep, args=(task.link, server, task.address.port), daemon=True).start()
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
    if task.link:
        task.link.state = links.READY
    say(f"ready: {task.address.url}/v1, model {task.model}, after {(moments.ready or 0) - started:.0f} s")
    # A report may fail; what watches over the server comes after it, whatever happens.
    try:
        _tell_start(task, moments)
    except Exception as error:  # noqa: BLE001 - of a server's words
        say(f"the report of the start failed: {type(error).__name__}")
    _watch_over(task, server)


def _compile(task: Task) -> int:
    """Start to compile what is missing; return the number of the process that does, 0 if there is none."""
    if task.kernels.missing and task.compilers:
        return ahead.begin(task.kernels.missing, task.compilers, ahead.floor(task.memory_floor))
    if task.kernels.missing:
        say("nothing is compiled beside the start: COMPILERS is 0, or memory is short")
    return 0


def _get_ready(task: Task, server: int, moments: timeline.Moments, compiling: int) -> timeline.Moments:
    """Wait for the kernels that are compiled beside the start, and until the server has answered a sampled request."""
    whole = task.address, task.model, task.api_key
    if compiling and ahead.runs(compiling):
        names = ", ".join(task.kernels.missing)
        say(f"the server listens; it is ready once {names} is compiled")
        while ahead.runs(compiling) and os.getppid() == server:
            state.starting(f"{names} is being compiled")
            state.promise(SILENCE)
            time.sleep(PAUSE)
        moments = moments._replace(kernels=time.monotonic())
    state.starting("it is being warmed up")
    state.promise(WARM_UP_LIMIT * task.rounds + SILENCE)
    answered = readiness.warm_up(*whole, task.rounds)
    moments = moments._replace(warm=time.monotonic() if answered else None)
    # Without a warm-up, the first user would wait for what could not be compiled beside the start.
    asks = task.rounds or (task.kernels.missing and task.find_kernels().missing)
    while asks and not answered and os.getppid() == server:
        state.promise(readiness.LIMIT + SILENCE)
        answered = readiness.answers(*whole)
        if not answered:
            time.sleep(PAUSE)
    return moments._replace(ready=time.monotonic())


def _asks_for_key(task: Task, server: int) -> bool:
    """See whether the server refuses who has no key; end one that does not, or that does not let itself be asked."""
    until, why = time.monotonic() + KEY_LIMIT, f"gave no answer to a request without its key for {KEY_LIMIT:.0f} s"
    while os.getppid() == server and time.monotonic() < until:
        state.promise(KEY_LIMIT)
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
    say(timeline.describe(task.server.moments(lines, moments), warm_up=bool(task.rounds)))
    if any(task.kernels):
        say(f"kernels of FlashInfer: {task.kernels.outcome(task.find_kernels())}")


def _listens(task: Task, server: int, started: float) -> bool:
    """Wait until the server takes requests; return whether it does."""
    said = time.monotonic()
    while not health.is_well(task.address):
        now = time.monotonic()
        state.promise(SILENCE)
        if os.getppid() != server or now - started > START_LIMIT:
            return False
        if task.link and task.link.state == STARTING and now - said >= WARN_EVERY:
            said = now
            say(f"not ready after {now - started:.0f} s; the other node, {task.link.other}, is alive")
        time.sleep(PAUSE)
    return True


def _watch_over(task: Task, server: int) -> None:
    """See to it that the server moves, and report draft acceptance, until the server ends."""
    watched, drafts, reported = liveness.HangDetector(time.monotonic()), (0.0, 0.0, 0.0), 0.0
    from_disk, told = 0.0, 0.0
    asked: list[bool] = []
    while os.getppid() == server:
        state.promise(SILENCE)
        time.sleep(LOOK)
        now, metrics = time.monotonic(), _metrics(task)
        done, requests = task.server.work(metrics) if metrics else (None, 1.0)
        # A server that refuses requests refuses to be asked, too.
        compiles = liveness.compiling() or (task.link is not None and task.link.compiles)
        watched.see(now, done, alive=asked == [True] or compiles or private_files.exists(state.SHORT))
        own = watched.asked is not None and not asked
        waiting = max(requests, liveness.connections(task.address.port) - own)
        if watched.asks(now, waiting=waiting > 0) or asked == [False]:
            asked = liveness.ask(task.address, task.model, task.api_key)
        elif asked == [True]:
            asked = []
        _judge(task, server, watched, now, int(waiting))
        if task.drafting and metrics and now - reported > REPORT_EVERY:
            line, reported = acceptance(drafts, task.server.drafted(metrics)), now
            if line:
                say(line)
                drafts = task.server.drafted(metrics)
        if (read := task.server.from_disk(metrics)) > from_disk and now - told >= WARN_EVERY:
            say(f"{read - from_disk:,.0f} tokens of prompts came from KV_DISK, {read:,.0f} since the start")
            from_disk, told = read, now


def _metrics(task: Task) -> bytes:
    try:
        return health.request(task.address, "GET", "/metrics", key=task.api_key, timeout=5).body
    except (OSError, ValueError):
        return b""


def _judge(task: Task, server: int, watched: liveness.HangDetector, now: float, waiting: int) -> None:
    noted = private_files.exists(state.HANGING)
    still = f"{now - watched.moved:.0f} s"
    if not watched.stuck(now):
        if noted:
            private_files.forget(state.HANGING)
            say("the engine is making progress again")
        return
    since = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - now + watched.moved))
    text = f"the engine is stuck: no progress since {since} ({still} ago), and no answer to a request for one token"
    text += f"; requests waiting: {waiting}" if waiting else ""
    text += "; the other node may be the cause" if task.link else ""
    if not noted:
        say(text)
    with suppress(OSError):
        private_files.write(state.HANGING, text)
    if task.hang_limit and now - watched.moved >= task.hang_limit:
        say(f"{text}. Ending the server with code {liveness.STUCK}, after HANG_LIMIT={task.hang_limit} s")
        liveness.end(server, liveness.STUCK)


def _guard_memory(floor: int, server: int) -> None:
    warned = -WARN_EVERY
    while os.getppid() == server:
        time.sleep(LOOK_AT_MEMORY)
        warned = look_at_memory(floor, server, time.monotonic(), warned)


def look_at_memory(floor: int, server: int, now: float, warned: float) -> float:
    """Warn, refuse requests or end the server before the host freezes; return when the last warning was."""
    available, waits = readings.memory()[1], liveness.pressure()
    verdict, refusing = liveness.short_of_memory(available, waits, floor), private_files.exists(state.SHORT)
    left = f"{(available or 0) / liveness.GB:.1f} GB of memory are left"
    if not verdict:
        if refusing:
            private_files.forget(state.SHORT)
            say(f"{left}: accepting requests again")
        return warned
    text = f"{left} (MEMORY_FLOOR is {floor // liveness.GB}), and everything waited for memory in "
    text += f"{waits:.0f} % of the last 10 s"
    if verdict == "end":
        say(f"{text}: ending the server with code {liveness.MEMORY}, before the host freezes")
        liveness.end(server, liveness.MEMORY)
        return now
    if now - warned >= WARN_EVERY:
        say(f"WARNING: {text}: lower GPU_MEMORY_UTILIZATION, or end other programs")
        warned = now
    if verdict == "refuse" and not refusing:
        with suppress(OSError):
            private_files.write(state.SHORT, f"The server takes no new requests: {text}.")
            enough = f"{liveness.WARNING * floor / liveness.GB:.0f} GB"
            say(f"{text}: new requests are refused until {enough} are left")
    return warned


def acceptance(before: tuple[float, float, float], now: tuple[float, float, float]) -> str:
    """Describe the draft acceptance since the last report; empty if there were no drafts."""
    drafts, drafted, accepted = (new - old for new, old in zip(now, before, strict=True))
    if drafts <= 0 or drafted <= 0:
        return ""
    line = (
        f"draft acceptance {accepted / drafted:.0%}: {accepted / drafts:.1f} of {drafted / drafts:.0f} "
        f"tokens per draft ({drafts:.0f} drafts)"
    )
    if accepted / drafted < LOW_ACCEPTANCE:
        line += "; DFLASH_DRAFTER=off may be faster for this kind of text"
    return line


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
            f"WARNING: {kind} runs through Marlin, which only unpacks the weights. A GB10 has {kind} units: "
            "check that no variable or flag forces Marlin, and that the image is for this GPU"
        )
