"""What a start of each image takes of a machine's memory, and its command: all that pages compute with.

A page answers one question about a start, whether the memory suffices; the image checks the rest before it serves.
`fit` asks the serve program. `static/memory.js` has the same formula, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from imagefactory.launch.docker_run import kv_volume
from imagefactory.launch.preview import Preview
from imagefactory.plan.serve.description import describe_cell
from imagefactory.project.cells import Cell, default_version
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.serve_program import OK, Gpu, Readings, Start, checks, memory
from imagefactory.site.choosing import gpu_of
from imagefactory.site.image_page import ImagePage

CHECKS: Final = ("gpu", "kernels", "combination")
"""The checks beside memory that the arch and the image's defaults decide."""
PUBLISHED: Final = ("current", "update waiting")
OPTION: Final = " \\\n  "
"""What stands between the options of a command."""
KV_DISK: Final = "/kv"


RESERVES: Final = {"host": memory.KNOWN.host_reserve, "last": memory.KNOWN.last_reserve, "step": memory.KNOWN.step}
"""The memory that the serve program leaves to others, in bytes, and its step between contexts, in tokens."""


@dataclass(frozen=True)
class Machine:
    """A machine with its memory in bytes; `gpu` is what published figures call it."""

    name: str
    title: str
    gpu: str
    total: int
    free: int
    unified: bool

    @property
    def memory(self) -> memory.Machine:
        return memory.Machine(self.total, self.free, self.unified)


@dataclass(frozen=True)
class StartMemory:
    """What a start takes with the image's defaults, in bytes, tokens and users."""

    share: float
    """Of the machine's memory, which the server takes whatever the model needs."""
    of_free: bool
    """Whether it is a share of what is free, rather than of everything."""
    holds_working: bool
    """Whether the share includes the working memory, which otherwise comes on top."""
    weights: int
    drafter: int
    working: int
    per_token: int
    per_user: int
    window: int
    passing: int
    """Of layers with a sliding window, the tokens that they hold beyond it while they are computed."""
    per_passing: int
    context: int
    """What the image serves."""
    longest: int
    """What the model can."""
    users: int
    """How many the server answers at once; 0 if it decides that itself."""
    stage: int
    """The host's memory that KV_DISK takes; 0 if the image refuses KV_DISK."""

    @classmethod
    def of(cls, start: Start) -> Self | None:
        """Read a start; None if the size of its model is unknown before the download."""
        needs, share, settings = start.needs(), start.server.share, start.settings
        if needs.weights is None or not needs.per_token:
            return None
        return cls(
            settings.fraction("GPU_MEMORY_UTILIZATION") or share.default,
            share.of_free,
            share.holds_working,
            needs.weights,
            needs.drafter,
            memory.KNOWN.working,
            needs.per_token,
            needs.per_sequence,
            needs.window,
            needs.passing,
            needs.per_passing,
            settings.number("MAX_MODEL_LEN") or needs.context,
            needs.context,
            settings.number("MAX_NUM_SEQS") or 0,
            _stage(start),
        )

    def _users(self, machine: memory.Machine, share: float, context: int) -> int:
        """Return how many users with the whole context each a share has room for; 0 if the image would refuse."""
        sizes = self.weights, self.drafter, self.per_token, self.per_user, self.longest
        needs = memory.Needs(*sizes, self.window, self.passing, self.per_passing)
        kind = memory.Share(self.share, self.of_free, self.holds_working)
        if memory.judge(machine, needs, kind, share, context).setting:
            return 0
        left = share * kind.whole(machine) - kind.fixed(needs) - needs.computing(context)
        return math.floor(left / needs.sequence(context))

    def fit(self, machine: memory.Machine, context: int = 0, users: int = 1) -> Fit:
        """Choose the share for a question: the image's own, else the largest that the machine allows if that helps."""
        length = context or self.context
        default = Fit(self._users(machine, self.share, length), self.share, length)
        if default.users >= users:
            return default
        most = memory.largest_utilization(machine, memory.Share(self.share, self.of_free, self.holds_working))
        larger = Fit(self._users(machine, most, length), most, length)
        return larger if larger.users > default.users else default


def _stage(start: Start) -> int:
    known, pair = start.image.settings.get("KV_DISK"), (start.settings.number("NODES") or 1) > 1
    if pair or known is None or not start.image.at_least(known.since):
        return 0
    return (start.settings.number("KV_DISK_STAGE_GB") or 0) * memory.GB


@dataclass(frozen=True)
class Fit:
    """How an image would start: for how many users with the whole context each, 0 if it would refuse."""

    users: int
    share: float
    context: int

    def place(self, users: int) -> int:
        """0 if all users fit, 1 if some do, 2 if none."""
        return 0 if self.users >= users else 1 if self.users else 2


