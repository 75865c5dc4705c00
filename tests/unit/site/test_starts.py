"""What a start takes of a machine's memory, and which start answers a question."""

from __future__ import annotations

from imagefactory.project.cells import Cell, buildable
from imagefactory.project.project import Project
from imagefactory.site.starts import Fit, StartMemory, machines, program_start
from images.serve.program import checks
from images.serve.program.memory import Machine
from tests.fixtures.checkouts import REPOSITORY

PROJECT = Project(REPOSITORY)


def memory_of(cell: Cell) -> StartMemory:
    found = StartMemory.of(program_start(PROJECT, cell))
    assert found is not None
    return found


def spark(free: float = 122.4) -> Machine:
    known = PROJECT.matrix.archs["gb10"].memory
    assert known is not None
    return Machine(known.total, int(free * 1e9), known.unified)


def fit(model: str, *, free: float = 122.4, context: int = 0, users: int = 1) -> Fit:
    """How an image of this checkout starts on a DGX Spark with so many gigabytes left."""
    return memory_of(Cell(model, "0.32.0", "gb10", "linux/arm64")).fit(spark(free), context, users)


def test_every_image_starts_on_an_idle_machine_with_its_own_defaults() -> None:
    refused = []
    for cell in (cell for cell in buildable(PROJECT.matrix) if PROJECT.matrix.archs[cell.arch].memory):
        start = program_start(PROJECT, cell)
        findings = checks.run(start, ("gpu", "kernels", "memory", "combination"))
        refused += [(str(cell), finding) for finding in findings if finding.result == "fail"]
        memory, [machine] = StartMemory.of(start), machines(PROJECT.matrix, [cell])
        assert memory is not None, cell
        assert memory.fit(machine.memory).share == memory.share, cell
    assert refused == []


def test_an_image_keeps_its_share_of_the_memory_where_that_suffices() -> None:
    own = memory_of(Cell("qwen3.6-35b-a3b-nvfp4", "0.32.0", "gb10", "linux/arm64"))
    found = own.fit(spark())
    assert (found.share, found.context) == (own.share, own.context)
    assert found.users > 1


def test_a_question_changes_what_it_has_to() -> None:
    # 0.85 of 128.5 GB is more than the 100 GB that are left: 96 GB, as 4 GB have to remain.
    found = fit("laguna-s-2.1-nvfp4", free=100, context=65_536)
    assert (found.share, found.context, found.place(1)) == (0.74, 65_536, 0)
    many, few = (fit("qwen3.6-35b-a3b-nvfp4", context=262_144, users=users) for users in (32, 1))
    assert many.users > few.users
    assert many.share > few.share
    assert [many.place(many.users), many.place(many.users + 1)] == [0, 1]


def test_what_does_not_fit_has_room_for_nobody() -> None:
    assert fit("gpt-oss-120b", free=60).users == 0, "too large"
    assert fit("gpt-oss-120b", context=262_144).users == 0, "longer than the model can"
    assert fit("gemma4-31b", context=131_072, users=32).place(32) == 1
    assert fit("gemma4-31b", context=4096, users=2).place(2) == 0
