"""The state that a server is in: one verdict for its log, the health check, HTTP and other nodes.

The companion leaves a note, a file with a sentence, for each reason not to send requests; whoever asks reads them. The
guard in the server's own process reads them too, so this module imports next to nothing.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import private_files

READY = "ready"
"""The server answers sampled requests without waiting for a compiler."""
STARTING, HANGING, SHORT, ENDING = "starting", "stuck", "short", "ending"
"""Notes: the server is not ready yet; its engine is stuck; memory is short; it is ended, with this exit code.

The last one's name ends with the number of the server's process.
"""
COMPANION = "companion"
"""The file with the promise of the process beside the server, without which nobody sees whether the server hangs."""
FORSAKEN = 300.0
"""Seconds that the companion may be late with a sign of life before it counts as gone for good."""


class State(NamedTuple):
    """What a server is; one that is not alive will not get ready again, and is best started anew."""

    name: str
    reason: str = ""
    alive: bool = True


def find() -> State:
    """Return the state of the server, without asking the server; what nobody watches counts as ready."""
    late, server = _lateness()
    if private_files.exists(f"{ENDING}.{server}"):
        return State(ENDING, "the server is being ended", alive=False)
    if late == float("inf"):
        reason = "the program beside the server has ended: nobody would notice if the server hung"
        return State("unwatched", reason, alive=False)
    if late > 0:
        reason = f"the program beside the server has been silent for {late:.0f} s longer than it may be"
        return State("unwatched", reason, alive=late < FORSAKEN)
    for name in (HANGING, SHORT, STARTING):
        with suppress(OSError):
            return State(name, private_files.read(name))
    return State(READY)


def serves() -> bool:
    """Whether a server runs here, ready or not."""
    _, server = _lateness()
    return bool(server) and Path(f"/proc/{server}").exists()


def starting(doing: str) -> None:
    """Note what the server does before it is ready."""
    with suppress(OSError):
        private_files.write(STARTING, f"the server is starting: {doing}")


def promise(seconds: float) -> None:
    """Say in this process's name that it will promise again within some seconds."""
    with suppress(OSError, ValueError):
        until, born = time.monotonic() + seconds, _born(os.getpid())
        private_files.write(COMPANION, json.dumps([os.getpid(), born, until, os.getppid()]))


def _lateness() -> tuple[float, int]:
    """Return for how long the companion has broken its promise, and the number of the server's process.

    If it has ended, that is infinite; if it never made one, 0.
    """
    try:
        process, born, until, server = json.loads(private_files.read(COMPANION))
        late = time.monotonic() - float(until)
    except (OSError, ValueError, TypeError):
        return 0.0, 0
    with suppress(OSError, ValueError, LookupError):
        if _born(int(process)) == born:
            return max(0.0, late), server
    return float("inf"), server


def _born(process: int) -> str:
    """Return when a process started: its number may be another's by now."""
    stat = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    if stat[0] in "ZX":
        raise ProcessLookupError(process)
    return stat[19]