@dataclass(frozen=True)
class Command:
    """The command of a start, with places for settings, for an API key and for KV_DISK."""

    before: str
    setting: str
    """A setting in the command, which takes the place of SETTING."""
    key: str
    """What hands over the key in the user's environment, never its value."""
    disk: str
    """What keeps the KV cache on a volume."""
    after: str = ""

    @classmethod
    def of(cls, cell: Cell, image: ImagePage) -> Self:
        """Return the command for a published image."""
        before, _, after = image.docker_run.rpartition(OPTION)
        disk = f"{OPTION}--env KV_DISK={KV_DISK}{OPTION}--volume {kv_volume(cell)}:{KV_DISK}"
        return cls(before, f"{OPTION}--env SETTING", f"{OPTION}--env VLLM_API_KEY", disk, f"{OPTION}{after}")

    @classmethod
    def of_checkout(cls, source: str) -> Self:
        """Return the command for all others, with a place for TARGET; a new checkout knows keys and volumes itself."""
        return cls(build_it(source, "TARGET"), " --set SETTING", "", f" --set KV_DISK={KV_DISK}")


def build_it(source: str, target: str) -> str:
    """Return the commands for somebody who has nothing yet: a checkout, the image, a start."""
    clone = f"git clone {source} && cd {source.rpartition('/')[2]}"
    return f"{clone}\n./inv build --target {target}\n./inv run --target {target}"


@dataclass(frozen=True)
class ImageStart:
    """All that a page needs to offer an image."""

    slug: str
    model: str
    runs: str
    machine: str
    default: bool
    """Whether it stands for its model."""
    pair: bool
    state: str
    target: str
    answers: str
    reference: str
    """Of an image whose digest has to be checked; empty for others."""
    command: Command | None
    """None for an image that is not published."""
    memory: StartMemory | None
    """None for machines without a GPU, and for models of unknown size."""
    warnings: tuple[str, ...]


def image_starts(project: Project, images: Iterable[tuple[Cell, ImagePage]]) -> Iterator[ImageStart]:
    """Describe how images start with their defaults on an idle machine."""
    matrix = project.matrix
    for cell, image in images:
        start = program_start(project, cell)
        yield ImageStart(
            image.slug,
            cell.model,
            cell.runs,
            machine_name(matrix, cell),
            cell.version == default_version(matrix, cell.model),
            matrix.models[cell.model].sparks > 1,
            image.state,
            image.target,
            image.answers,
            image.reference if image.state == "update waiting" else "",
            Command.of(cell, image) if image.state in PUBLISHED else None,
            StartMemory.of(start) if matrix.archs[cell.arch].memory else None,
            tuple(finding.detail for finding in checks.run(start, CHECKS) if finding.result != OK),
        )


def program_start(project: Project, cell: Cell) -> Start:
    """Return a start as the image's own program would see it, with the image's defaults on an idle machine."""
    arch = project.matrix.archs[cell.arch]
    total, free = (arch.memory.total, arch.memory.free) if arch.memory else (None, None)
    # A GPU that shares the host's memory has none of its own to report.
    of_gpu = (None, None) if arch.memory and arch.memory.unified else (total, free)
    gpus = (Gpu(arch.gpu or "", arch.capability, *of_gpu),) if arch.capability else ()
    served = describe_cell(project, cell, project.wheel_lock(cell).kernels if project.is_locked(cell) else None)
    preview = Preview(project.root, served.description, served.model)
    return preview.start(project.matrix.models[cell.model].node_settings(0), Readings(gpus, "", total, free))


def machine_name(matrix: Matrix, cell: Cell) -> str:
    """Return the machine of a cell, as addresses name it."""
    pair = "-pair" if matrix.models[cell.model].sparks > 1 else ""
    return cell.arch + pair if len(matrix.archs[cell.arch].platforms) == 1 else f"{cell.arch}-{cell.machine}"


def machines(matrix: Matrix, cells: Iterable[Cell]) -> list[Machine]:
    """List the machines of cells whose memory is known, in the order of the matrix."""
    names = {machine_name(matrix, cell): cell for cell in cells}
    order = list(matrix.archs)
    rows = []
    for name, cell in sorted(names.items(), key=lambda entry: (order.index(entry[1].arch), entry[0])):
        arch = matrix.archs[cell.arch]
        title = arch.gpu or name
        if matrix.models[cell.model].sparks > 1:
            title = f"2 × {title}"  # noqa: RUF001 - on a page
        if memory_of_arch := arch.memory:
            gpu = gpu_of(matrix, cell.model, cell.arch)
            rows.append(Machine(name, title, gpu, memory_of_arch.total, memory_of_arch.free, memory_of_arch.unified))
    return rows
