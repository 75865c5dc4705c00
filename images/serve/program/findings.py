"""The input and the results of the checks before a start."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from . import checkpoint, kv_disk, memory, rules
from .command import Command, Split, split
from .errors import StartError
from .image import Image, Json
from .readings import Readings
from .servers.server import Server
from .settings import Settings

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
LARGER_DISK = "Free space there, or mount a larger disk: -v /path/on/the/host:/root/.cache/huggingface"


class Finding(NamedTuple):
    """A result of a check."""

    name: str
    result: str
    detail: str
    setting: str = ""
    value: str = ""
    allowed: str = ""
    remedy: str = ""

    def refusal(self) -> StartError:
        name, _, *what, remedy = self
        return StartError(name, *what, remedy=f"{remedy} (To start anyway: SKIP_CHECKS={name}.)")


class Start(NamedTuple):
    """The input of every check."""

    server: Server
    image: Image
    settings: Settings
    command: Command
    readings: Readings
    cache: str
    package: str | None
    """The folder of the server's package; None outside an image."""
    offline: bool = False
    """Whether the server need not ask the model hub."""

    @property
    def memory_floor(self) -> int:
        """The bytes that the host keeps; 0 where the GPU has memory of its own."""
        return (self.settings.number("MEMORY_FLOOR") or 0) * memory.GB if self.readings.unified else 0

    @property
    def share(self) -> int:
        """The bytes of the host's memory that the server takes; 0 where the GPU has memory of its own."""
        machine = self.readings
        if not machine.unified:
            return 0
        whole = self.server.share.whole(
            memory.Machine(machine.memory_total or 0, machine.memory_available or 0, machine.unified)
        )
        return int((self.settings.fraction("GPU_MEMORY_UTILIZATION") or self.server.share.default) * whole)

    @property
    def planned_rest(self) -> int | None:
        """The bytes that the host will have left beside the server, its own processes and some working memory."""
        available, beside = self.readings.memory_available, memory.KNOWN.last_reserve + memory.KNOWN.working
        return None if available is None else available - self.share - kv_disk.stage(self.settings) - beside

    @property
    def on_gpu(self) -> bool:
        return bool(self.image.capability)

    @property
    def nodes(self) -> int:
        """How many GPUs the model is spread over; each replica has as many."""
        return self.split.tensor * self.split.stages

    @property
    def split(self) -> Split:
        return split(self.command.arguments, self.server.parallel)

    @property
    def config(self) -> dict[str, object] | None:
        return checkpoint.config_of(self.folder)

    @property
    def folder(self) -> str | None:
        """The model's folder; None before the download."""
        return checkpoint.locate(self.command.model, self.command.revision, self.cache)

    @property
    def _left_as_they_are(self) -> bool:
        """Whether weights of 16 bits stay so, although this image quantizes them by default."""
        unset = ("", "auto")
        by_default = self.image.settings["QUANTIZATION"].default not in unset
        return by_default and self.image.facts.get("weights") == "bf16" and self.settings.text("QUANTIZATION") in unset

    @property
    def own_model(self) -> bool:
        """Whether the image serves its own model, so that its facts about the model apply."""
        if self.command.model == self.image.model["model"]:
            return True
        # A folder is taken for the image's own model unless its cache has another size.
        shape = checkpoint.shape(self.config)
        known = (self.image.facts.get("memory") or {}).get("kv_per_token")
        another = shape is not None and known is not None and shape.per_token != known
        return bool(self.settings.text("MODEL_PATH")) and not another

    def matching(self, kind: str, more: Mapping[str, object]) -> Iterator[Json]:
        """Yield the server's rules of a kind that hold, given facts beyond the settings."""
        own = {"version": self.image.version, "weights": self.image.facts.get("weights", "")}
        own["extras"] = " ".join(self.image.facts.get("extras", ()))
        facts = rules.Facts({**self.settings.values, **own, **more}, self.settings.given, self.image.at_least)
        return rules.matching(self.server.rules[kind], facts)

    def needs(self) -> memory.Needs:
        """Compute the memory that the model needs, from its files if they are on disk, else from the image's facts."""
        facts = (self.image.facts.get("memory") or {}) if self.own_model else {}
        folder = self.folder
        shape = checkpoint.shape(self.config)
        # Weights that the server quantizes while loading are smaller in memory than on disk: prefer the image's fact.
        size = "download" if self._left_as_they_are else "weights"
        weights = facts.get(size) or (checkpoint.weights_size(folder) if folder else None)
        per_token = shape.per_token if shape else facts.get("kv_per_token")
        per_sequence = shape.per_sequence if shape else facts.get("kv_per_sequence", 0)
        context = shape.context if shape else facts.get("context", 0)
        window, states = (shape.window, shape.states) if shape else (facts.get("window", 0), 0)
        per_passing = (per_sequence - states) // window if window else 0
        parts, factor = self.nodes, memory.compression(self.command.cache_dtype)
        shares = 1 if facts.get("latent") else parts
        return memory.Needs(
            weights // parts if weights else None,
            (facts.get("drafter", 0) if (self.command.speculative or {}).get("model") else 0),
            int(per_token * factor) // shares if per_token else None,
            per_sequence // parts,
            context,
            window,
            self.server.passing(self.image, self.command.arguments) if window else 0,
            int(per_passing * factor) // parts,
        )
