"""Starts a pair: looks once at both machines, decides what is missing, and does that.

An interrupted `up` is simply repeated: what it did is seen, and not done again.
"""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from imagefactory.errors import CheckError, EngineError, clean, unknown_name
from imagefactory.launch.docker_run import Launch, compose, docker_once, docker_run, shell_line
from imagefactory.launch.prepare import UNKNOWN, Start, prepare
from imagefactory.launch.recipes import QUADLET, quadlet
from imagefactory.pair import images, weights
from imagefactory.pair.cable import Cable, find_cable
from imagefactory.pair.containers import ADDRESS, PAIR, REFUSALS, START, Container, State
from imagefactory.pair.images import Image
from imagefactory.pair.machines import HERE, Machine, There, check, run
from imagefactory.pair.node import PROBE, Node
from imagefactory.pair.problem import refuse_first
from imagefactory.pair.rules import Need, problems
from imagefactory.pair.serving import complete, introduction
from imagefactory.pair.weights import Models
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import canonical_json, sha256_of
from imagefactory.store.paths import expand_home
from imagefactory.store.progress import Say

PAIR_SECRET, SECRET_PLACE = "PAIR_SECRET_FILE", "/run/secrets/pair"
SECRET_FILE = ".cache/imagefactory/pair-secret"  # noqa: S105 - a path
"""In the home of the user on both machines."""
VERBS = "/dev/infiniband"
"""The host's RDMA devices, which NCCL opens."""
PROOF = 180.0
"""Seconds for the proof, which has limits of its own: most are for loading torch."""
EVERY = 2.0
"""Seconds between two looks at the containers."""
SAY_EVERY = 60.0
"""Seconds after which a sentence that still holds is said again."""
RESTARTS = 3
"""Restarts of a first start after which the pair counts as broken."""
Way = Callable[[Launch], str]
WAYS: dict[str, Way] = {"": lambda launch: shell_line(docker_run(launch)) + "\n", "compose": compose, QUADLET: quadlet}
"""How a start is written down."""
UNSEEN = {"NODES": "2", "NODE_RANK": "0", "HEAD_ADDRESS": "192.0.2.1"}
"""Settings in the place of the cable's, which are known once both machines were looked at (RFC 5737)."""


@dataclass(frozen=True)
class View:
    """What both machines are like: the first Spark's part before the second's."""

    nodes: tuple[Node, Node]
    containers: tuple[State | None, State | None]
    images: tuple[Image, Image | None]
    models: Models
    """Of the first; what the second has of them is in its description."""

    @property
    def weights_to_copy(self) -> int | None:
        """The bytes of weights that the second machine lacks; None if it has what the first has."""
        ours, theirs = (node.snapshots for node in self.nodes)
        lacking = [
            size
            for folder, files in ours.items()
            for path, size in files.items()
            if theirs.get(folder, {}).get(path) != size
        ]
        return sum(lacking) if lacking or self.models.lacking else None


class Step(Enum):
    """What `up` may have to do, in this order."""

    SEND_IMAGE = auto()
    DOWNLOAD_WEIGHTS = auto()
    COPY_WEIGHTS = auto()
    REMOVE_CONTAINERS = auto()
    PROVE_CABLE = auto()
    START_SERVERS = auto()


@dataclass(frozen=True)
class Pair:
    """Two launches of one image."""

    start: Start
    second: There
    view: View
    head: Launch
    worker: Launch

    @property
    def containers(self) -> tuple[Container, Container]:
        return containers_of(self.start, self.second)

    @property
    def nodes(self) -> list[tuple[Machine, Launch]]:
        """Both machines, in the order of their starts."""
        return [(self.second, self.worker), (HERE, self.head)]


def containers_of(start: Start, second: There) -> tuple[Container, Container]:
    return Container(HERE, start.launch.container), Container(second, start.launch.container)


