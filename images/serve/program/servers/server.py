"""What the program asks about a server. A third server is a third module with an answer to each question."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .. import processes
from ..memory import Share
from ..rules import of_server

if TYPE_CHECKING:
    from ..command import Command, Parallel
    from ..image import Image, Json
    from ..keys import Secrets
    from ..settings import Settings
    from ..timeline import Moments

_HOOK = str(Path(__file__).absolute().parents[2] / "hook")


class LogLines(NamedTuple):
    """The lines of a server's log that the companion reads."""

    telling: tuple[str, ...]
    """Words of lines that are copied."""
    steps: tuple[str, ...]
    """Beginnings of lines that only mark a moment: the rest of them, which may hold secrets, is not copied."""


class Choices(NamedTuple):
    """The backends and kernels that a server chose, in the order of its log."""

    attention: tuple[str, ...]
    kernels: tuple[str, ...]
    slow: tuple[str, ...]


class Work(NamedTuple):
    """What a server's metrics tell of its engine."""

    done: tuple[float, ...]
    """Numbers that change as it works."""
    running: float
    waiting: float
    """Requests."""
    deferred: float = 0.0
    """Requests that wait for something to be fetched, while nothing is."""


class Drafts(NamedTuple):
    """What a server counts of its drafts."""

    drafts: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    generated: float = 0.0
    """All tokens of answers, drafted or not."""
    positions: tuple[float, ...] = ()
    """How often the first, second … token of a draft was accepted; empty if the server does not say."""

    def since(self, before: Drafts) -> Drafts:
        positions = zip_longest(self.positions, before.positions, fillvalue=0.0)
        return Drafts(
            self.drafts - before.drafts,
            self.tokens - before.tokens,
            self.accepted - before.accepted,
            self.generated - before.generated,
            tuple(new - old for new, old in positions),
        )


class Handover(NamedTuple):
    """How a server is started, with its secrets where others cannot read them."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    key_file: str = ""
    """A file with the key, to be removed once the server has read it."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server: how settings become its command, and what it logs, measures and refuses."""

    name: str
    """Also its package, its program, its loggers, and the name of its version among the image's facts."""
    all_flags: str
    argument_files: tuple[str, ...]
    """The files and folders of its package that define its flags."""
    parallel: Parallel
    stretching: tuple[str, ...]
    """Flags that can extend a model's context."""
    stretching_variable: str
    """The variable that permits a context longer than the model's own."""
    shared_memory: int
    log: LogLines
    reads_key: bool
    """Whether it takes its API key from VLLM_API_KEY."""
    help_environment: Mapping[str, str]
    """The variables that its help needs on a machine without a GPU."""
    watched: Mapping[str, str]
    """The variables of a server that the companion watches."""
    address_variable: str
    """The variable with the address that it tells other nodes."""
    node_words: Callable[[Settings], list[str]]
    """Returns the flags of one of several nodes; none for a single one."""
    build: Callable[[Image, Settings], Command]
    passing: Callable[[Image, Sequence[str]], int]
    """Returns how many tokens layers with a sliding window hold beyond it while they are computed."""
    facts: Callable[[Settings, Command], dict[str, object]]
    """Returns what its rules ask for beyond the settings."""
    without_api: Callable[[Sequence[str]], bool]
    """Whether a command is for a node that serves no API, as all but the first of several."""
    hand_over: Callable[[Sequence[str], Secrets, Mapping[str, str]], Handover]
    """Returns the arguments and the environment of a start."""
    moments: Callable[[Iterable[str], Moments], Moments]
    """Adds what its log tells about a start; of several processes, the first to begin and the last to end count."""
    choices: Callable[[Iterable[str]], Choices]
    work: Callable[[bytes], Work]
    drafted: Callable[[bytes], Drafts]
    """Reads from its metrics what it counts of its drafts."""
    from_disk: Callable[[bytes], float]
    """Reads from its metrics how many tokens of prompts came from KV_DISK."""

    @property
    def command(self) -> tuple[str, str]:
        return self.name, "serve"

    @property
    def rules(self) -> Json:
        """What it refuses, and what its share of the memory means: see NAME.json beside this file."""
        return of_server(self.name)

    @property
    def share(self) -> Share:
        return Share(**self.rules["share"])


def work(pattern: re.Pattern[bytes], metrics: bytes) -> Work:
    """Sort figures of the metrics into those of the engine's work, for which the first group is there, and requests."""
    found = [(bool(worked), kind == b"running", float(value)) for worked, kind, value in pattern.findall(metrics)]
    done = tuple(value for worked, _, value in found if worked)
    running = sum(value for worked, runs, value in found if runs)
    return Work(done, running, sum(value for worked, runs, value in found if not worked and not runs))


def hook_variables(logger: str, lines: LogLines, file: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the hook: it guards the key and hides it, and copies log lines to a file, if any."""
    task = {"logger": logger, "file": file, **lines._asdict()}
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in {"", _HOOK}]
    return {
        "IMAGEFACTORY_LOG": json.dumps(task),
        "IMAGEFACTORY_STACKS": str(processes.STACKS),
        "PYTHONPATH": os.pathsep.join([_HOOK, *others]),
    }
