"""Commands for two Sparks that serve one model; the first runs them, and reaches the second over ssh."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from imagefactory.cli import options
from imagefactory.cli.command import command, say, select_one, show, show_rows

if TYPE_CHECKING:
    from imagefactory.pair.containers import Container
    from imagefactory.project.project import Project

WITH = "the second Spark, as ssh knows it: spark2, or user@192.168.100.2"
SECOND = "Name the second Spark: --with spark2."
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
    from imagefactory.launch import prepare
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.pair import up as pairs
    from imagefactory.pair.machines import reach

    host = options.filled("--with", with_, SECOND)
    options.at_most_one(print=print_, compose=compose, recipe=recipe)
    seconds = options.number("--limit", limit, least=1) or 3600
    way = pairs.way_named("compose" if compose else recipe)
    cell = select_one(project, target)
    need = pairs.need_of(project, cell, cable)
    settings = prepare.settings_from(set)
    start = pairs.prepared(project, cell, given=settings, environment=os.environ, models=models or HUB_CACHE)
    with reach(host) as second:
        start = start.of(pairs.pulled(image or prepare.image_to_run(project, cell, say), say))
        pair = pairs.plan(cell, second, start, need, say)
        if print_ or compose or recipe:
            print(pairs.shown(pair, way), end="")
            return
        print(pairs.up(cell, pair, limit=seconds, say=say))


@command("pair", with_=WITH, cable=CABLE, models="the folder of downloaded models (default: ~/.cache/huggingface)")
def doctor(project: Project, target: str = "", with_: str = "", models: str = "", cable: str = "") -> None:
    """Look at this machine, a second one and the cable between them, and say what stands in the way."""
    from imagefactory.cli.show.tables import pair_examined
    from imagefactory.launch.docker_run import HUB_CACHE
    from imagefactory.pair.machines import reach
    from imagefactory.pair.problem import refuse_first
    from imagefactory.pair.rules import problems
    from imagefactory.pair.up import need_of, probe

    need = need_of(project, select_one(project, target), cable)
    with reach(options.filled("--with", with_, SECOND)) as second:
        head, worker = probe(second, models or HUB_CACHE)
    obstacles = problems(head, worker, need)
    show(pair_examined(head, worker, need.interface, obstacles))
    refuse_first(obstacles)


@command("pair", with_=FOUND)
def status(project: Project, with_: str = "") -> None:
    """Show both containers: state, health, image and address on the cable."""
    rows = []
    with ExitStack() as stack:
        for container in _containers(stack, with_):
            state = container.state()
            # `sha256:` and twelve digits, as Docker abbreviates
            details = (state.image[:19], state.address) if state else ("", "")
            health = container.health()[1] if state and state.runs else ""
            rows.append((container.machine.name, container.name, str(state or "none"), health, *details))
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
        head, worker = _containers(stack, with_)
        restart_both(head, worker, say)
        wait((head, worker), seconds, say)


@command("pair", with_=FOUND)
def down(project: Project, with_: str = "") -> None:
    """Stop and remove both containers; images and weights stay."""
    from imagefactory.pair.containers import find, remove_both

    remove_both(*find(with_), say)


def _containers(stack: ExitStack, host: str) -> tuple[Container, Container]:
    from imagefactory.pair.containers import Container, find
    from imagefactory.pair.machines import HERE, reach

    name, second = find(host)
    return Container(HERE, name), Container(stack.enter_context(reach(second)), name)