def prepared(
    project: Project, cell: Cell, *, given: Mapping[str, str], environment: Mapping[str, str], models: str
) -> Start:
    """Prepare a start without a look at a machine: what is wrong with settings is said first.

    The image and the cable's settings come later.
    """
    start = prepare(project, cell, UNKNOWN, given={**UNSEEN, **given}, environment=environment, models=models)
    settings = {name: value for name, value in start.launch.given.items() if name in given or name not in UNSEEN}
    return replace(start, launch=replace(start.launch, given=settings))


def probe(second: There, models: str, *snapshots: str) -> tuple[Node, Node]:
    def look_at(machine: Machine, name: str) -> Node:
        words = ("python3", "-", "--weights", models, *snapshots)
        return Node.read(check(machine, *words, given=PROBE.read_text("utf-8")), name)

    with ThreadPoolExecutor() as pool:
        ours, theirs = pool.submit(look_at, HERE, socket.gethostname()), pool.submit(look_at, second, second.name)
        return ours.result(), theirs.result()


def image_name(cell: Cell) -> str:
    """Return the name that a sent image gets; a daemon with another store knows it by another id."""
    return f"spark-{cell.server}:{cell.slug}"


def look(cell: Cell, second: There, start: Start) -> View:
    """Look at both machines; nothing is changed."""
    ours = images.find(HERE, start.launch.image)
    assert ours is not None, "it was pulled"  # noqa: S101
    models = weights.look(start.launch)
    nodes = probe(second, start.launch.models, *models.folders)
    head, worker = containers_of(start, second)
    if nodes[1].docker is None:
        return View(nodes, (head.state(), None), (ours, None), models)
    theirs = images.find(second, ours.id, image_name(cell))
    same = theirs if theirs and theirs.contents == ours.contents else None
    return View(nodes, (head.state(), worker.state()), (ours, same), models)


def plan(cell: Cell, second: There, start: Start, need: Need, say: Say) -> Pair:
    """Look at both machines, and decide how the servers are started; raise what stands in the way."""
    view = look(cell, second, start)
    ours, theirs = view.images
    need = replace(need, image=0 if theirs else ours.size, weights=view.weights_to_copy)
    obstacles = problems(*view.nodes, need)
    refuse_first(obstacles)
    for obstacle in obstacles:
        say(f"- {obstacle.what} {obstacle.why} {obstacle.fix}")
    cable = find_cable(*view.nodes, need.interface)
    ends = zip(view.nodes, (cable.head, cable.worker), strict=True)
    say("cable: " + ", ".join(f"{node.host} {end.interface} {' '.join(end.devices)}".strip() for node, end in ends))
    return pair_of(start, second, cable, view)


def need_of(project: Project, cell: Cell, interface: str) -> Need:
    """Return what a pair needs; raise an error if this machine has no such interface."""
    names = [name for _, name in socket.if_nameindex()]
    if interface and interface not in names:
        raise unknown_name("interface of this machine", interface, names, "the --cable option")
    return Need(cell.platform, bool(project.matrix.archs[cell.arch].capability), interface)


def pair_of(start: Start, second: There, cable: Cable, view: View) -> Pair:
    """Return the launches of both machines, with every address and device set."""
    others, addresses = (second.name, view.nodes[0].host), (cable.head.address, cable.worker.address)
    launches = []
    for rank, node in enumerate(view.nodes):
        models = start.launch.models
        launch = replace(
            start.launch,
            given={**cable.settings(rank), PAIR_SECRET: SECRET_PLACE, **start.launch.given},
            mounts={**start.launch.mounts, f"{node.home}/{SECRET_FILE}": SECRET_PLACE},
            key_file=None if rank else start.launch.key_file,  # the second has no API
            # docker_run would put this machine's home in the place of ~.
            models=models.replace("~", node.home, 1) if rank and models.startswith("~/") else models,
            devices=(VERBS,) if node.verbs else (),
        )
        labels = {PAIR: others[rank], ADDRESS: addresses[rank]}
        # It covers all but itself: the next `up` leaves running containers alone if theirs is the same.
        mark = sha256_of(canonical_json([docker_run(launch), labels]))
        launches.append(replace(launch, labels={**labels, START: mark}))
    return Pair(start, second, view, *launches)


