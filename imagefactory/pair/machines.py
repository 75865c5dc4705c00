"""Runs commands on the two machines: this one, and the second over ssh, whose failures it explains."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from imagefactory.check.smoke.containers import run_program
from imagefactory.errors import EngineError, FactoryError, NetworkError, UsageError, clean

PATIENCE = 60.0
"""Seconds for a command that only looks."""
OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),  # ssh fails where it would ask for a password
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),  # a frozen machine is noticed after 15 s
    # Commands share a connection. If this program is killed, it ends by itself soon after the last of them.
    *("-o", "ControlMaster=auto", "-o", "ControlPersist=10"),
)
MARK = "output of imagefactory"
"""The line before what a command prints: start-up files of a shell may print something, too."""
SSH_FAILED = 255  # ssh's own failures; otherwise it ends with the code of the command (ssh(1))
NOT_FOUND = 127  # of a shell that finds no such program


FAILURES = {
    r"Could not resolve hostname|Name or service not known": (
        "{host} is not known.",
        "Use its address, or add it to ~/.ssh/config or /etc/hosts.",
    ),
    r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|No .* host key is known": (
        "{host} has a host key that this machine does not know.",
        "Run `ssh {host}` once by hand and compare the key; if it was reinstalled, `ssh-keygen -R {host}` first.",
    ),
    r"Permission denied": (
        "{host} refuses this user's ssh keys.",
        "Run `ssh-copy-id {host}`; a passphrase needs an ssh-agent.",
    ),
    r"Connection refused": (
        "{host} refuses connections: no ssh server listens there.",
        "On the second Spark, run `sudo systemctl enable --now ssh`.",
    ),
    r"timed out|Timeout, server|No route to host|Network is unreachable|Connection (closed|reset)|Broken pipe": (
        "{host} does not answer.",
        "Check that it runs and that the cable or network between the two is up: `ping {host}`.",
    ),
    "": ("{host} cannot be reached over ssh.", "Run `ssh {host} true` by hand, and see what it says."),
}
"""What ssh may say, what it means and what helps; the last is for everything else."""
REMEDIES = {
    "permission denied.*docker": "Add the user to the group docker there: `sudo usermod -aG docker $USER`, and log in "
    "again.",
    "Cannot connect to the Docker daemon": "Start Docker there: `sudo systemctl enable --now docker`.",
    "no space left": "Free space there: `docker system prune` removes images that no container uses.",
    "rsync: .*permission denied": "Let the user write there: a folder that a container made belongs to root, so run "
    "`sudo chown -R $USER` on the folder of models there.",
}
INSTALL = {
    "docker": "Install Docker there, and add the user to the group docker.",
    "python3": "Run `sudo apt install python3`.",
}


class Machine:
    """The first Spark, on which the commands of this program run."""

    name = "this machine"

    def command(self, words: Sequence[str]) -> list[str]:
        """Return what to run here so that a command runs there."""
        return list(words)

    def refuse(self, done: subprocess.CompletedProcess[str]) -> None:
        """Raise an error if the machine could not be reached; there is nothing between to fail."""


HERE = Machine()


class There(Machine):
    """The second Spark: one connection that commands share, and that ends with the block of `reach`."""

    def __init__(self, host: str, socket: Path) -> None:
        self.name = host
        self.options = (*OPTIONS, "-o", f"ControlPath={socket}")

    def command(self, words: Sequence[str]) -> list[str]:
        # ssh joins its words with blanks, and a shell there splits them again: they are quoted for that shell.
        return ["ssh", *self.options, self.name, "--", shlex.join(words)]

    def refuse(self, done: subprocess.CompletedProcess[str]) -> None:
        if done.returncode == SSH_FAILED:
            raise self.explained(done.stderr)

    def explained(self, complaint: str) -> NetworkError:
        what, fix = next(meaning for pattern, meaning in FAILURES.items() if re.search(pattern, complaint))
        lines = [line for line in complaint.splitlines() if line.strip()] or ["ssh printed nothing."]
        return NetworkError(
            "no-ssh",
            what.format(host=self.name),
            where=f"ssh {self.name}",
            why=clean(lines[-1]),
            fix=fix.format(host=self.name),
        )


@contextmanager
def reach(host: str) -> Iterator[There]:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]*", host):
        raise UsageError(
            "bad-option",
            f"{host!r} is not the name of a machine.",
            where="the --with option",
            why="It is handed to ssh.",
            fix="Name the second Spark as you would for ssh: --with spark2, or --with user@192.168.100.2.",
        )
    # Where nobody else can reach it; ssh removes it when the connection ends, also after a kill of this program.
    folder = Path("~/.ssh").expanduser()
    folder.mkdir(mode=0o700, exist_ok=True)
    second = There(host, folder / f"pair-{os.getpid()}")
    run(second, "true")
    try:
        yield second
    finally:
        # ControlPersist would leave the connection open for a while.
        run_program(["ssh", *second.options, "-O", "exit", host], PATIENCE)


def run(machine: Machine, *words: str, given: str = "", timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine; raise an error if the machine cannot be reached or lacks the program."""
    done = run_program(machine.command(("sh", "-c", f'echo "{MARK}"; exec "$0" "$@"', *words)), timeout, given)
    machine.refuse(done)
    before, mark, after = done.stdout.partition(f"{MARK}\n")
    done.stdout = after if mark else before
    if done.returncode == NOT_FOUND:
        raise EngineError(
            "no-program",
            f"{machine.name} has no {words[0]}.",
            where=machine.name,
            why="A shell that ssh starts does not find it; it may be missing, or outside of PATH.",
            fix=INSTALL.get(words[0], "Install it there."),
        )
    return done


def check(machine: Machine, *words: str, given: str = "", timeout: float = PATIENCE) -> str:
    """Run a command that has to succeed; return what it prints."""
    done = run(machine, *words, given=given, timeout=timeout)
    if done.returncode:
        raise failed(machine, words, done.stderr or done.stdout)
    return done.stdout.strip()


def failed(machine: Machine, words: Sequence[str], complaint: str) -> FactoryError:
    lines = [clean(line) for line in complaint.splitlines() if line.strip()] or ["It printed nothing."]
    remedies = (fix for pattern, fix in REMEDIES.items() if re.search(pattern, complaint, re.IGNORECASE))
    return EngineError(
        "engine-failed",
        f"`{words[0]}` failed on {machine.name}.",
        where=machine.name,
        why=lines[-1],
        fix=next(remedies, f"Run it there by hand: {shlex.join(words[:3])} …"),
    )
