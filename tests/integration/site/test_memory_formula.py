"""The formula for memory in a browser, in Python and in the serve program's own check: none may disagree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page

from imagefactory.project.project import Project, locked_cells
from imagefactory.site.documents import as_script
from imagefactory.site.rendering import HERE
from imagefactory.site.starts import RESERVES, Machine, StartMemory, machines, program_start
from images.serve.program import checks
from images.serve.program import settings as program_settings
from images.serve.program.findings import Start
from images.serve.program.memory import KNOWN
from images.serve.program.readings import Gpu, Readings
from tests.fixtures.checkouts import REPOSITORY

PROJECT = Project(REPOSITORY)
CASES = 2000
FIT = "() => cases.map(({ needs, machine, ...asked }) => Memory.fit(needs, machine, asked))"
TOGETHER = "() => pairs.map(({ first, second, machine }) => Memory.together(first, second, machine))"


@pytest.fixture(scope="module")
def starts() -> list[tuple[Machine, Start, StartMemory]]:
    """Every locked image with a machine that it is for."""
    matrix, found = PROJECT.matrix, []
    for cell in locked_cells(PROJECT):
        start = program_start(PROJECT, cell)
        if memory := StartMemory.of(start) if matrix.archs[cell.arch].memory else None:
            found.append((machines(matrix, [cell])[0], start, memory))
    return found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page with the formula, and nothing to see."""
    page = browser.new_page()
    page.add_script_tag(content=as_script("startsData", {"reserves": RESERVES}))
    page.add_script_tag(path=HERE / "static" / "memory.js")
    yield page
    page.close()


def passes(start: Start, machine: Machine, share: float, context: int, *, disk: bool = False) -> bool:
    """Whether the memory check of the image's own program lets a start pass."""
    of_gpu = (None, None) if machine.unified else (machine.total, machine.free)
    gpus = (Gpu(machine.title, start.image.capability, *of_gpu),)
    names = start.settings.given & {"NODE_RANK", "HEAD_ADDRESS"}
    pair = {name: start.settings.text(name) for name in names}
    given = {"GPU_MEMORY_UTILIZATION": str(share), "MAX_MODEL_LEN": str(context), **pair}
    given |= {"KV_DISK": "/kv"} if disk else {}
    settings = program_settings.read(start.image, given)
    command = start.server.build(start.image, settings)
    readings = Readings(gpus, "", machine.total, machine.free)
    changed = start._replace(settings=settings, command=command, readings=readings)
    return checks.run(changed, ["memory"])[0].result == "ok"


def test_browser_python_and_serve_program_agree_on_random_questions(
    page: Page, starts: list[tuple[Machine, Start, StartMemory]]
) -> None:
    source, cases, outcomes = random.Random(36), [], Counter[str]()
    for _ in range(CASES):
        idle, start, needs = source.choice(starts)
        free = source.choice((idle.free, idle.total, source.randrange(1, idle.total)))
        context = source.choice((0, 8192, 65_536, 131_072, source.randint(1, 1_100_000)))
        users, disk = source.choice((1, 2, 4, 8, 16, 32, 300)), bool(needs.stage and source.randrange(2))
        cases.append((replace(idle, free=free), start, needs, context, users, disk))
    questions = [
        {"needs": needs, "machine": machine, "context": context, "users": users, "disk": disk}
        for machine, _, needs, context, users, disk in cases
    ]
    page.add_script_tag(content=as_script("cases", questions))
    for case, answer in zip(cases, page.evaluate(FIT), strict=True):
        machine, start, needs, context, users, disk = case
        expected = needs.fit(machine.memory._replace(stage=needs.stage if disk else 0), context, users)
        assert (answer["users"], answer["share"], answer["context"]) == (
            expected.users,
            expected.share,
            expected.context,
        ), case
        if expected.share >= 0.01:  # what a setting can say
            allowed = passes(start, machine, expected.share, expected.context, disk=disk)
            assert allowed == bool(expected.users), case
        outcomes["all" if expected.place(users) == 0 else "some" if expected.users else "none"] += 1
    assert min(outcomes.values()) > CASES // 20, outcomes


def test_two_images_that_are_said_to_run_together_do(
    page: Page, starts: list[tuple[Machine, Start, StartMemory]]
) -> None:
    source, outcomes = random.Random(2), Counter[bool]()
    of_spark = [entry for entry in starts if entry[0].name == "gb10"]
    pairs = [source.sample(of_spark, 2) for _ in range(300)]
    questions = [{"first": one[2], "second": two[2], "machine": one[0]} for one, two in pairs]
    page.add_script_tag(content=as_script("pairs", questions))
    for ((machine, first, _), (_, second, _)), answer in zip(pairs, page.evaluate(TOGETHER), strict=True):
        outcomes[answer is not None] += 1
        if answer:
            one, two = answer
            taken = one["taken"] + one["beside"]
            rest = replace(machine, free=int(machine.free - taken))
            assert taken + two["taken"] + two["beside"] <= machine.total - KNOWN.host_reserve
            assert passes(first, machine, one["share"], one["context"])
            assert passes(second, rest, two["share"], two["context"])
    assert min(outcomes[True], outcomes[False]) > len(pairs) // 20, outcomes