def share_secret(pair: Pair) -> None:
    """See that both machines have the same secret, by which the nodes know each other; it stays for later starts."""
    ours = Path(pair.view.nodes[0].home, SECRET_FILE)
    if not ours.exists():
        ours.parent.mkdir(parents=True, exist_ok=True)
        with open(ours, "x", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_hex(32))
    # Over ssh and by standard input: no command and no other user of either machine sees it.
    script = 'umask 077; mkdir -p "${1%/*}"; cat >"$1.new"; mv "$1.new" "$1"'
    theirs = f"{pair.view.nodes[1].home}/{SECRET_FILE}"
    check(pair.second, "sh", "-c", script, "sh", theirs, given=ours.read_text("ascii"))


def way_named(name: str) -> Way:
    if name not in WAYS:
        raise unknown_name("recipe for a pair", name, [QUADLET], "the --recipe option")
    return WAYS[name]


def shown(pair: Pair, way: Way) -> str:
    """Return both starts for people or another launcher, each after a comment that names its machine."""
    share_secret(pair)
    return "\n".join(f"# {machine.name}\n{way(launch)}" for machine, launch in pair.nodes)


def decide(pair: Pair) -> list[Step]:
    """Return what is left to do, from what was seen; raise an error if a container's name is taken."""
    view = pair.view
    states = list(zip(pair.containers, view.containers, (pair.head, pair.worker), strict=True))
    if all(state and state.runs and state.start == launch.labels[START] for _, state, launch in states):
        return []
    for container, state, _ in states:
        if state and state.runs and not state.other:
            raise _taken(container)
    needed = {
        Step.SEND_IMAGE: view.images[1] is None,
        Step.DOWNLOAD_WEIGHTS: bool(view.models.lacking),
        Step.COPY_WEIGHTS: view.weights_to_copy is not None,
        Step.REMOVE_CONTAINERS: any(view.containers),
        Step.PROVE_CABLE: True,
        Step.START_SERVERS: True,
    }
    return [step for step, is_needed in needed.items() if is_needed]


def _taken(container: Container) -> EngineError:
    return EngineError(
        "container-exists",
        f"The container {container.name} runs on {container.machine.name}, outside of a pair.",
        where=container.machine.name,
        why="The containers of a pair have the same name as that of a single server, and use the same port.",
        fix=f"Run `docker rm -f {container.name}` there first.",
    )


def up(cell: Cell, pair: Pair, *, limit: float, say: Say) -> str:
    """Bring both servers up; return where they serve, and what to type next."""
    steps = decide(pair)
    share_secret(pair)
    if not steps:
        say("both containers run as wanted")
    do(steps, cell, pair, say)
    wait(pair.containers, limit, say)
    return introduction(pair.start, pair.view.nodes[0].host, complete(pair.start))


def do(steps: list[Step], cell: Cell, pair: Pair, say: Say) -> None:
    """Take the steps, in their order."""
    ours, theirs = pair.view.images
    if Step.SEND_IMAGE in steps:
        theirs = images.send(ours, pair.second, image_name(cell), say)
    if theirs:  # a daemon with another store than this machine's has another id for the same image
        pair = replace(pair, worker=replace(pair.worker, image=theirs.id))
    _bring_weights(steps, pair, say)
    if Step.REMOVE_CONTAINERS in steps:
        for container in pair.containers:
            if container.remove():
                say(f"{container.machine.name}: removed the container {container.name} of an earlier start")
    if Step.PROVE_CABLE in steps:
        for line in prove(pair):
            say(f"proof: {line}")
    if Step.START_SERVERS in steps:
        for machine, launch in pair.nodes:
            check(machine, *docker_run(launch), timeout=120)
            say(f"{machine.name}: started {pair.start.launch.container}")


