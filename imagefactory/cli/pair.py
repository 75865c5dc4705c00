"""Commands for two Sparks that serve one model; the first runs them, and reaches the second over ssh."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say, select_one, show, show_rows
from imagefactory.errors import FactoryError

if TYPE_CHECKING:
    from imagefactory.launch.prepare import Start
    from imagefactory.pair.containers import Container
    from imagefactory.project.cells import Cell
    from imagefactory.project.project import Project

WITH = "the second Spark, as ssh knows it: spark2, or user@192.168.100.2"
FOUND = f"{WITH} (default: that of the pair on this machine)"
CABLE = "this machine's interface that leads to the second (default: found)"
LIMIT = "seconds that the servers may take to become healthy (default: 3600)"


@command(
    "pair",
    with_=WITH,
    image="run this image instead of the target's own: a reference by digest, or an image ID",
    models="keep downloaded models in this folder of both machines (default: ~/.cache/huggingface)",
    cable=CABLE,
    limit=LIMIT,
    print="only look at both machines, and print the commands that would start the servers",
    compose="only look at both machines, and print a compose file for each",
    recipe="only look at both machines, and print a file for each: quadlet (Podman)",
)
def up(
    project: Project,
    set: list[str],
    target: str = "",
    with_: str = "",
    image: str = "",
    models: str = "",
    cable: str = "",
    limit: str = "",
    print_: bool = False,
    compose: bool = False,
    recipe: str = "",
) -> None:
    """Serve a model on this machine and a second one: check both, copy image and weights, prove the cable, start.

    VLLM_API_KEY or VLLM_API_KEY_FILE sets the server's key, HF_TOKEN the token for gated models.
    """
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.pair import up as pairs
    from imagefactory.pair.files import shown
    from imagefactory.pair.machines import reach

    options.at_most_one(print=print_, compose=compose, recipe=recipe)
    seconds = options.number("--limit", limit, least=1) or 3600
    cell = select_one(project, target)
    with reach(options.filled("--with", with_)) as there:
        start = _start(project, cell, set, image, models or HUB_CACHE)
        pair = pairs.plan(project, cell, there, start, interface=cable, say=say)
        if print_ or compose or recipe:
            print(shown(pair, "compose" if compose else recipe), end="")
            return
        print(pairs.up(project, cell, pair, limit=seconds, say=say))


@command("pair", with_=WITH, cable=CABLE, models="the folder of downloaded models (default: ~/.cache/huggingface)")
def doctor(project: Project, target: str = "", with_: str = "", models: str = "", cable: str = "") -> None:
    """Look at this machine, a second one and the cable between them, and say what stands in the way."""
    from imagefactory.cli.show.pair_tables import pair_examined
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.pair.machines import reach
    from imagefactory.pair.problem import refuse_first
    from imagefactory.pair.rules import problems
    from imagefactory.pair.up import examine

    with reach(options.filled("--with", with_)) as there:
        head, worker, need = examine(project, select_one(project, target), there, models or HUB_CACHE, cable)
    found = problems(head, worker, need)
    show(pair_examined(head, worker, need.interface, found))
    refuse_first(found)


@command("pair", with_=FOUND)
def status(project: Project, with_: str = "") -> None:
    """Show both containers: state, health, image and address on the cable."""
    from imagefactory.pair.containers import both

    with ExitStack() as stack:
        found = list(both(*_containers(stack, with_)))
    rows = [
        (
            one.machine.name,
            one.name,
            str(state or "none"),
            health,
            state.image[:19] if state else "",
            state.address if state else "",
        )
        for one, state, health in found
    ]
    show_rows(rows, "machine", "container", "state", "health", "image", "address")


@command("pair", with_=FOUND, lines="how many lines of each (default: 100)", follow="go on until interrupted")
def logs(project: Project, with_: str = "", lines: str = "", follow: bool = False) -> None:
    """Print the logs of both servers, each line after its machine's name."""
    from imagefactory.pair.containers import follow as copy

    most = options.whole_number("--lines", lines) or 100
    with ExitStack() as stack:
        copy(*_containers(stack, with_), most, print, until_stopped=follow)


@command("pair", with_=FOUND, limit=LIMIT)
def restart(project: Project, with_: str = "", limit: str = "") -> None:
    """Stop both servers, start both again, and wait until they are healthy."""
    from imagefactory.pair.containers import restart_both
    from imagefactory.pair.up import wait

    seconds = options.number("--limit", limit, least=1) or 3600
    with ExitStack() as stack:
        here, there = _containers(stack, with_)
        restart_both(here, there, say)
        wait((here, there), seconds, say)


@command("pair", with_=FOUND)
def down(project: Project, with_: str = "") -> None:
    """Stop and remove both containers; images and weights stay."""
    from imagefactory.pair.containers import find, remove_both
    from imagefactory.pair.machines import reach

    name, host = find(with_)
    with ExitStack() as stack:
        try:
            there = stack.enter_context(reach(host))
        except FactoryError as error:
            remove_both(name, host, error, say)
        else:
            remove_both(name, host, there, say)


def _start(project: Project, cell: Cell, given: list[str], image: str, models: str) -> Start:
    from imagefactory.launch import prepare
    from imagefactory.pair.up import pulled

    found = pulled(image or prepare.image_to_run(project, cell), say)
    settings = prepare.settings_from(given)
    return prepare.prepare(project, cell, found, given=settings, environment=os.environ, models=models)


def _containers(stack: ExitStack, host: str) -> tuple[Container, Container]:
    from imagefactory.pair.containers import Container, find
    from imagefactory.pair.machines import Here, reach

    name, other = find(host)
    return Container(Here(), name), Container(stack.enter_context(reach(other)), name)
