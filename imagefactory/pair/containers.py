"""The two containers of a pair: finding them by their labels, their state, and stopping and starting both."""

import json
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from imagefactory.errors import NetworkError, UsageError, clean
from imagefactory.launch.docker_run import STOP_SECONDS
from imagefactory.pair.machines import HERE, Machine, check, failed, reach, run
from imagefactory.plan.serve.image_paths import ENTRYPOINT
from imagefactory.store.progress import Say, count

PAIR: Final = "imagefactory.pair"
"""The label of both containers; its value is the other machine's name."""
START: Final = "imagefactory.pair.start"
"""The label with a digest of how the container was started."""
ADDRESS: Final = "imagefactory.pair.address"
"""The label with the machine's own address on the cable."""
REFUSALS: Final = range(64, 69)
"""Exit codes of the serve program (its errors.py) that another attempt does not change; 69 to 71 are worth one."""
_GONE = "No such (object|container)"  # versions of Docker differ


@dataclass(frozen=True)
class State:
    """A container of the pair, as Docker sees it."""

    status: str
    code: int
    restarts: int
    image: str
    other: str
    """The other machine; empty for a container that is not of a pair."""
    start: str
    address: str

    @property
    def runs(self) -> bool:
        return self.status == "running"

    def __str__(self) -> str:
        ended = "" if self.runs else f" with code {self.code}"
        again = f", restarted {count(self.restarts, 'time')}" if self.restarts else ""
        return f"{self.status}{ended}{again}"


@dataclass(frozen=True)
class Container:
    """The container on one of the machines."""

    machine: Machine
    name: str

    def state(self) -> State | None:
        done = run(self.machine, "docker", "container", "inspect", self.name)
        if done.returncode:
            if re.search(_GONE, done.stderr):
                return None
            raise failed(self.machine, ("docker", "inspect"), done.stderr)
        [described] = json.loads(done.stdout)
        state, labels = described["State"], described["Config"]["Labels"] or {}
        marks = (labels.get(name, "") for name in (PAIR, START, ADDRESS))
        return State(state["Status"], state["ExitCode"], described["RestartCount"], described["Image"], *marks)

    def health(self) -> tuple[bool, str]:
        """Ask the server's companion for its health, and return its sentence."""
        done = run(self.machine, "docker", "exec", self.name, *ENTRYPOINT, "health")
        return not done.returncode, clean(done.stdout or done.stderr) or "no answer"

    def log(self, lines: int) -> str:
        done = run(self.machine, "docker", "logs", "--tail", str(lines), self.name)
        return done.stdout + done.stderr  # they were written by one program, mostly to its error stream

    def stop(self) -> None:
        words = ("docker", "stop", "--time", str(STOP_SECONDS), self.name)
        # Docker kills it after STOP_SECONDS; the rest is for the daemon and for ssh.
        check(self.machine, *words, timeout=STOP_SECONDS + 60)

    def remove(self) -> bool:
        """Stop and remove it; return whether there was one."""
        if self.state() is None:
            return False
        self.stop()
        check(self.machine, "docker", "rm", "--force", self.name)
        return True


def find(host: str = "") -> tuple[str, str]:
    """Return the name of the pair's containers and of its second machine, by the labels of this machine's container."""
    form = f'{{{{.Names}}}} {{{{.Label "{PAIR}"}}}}'
    lines = check(HERE, "docker", "ps", "--all", "--filter", f"label={PAIR}", "--format", form).splitlines()
    labelled = sorted({(name, second) for line in lines for name, _, second in [line.partition(" ")]})
    pairs = [(name, second) for name, second in labelled if not _labelled_by_image(name)]
    chosen = [pair for pair in pairs if not host or pair[1] == host]
    if len(chosen) == 1:
        return chosen[0]
    what, why = "There is no pair on this machine.", "No container here has the label of a pair."
    fix = f"Start one with `./inv pair up TARGET --with {host or 'spark2'}`."
    if pairs:
        what = f"There are {len(pairs)} pairs on this machine." if chosen else f"There is no pair with {host} here."
        why = ", ".join(f"{name} is with {second}" for name, second in chosen or pairs) + "."
        fix = (
            "Name the second machine as `pair up` did: " + " or ".join(f"--with {second}" for _, second in pairs) + "."
        )
    raise UsageError("no-pair", what, where="docker ps", why=why, fix=fix)


def _labelled_by_image(name: str) -> bool:
    """Whether a container has the label from its image: anybody may write an image, and name a machine in it."""
    image = check(HERE, "docker", "container", "inspect", "--format", "{{.Image}}", name)
    return PAIR in check(HERE, "docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image)


def remove_both(name: str, host: str, say: Say) -> None:
    """Remove both containers; the head's first, so that it can finish its requests."""

    def remove(machine: Machine) -> None:
        removed = Container(machine, name).remove()
        say(f"{machine.name}: {'removed' if removed else 'no container'} {name}")

    remove(HERE)
    try:
        with reach(host) as second:
            remove(second)
    except NetworkError:
        say(f"{host}: its container stays, and ends its server when it misses the other")
        raise


def restart_both(head: Container, worker: Container, say: Say) -> None:
    # At the same time: a server that misses the other ends by itself, with a failure in its log.
    with ThreadPoolExecutor() as pool:
        list(pool.map(Container.stop, (head, worker)))
    for container in (worker, head):
        check(container.machine, "docker", "start", container.name)
        say(f"{container.machine.name}: started {container.name}")


def follow(head: Container, worker: Container, lines: int, tell: Say, *, until_stopped: bool) -> None:
    """Print the logs of both, each line after its machine's name."""

    def copy(container: Container) -> None:
        words = ("docker", "logs", "--tail", str(lines), *(["--follow"] if until_stopped else []), container.name)
        command = container.machine.command(words)
        with subprocess.Popen(  # noqa: S603 - ssh or docker
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                with lock:
                    tell(f"{container.machine.name:>{width}} | {line.rstrip()}")

    lock = threading.Lock()
    width = max(len(container.machine.name) for container in (head, worker))
    with ThreadPoolExecutor() as pool:
        list(pool.map(copy, (head, worker)))
