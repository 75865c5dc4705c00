"""What the program asks about a server. A third server is a third folder with an answer to each question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..memory import Share
from ..rules import of_server

if TYPE_CHECKING:
    from ..command import Command
    from ..image import Image, Json
    from ..keys import Secrets
    from ..settings import Settings
    from ..timeline import Moments


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


class Handover(NamedTuple):
    """How a server is started, with its secrets where others cannot read them."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    key_file: str = ""
    """A file with the key, to be removed once the server has read it."""


class Server(ABC):
    """A server: how settings become its command, and what it logs, measures and refuses."""

    name: str
    """Also its package, its program, its loggers, and the name of its version among the image's facts."""
    all_flags: str
    """The command that lists its flags."""
    argument_files: tuple[str, ...]
    """The files and folders of its package that define its flags."""
    parallel: tuple[tuple[str, ...], ...]
    """The flags that spread a model over GPUs; their values are multiplied."""
    stretching: tuple[str, ...]
    """Flags that can extend a model's context."""
    stretching_variable: str
    """The variable that permits a context longer than the model's own."""
    shared_memory: int
    """Bytes that its processes need in /dev/shm."""
    log: LogLines
    reads_key: bool
    """Whether it takes its API key from VLLM_API_KEY."""
    kills_itself = False
    """Whether it ends by a signal to itself, which process 1 of a container cannot get."""

    @property
    def program(self) -> str:
        """Its program in the image."""
        return f"/opt/venv/bin/{self.name}"

    @property
    def command(self) -> tuple[str, str]:
        """The words that a command starts with."""
        return self.name, "serve"

    @property
    def rules(self) -> Json:
        """What it refuses, and what its share of the memory means: see rules.json in its folder."""
        return of_server(self.name)

    @property
    def share(self) -> Share:
        """What GPU_MEMORY_UTILIZATION means."""
        return Share(**self.rules["share"])

    @abstractmethod
    def build(self, image: Image, settings: Settings) -> Command:
        """Build the recommended command."""

    @abstractmethod
    def facts(self, settings: Settings, built: Command) -> dict[str, object]:
        """Return what its rules ask for beyond the settings."""

    @abstractmethod
    def without_api(self, words: Sequence[str]) -> bool:
        """Whether a command is for a node that serves no API, as all but the first of several."""

    @abstractmethod
    def hand_over(self, words: Sequence[str], secrets: Secrets, variables: Mapping[str, str]) -> Handover:
        """Return the arguments and the environment of a start."""

    @abstractmethod
    def help_environment(self) -> dict[str, str]:
        """Return the variables that its help needs on a machine without a GPU."""

    @abstractmethod
    def moments(self, lines: Iterable[str], moments: Moments) -> Moments:
        """Add what its log tells about a start; of several processes, the first to begin and the last to end count."""

    @abstractmethod
    def choices(self, lines: Iterable[str]) -> Choices:
        """Find the backends and kernels in lines of its log."""

    @abstractmethod
    def drafted(self, metrics: bytes) -> tuple[float, float, float]:
        """Read the numbers of drafts, drafted tokens and accepted tokens from its metrics."""
