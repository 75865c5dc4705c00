"""Watches over the server from its first moment: while it loads the model, is warmed up and serves.

A server that does not listen yet is stuck if none of its processes gets on. One that listens is asked, as `liveness`
says. It is unhealthy first; after HANG_LIMIT seconds it is ended.
"""

import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from . import health, liveness, private_files, processes, state
from .channel import Group
from .redaction import say
from .servers.server import Server

LOOK, SILENCE = 5.0, 60.0
"""Seconds between looks at the server, and of this process between two signs of life."""


class Watched(NamedTuple):
    """The server to watch."""

    server: Server
    address: health.Address
    """Port 0 if it cannot be asked: the head of several nodes judges then, or nobody."""
    model: str
    key: str
    limit: int
    """HANG_LIMIT."""
    group: Group | None
    cache: str
    """The folder for downloaded models."""


class Hang(NamedTuple):
    """What hangs, and since when."""

    text: str
    since: float


class Watch:
    """Looks at a server again and again; the caller has the clock."""

    def __init__(self, watched: Watched, process: int) -> None:
        self._watched = watched
        self._seen = liveness.HangDetector(time.monotonic())
        self._activity = processes.Activity(process, watched.cache)
        self._listens = False
        self.metrics: bytes | None = None
        """What the server told at the last look; None if it did not answer."""
        self._asked: list[bool] = []
        """The outcome of the request for one token, once there is one."""

    def look(self, now: float) -> Hang | None:
        """Look once; return what hangs."""
        told = None
        if self._watched.address.port:
            with suppress(OSError, ValueError):
                told = health.request(self._watched.address, "GET", "/metrics", key=self._watched.key).body
        self.metrics = told
        if told is not None and not self._listens:
            self._listens = True
            self._seen.see(now, None, waiting=False, alive=True)
        return self._serving(now, told) if self._listens else self._starting(now)

    def _starting(self, now: float) -> Hang | None:
        group, moves = self._watched.group, self._activity.moved()
        if group:
            group.moves = moves
        if not self._watched.address.port:
            return None
        alive = moves or self._compiles() or (group is not None and group.others_move)
        self._seen.see(now, None, waiting=True, alive=alive)
        if now - self._seen.moved < liveness.START_PATIENCE:
            return None
        text = "the start is stuck: no process of the server has computed, read or written anything since "
        return Hang(text + _ago(now, self._seen.moved), self._seen.moved)

    def _serving(self, now: float, told: bytes | None) -> Hang | None:
        seen, work = self._seen, self._watched.server.work(told) if told else None
        # A server that refuses requests refuses to be asked, too.
        alive = self._asked == [True] or self._compiles() or private_files.exists(state.SHORT)
        own = seen.asked is not None and not self._asked
        connected = liveness.connections(self._watched.address.port) - own
        waiting = max(work.running + work.waiting if work else 1.0, connected)
        starving = work is not None and work.waiting > own and work.running <= (seen.asked is not None)
        deferred = work is not None and work.deferred > 0
        seen.see(now, work and work.done, waiting=waiting > 0, alive=alive, starving=starving, deferred=deferred)
        if seen.asks(now, waiting=waiting > 0) or self._asked == [False]:
            self._asked = liveness.ask(self._watched.address, self._watched.model, self._watched.key)
        elif self._asked == [True]:
            self._asked = []
        if seen.stuck(now):
            text = f"the engine is stuck: no progress since {_ago(now, seen.waits)}, and no answer to a request for "
            text += f"one token; requests waiting: {waiting:.0f}" if waiting else "one token"
            return Hang(text, seen.waits)
        if seen.starves is not None and now - seen.starves >= liveness.STARVING:
            text = f"a request is never begun: it waits since {_ago(now, seen.starves)}, while others are answered"
            return Hang(text, seen.starves)
        return None

    def _compiles(self) -> bool:
        return liveness.compiling() or (self._watched.group is not None and self._watched.group.compiles)


def begin(watched: Watched, process: int) -> Watch:
    """Start to watch a server, in a thread that gives this process's signs of life."""
    watch = Watch(watched, process)
    threading.Thread(target=_keep_looking, args=(watch, watched, process), daemon=True).start()
    return watch


def _keep_looking(watch: Watch, watched: Watched, process: int) -> None:
    try:
        while os.getppid() == process:
            state.promise(SILENCE)
            time.sleep(LOOK)
            now = time.monotonic()
            judge(watch.look(now), watched, process, now)
    except Exception as error:  # noqa: BLE001 - without further signs of life, the health check says so
        say(f"the server is no longer watched: {type(error).__name__}")


def judge(hang: Hang | None, watched: Watched, process: int, now: float) -> None:
    """Note that a server hangs, and what it does; end it after its limit."""
    noted = private_files.exists(state.HANGING)
    if hang is None:
        if noted:
            private_files.forget(state.HANGING)
            say("the engine is making progress again")
        return
    text = hang.text + ("; another node may be the cause" if watched.group else "")
    with suppress(OSError):
        private_files.write(state.HANGING, text)
    if not noted:
        say(text)
        processes.tell(process)
    elif watched.limit and now - hang.since >= watched.limit:
        say(f"{text}. Ending the server with code {liveness.STUCK}, after HANG_LIMIT={watched.limit} s")
        liveness.end(process, liveness.STUCK)


def _ago(now: float, then: float) -> str:
    clock = time.strftime("%H:%M:%S UTC", time.gmtime(time.time() - now + then))
    return f"{clock} ({now - then:.0f} s ago)"
