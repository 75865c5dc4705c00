"""Runs commands on the two machines: this one, and the second over ssh, whose failures it explains."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from imagefactory.errors import EngineError, FactoryError, NetworkError, UsageError, clean

PATIENCE = 60.0
"""Seconds for a command that only looks."""
OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),  # a frozen machine is noticed
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=yes"),
)
SSH_FAILED = 255
NOT_FOUND = 127


class _Failure(NamedTuple):
    """What ssh says, what it means and what helps."""

    pattern: str
    what: str
    fix: str


FAILURES = (
    _Failure(
        r"Could not resolve hostname|Name or service not known",
        "{host} is not known.",
        "Use its address, or add it to ~/.ssh/config or /etc/hosts.",
    ),
    _Failure(
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No .* host key is known",
        "{host} has a host key that this machine does not know.",
        "Run `ssh {host}` once by hand and compare the key; if it was reinstalled, `ssh-keygen -R {host}` first.",
    ),
    _Failure(
        r"Permission denied",
        "{host} refuses this user's ssh keys.",
        "Run `ssh-copy-id {host}`; a passphrase needs an ssh-agent.",
    ),
    _Failure(
        r"Connection refused",
        "{host} refuses connections: no ssh server listens there.",
        "On the second Spark, run `sudo systemctl enable --now ssh`.",
    ),
    _Failure(
        r"timed out|Timeout, server|No route to host|Network is unreachable|Connection (closed|reset)|Broken pipe",
        "{host} does not answer.",
        "Check that it runs and that the cable or network between the two is up: `ping {host}`.",
    ),
)


class Machine(Protocol):
    """One of the two machines."""

    name: str

    def command(self, words: Sequence[str]) -> list[str]:
        """Return what to run here so that a command runs there."""

    def refuse(self, done: subprocess.CompletedProcess[str]) -> None:
        """Raise an error if the machine could not be reached."""


class Here:
    """The first Spark, on which the commands of this program run."""

    name = "this machine"

    def command(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def refuse(self, done: subprocess.CompletedProcess[str]) -> None:
        """There is nothing between."""


class There:
    """The second Spark: one connection that commands share, and that ends with the block of `reach`."""

    def __init__(self, host: str, folder: Path) -> None:
        self.name = host
        self.options = (*OPTIONS, "-o", f"ControlPath={folder}/ssh")

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ssh", *self.options, self.name, "--", shlex.join(words)]

    def refuse(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode == SSH_FAILED:
            raise self.explained(done.stderr)

    def explained(self, said: str) -> NetworkError:
        unknown = _Failure(
            "", "{host} cannot be reached over ssh.", "Run `ssh {host} true` by hand, and see what it says."
        )
        found = next((failure for failure in FAILURES if re.search(failure.pattern, said)), unknown)
        lines = [line for line in said.splitlines() if line.strip()]
        return NetworkError(
            "no-ssh",
            found.what.format(host=self.name),
            where=f"ssh {self.name}",
            why=clean(lines[-1]) if lines else "ssh says nothing.",
            fix=found.fix.format(host=self.name),
        )

    @contextmanager
    def lending(self, port: int) -> Iterator[int]:
        """Let the second Spark reach a port of this machine's loopback; yield the port on its own loopback."""
        forward = ("-R", f"127.0.0.1:0:127.0.0.1:{port}")
        done = _run(["ssh", *self.options, "-O", "forward", *forward, self.name], PATIENCE)
        if done.returncode or not done.stdout.strip().isdecimal():
            raise NetworkError(
                "no-ssh",
                f"{self.name} forwards no port back to this machine.",
                where=f"ssh -R {self.name}",
                why=clean(done.stderr) or "Its ssh server says nothing.",
                fix="Allow it there: `AllowTcpForwarding yes` in /etc/ssh/sshd_config.",
            )
        try:
            yield int(done.stdout)
        finally:
            given = ("-R", f"127.0.0.1:{done.stdout.strip()}:127.0.0.1:{port}")
            _run(["ssh", *self.options, "-O", "cancel", *given, self.name], PATIENCE)


@contextmanager
def reach(host: str) -> Iterator[There]:
    """Connect to the second Spark."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*", host):
        raise UsageError(
            "bad-option",
            f"{host!r} is no name of a machine.",
            where="the --with option",
            why="It is handed to ssh.",
            fix="Name the second Spark as you would for ssh: --with spark2, or --with user@192.168.100.2.",
        )
    # A socket's path may have a hundred characters, and those of TMPDIR may be many.
    with tempfile.TemporaryDirectory(prefix="pair-", dir="/tmp") as folder:
        there = There(host, Path(folder))
        run(there, "true")
        try:
            yield there
        finally:
            _run(["ssh", *there.options, "-O", "exit", host], PATIENCE)


def run(
    machine: Machine, *words: str, given: str | None = None, timeout: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine; raise an error if the machine cannot be reached or lacks the program."""
    done = _run(machine.command(words), timeout, given)
    machine.refuse(done)
    if done.returncode == NOT_FOUND:
        raise lacks(machine, words[0])
    return done


def check(machine: Machine, *words: str, given: str | None = None, timeout: float = PATIENCE) -> str:
    """Run a command that has to succeed; return what it prints."""
    done = run(machine, *words, given=given, timeout=timeout)
    if done.returncode:
        raise failed(machine, words, done.stderr or done.stdout)
    return done.stdout.strip()


def lacks(machine: Machine, program: str) -> EngineError:
    fixes = {
        "docker": "Install Docker there, and add the user to the group docker.",
        "python3": "Run `sudo apt install python3`.",
    }
    return EngineError(
        "no-program",
        f"{machine.name} has no {program}.",
        where=machine.name,
        why="A shell that ssh starts does not find it; it may be missing, or outside of PATH.",
        fix=fixes.get(program, "Install it there."),
    )


def failed(machine: Machine, words: Sequence[str], said: str) -> FactoryError:
    """Return the error for a command that failed."""
    lines = [clean(line) for line in said.splitlines() if line.strip()]
    why = lines[-1] if lines else "It prints nothing."
    fix = f"Run it there by hand: {shlex.join(words[:3])} …"
    if re.search("permission denied.*docker", said, re.IGNORECASE):
        fix = "Add the user to the group docker there: `sudo usermod -aG docker $USER`, and log in again."
    elif "Cannot connect to the Docker daemon" in said:
        fix = "Start Docker there: `sudo systemctl enable --now docker`."
    elif "no space left" in said.lower():
        fix = "Free space there: `docker system prune` removes images that no container uses."
    return EngineError("engine-failed", f"`{words[0]}` failed on {machine.name}.", where=machine.name, why=why, fix=fix)


def _run(words: Sequence[str], timeout: float, given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - ssh, or the words themselves
            words, input=given or "", capture_output=True, text=True, errors="replace", check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"timed out after {timeout:.0f} s")
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, NOT_FOUND, "", f"{words[0]}: not found")
