"""Stays the first process of a start, so that its server can be ended, and the reason becomes the exit code.

The kernel protects process 1 of a container from the container's own signals: a server that hangs there could not be
killed. And whoever started it, Docker, its `--init` or a shell, would see a vLLM whose engine died end with code 0.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress

from . import liveness, private_files, processes, state

STOPPING = (signal.SIGTERM, signal.SIGINT)
UNASKED = 1
"""The exit code of a server that ended as if it had been stopped."""
FORWARDED = (*STOPPING, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def stay() -> None:
    """Fork; return in the child, which becomes the server, and end with its exit code in the parent."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    first = os.getpid()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what the server leaves behind comes to this process
    server = os.fork()
    if server:
        os._exit(_wait_for(server))
    # Nobody else would stop the server if the first process were killed, where that does not end the container.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != first:
        os._exit(128 + signal.SIGKILL)
    private_files.forget(f"{state.ENDING}.{os.getpid()}")  # of an earlier start whose server had the same number
    # A terminal sends ^C to the group of the parent, which forwards it.
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def _wait_for(server: int) -> int:
    stopped = False

    def forward(number: int, _: object) -> None:
        nonlocal stopped
        stopped = stopped or number in STOPPING
        with suppress(ProcessLookupError):
            os.kill(server, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    ended = 0
    while ended != server:
        ended, status = os.wait()  # this process also gets the orphans of others
    # An engine that outlives its server holds the GPU's memory, and the next start would lack it.
    for orphan in processes.tree(os.getpid(), without=(os.getpid(),)):
        with suppress(OSError):
            os.kill(orphan, signal.SIGKILL)
    with suppress(OSError, ValueError):
        ending = int(private_files.read(f"{state.ENDING}.{server}"))
        # A node that stops takes the other with it, which may be faster.
        if not (stopped and ending == liveness.PARTED):
            return ending
    code = os.waitstatus_to_exitcode(status)
    if stopped and code == -signal.SIGKILL:
        return 0
    if not stopped and code == 0:  # vLLM, if its engine died
        sys.stderr.write(f"[serve] the server ended by itself: code {UNASKED}\n")
        return UNASKED
    return code if code >= 0 else 128 - code