def _bring_weights(steps: list[Step], pair: Pair, say: Say) -> None:
    models = pair.view.models
    if Step.DOWNLOAD_WEIGHTS in steps:
        say(f"weights: this machine lacks {models.lacking}")
        models = weights.download(pair.head, say)
    if Step.COPY_WEIGHTS in steps:
        cache = expand_home(pair.head.models, "the --models option") / "hub"
        weights.copy(cache, models, pair.second, f"{pair.worker.models}/hub", say)


def pulled(image: str, say: Say) -> str:
    """Return the id of an image of this machine's Docker, which pulls it if it is missing."""
    words = ("docker", "image", "inspect", "--format", "{{.Id}}", image)
    if run(HERE, *words).returncode:
        say(f"image: pulling {image}")
        if subprocess.run(["docker", "pull", image], check=False).returncode:  # noqa: S603, S607
            raise EngineError(
                "engine-failed",
                f"{image} cannot be pulled.",
                where=image,
                why="Docker says why, above.",
                fix="Check the name and the network; for a private registry, run `docker login` first.",
            )
    return check(HERE, *words)


def prove(pair: Pair) -> list[str]:
    """Have both containers check their machines and talk over the cable; return what they warn of and measured."""

    def test(machine: Machine, launch: Launch) -> subprocess.CompletedProcess[str]:
        # By its labels, `find` would take the test for a pair.
        return run(machine, *docker_once(replace(launch, labels={}), "pair-test"), timeout=PROOF)

    # At the same time: each waits for the other.
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(test, *zip(*pair.nodes, strict=True)))
    warnings = []
    for (machine, _), tested in zip(pair.nodes, done, strict=True):
        if tested.returncode:
            raise weights.refusal(machine, "pair-test", tested.stderr + tested.stdout)
        lines = [clean(line) for line in tested.stdout.splitlines()]
        warnings += [f"{machine.name}: {line}" for line in lines if line.startswith("warning: ")]
        measured = lines[-1:]  # gloo's figures come first, then NCCL's, which count; the head is last
    return warnings + (measured or ["both answer"])


def wait(containers: tuple[Container, Container], limit: float, say: Say) -> None:
    """Wait until both are healthy; raise an error if one of them refuses to start, or starts again and again."""
    began = time.monotonic()
    reported: dict[str, tuple[str, float]] = {}
    # Crashes before this wait do not count.
    before = {container.machine.name: state.restarts for container in containers if (state := container.state())}
    while True:
        healthy = True
        for container in containers:
            name, state = container.machine.name, container.state()
            if state is None:
                raise _broken(container, "its container is gone", "")
            restarts = state.restarts - before.get(name, 0)
            if (not state.runs and state.code in REFUSALS) or restarts >= RESTARTS:
                raise _broken(container, str(state), container.log(40))
            well, sentence = container.health() if state.runs else (False, str(state))
            if state.runs and not well and not container.log(1):
                # It has noted nothing yet, so its health check knows only that nothing listens.
                sentence = "its container has just started"
            healthy = healthy and well
            now = time.monotonic()
            before_it, then = reported.get(name, ("", 0.0))
            if sentence != before_it or (not well and now - then >= SAY_EVERY):
                say(f"{name}: {sentence} ({now - began:.0f} s)")
                reported[name] = sentence, now
        if healthy:
            return
        if time.monotonic() - began > limit:
            raise _broken(containers[0], f"not healthy after {limit:.0f} s", containers[0].log(40))
        time.sleep(EVERY)


def _broken(container: Container, state: str, log: str) -> Exception:
    """Return the error for a server that does not start; both containers stay, for their logs."""
    if "error[" in log:
        return weights.refusal(container.machine, "serve", log)
    last = next((clean(line) for line in reversed(log.splitlines()) if "rror" in line), "")  # Error, error
    return CheckError(
        "pair-failed",
        f"The server on {container.machine.name} does not start: {state}.",
        where=container.machine.name,
        why=last or "Its log has no error.",
        fix="Read `./inv pair logs`; `./inv pair doctor` looks at both machines, `./inv pair down` removes both.",
    )
