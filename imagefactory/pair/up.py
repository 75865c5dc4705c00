"""Starts a pair: looks at both machines, brings image and weights to the second, proves the cable, starts both servers.

Each step does only what is missing, so that an interrupted `up` is simply repeated.
"""

import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory.assemble.images_here import built_layouts
from imagefactory.check.bench.endpoint import Endpoint
from imagefactory.errors import BuildError, CheckError, EngineError, UsageError, clean, unknown_name
from imagefactory.launch.docker_run import Launch, compose, docker_once, docker_run, shell_line
from imagefactory.launch.prepare import Start
from imagefactory.launch.recipes import QUADLET, quadlet
from imagefactory.oci.layout import Layout
from imagefactory.pair import images, weights
from imagefactory.pair.cable import Cable, find_cable
from imagefactory.pair.containers import ADDRESS, PAIR, REFUSALS, START, Container, find, make_room
from imagefactory.pair.machines import HERE, Machine, There, check, run
from imagefactory.pair.node import PROBE, Node
from imagefactory.pair.problem import refuse_first
from imagefactory.pair.rules import HEAD_PORT, Need, find_env, problems, read_env
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.digests import canonical_json, sha256_of
from imagefactory.store.progress import Say, size

VERBS = "/dev/infiniband"
PROOF = 180.0
"""Seconds for the proof, which has limits of its own: most are for loading torch."""
EVERY = 2.0
RESTARTS = 3
"""Restarts of a first start after which the pair counts as broken."""
NCCL = "nvidia-nccl-cu"
WAYS = {"": lambda launch: shell_line(docker_run(launch)) + "\n", "compose": compose, QUADLET: quadlet}
"""How a start is written down."""


@dataclass(frozen=True)
class Pair:
    """Two launches of one image."""

    start: Start
    there: There
    head: Launch
    worker: Launch

    @property
    def containers(self) -> tuple[Container, Container]:
        name = self.start.launch.container
        return Container(HERE, name), Container(self.there, name)

    @property
    def nodes(self) -> list[tuple[Machine, Launch]]:
        """Both machines, in the order of their starts."""
        return [(self.there, self.worker), (HERE, self.head)]


def probe(there: There, models: str) -> tuple[Node, Node]:
    def look(machine: Machine, name: str) -> Node:
        answer = check(machine, "python3", "-", "--weights", models, given=PROBE.read_text("utf-8"))
        return Node.read(answer, name, time.time())

    with ThreadPoolExecutor() as pool:
        one, other = pool.submit(look, HERE, socket.gethostname()), pool.submit(look, there, there.name)
        return one.result(), other.result()


def plan(project: Project, cell: Cell, there: There, start: Start, *, interface: str, say: Say) -> Pair:
    """Look at both machines, and decide how the servers are started; raise what stands in the way."""
    nodes = probe(there, start.launch.models)
    ours = Container(HERE, start.launch.container).state()
    need = replace(
        need_of(project, cell, interface),
        running=ours is not None and ours.runs and bool(ours.other),
        port=port_of(start),
        head_port=int(start.launch.given.get("HEAD_PORT", HEAD_PORT)),
        to_send=missing(start.launch.image, nodes[1]),
    )
    found = problems(*nodes, need)
    refuse_first(found)
    for one in found:
        say(f"- {one.what} {one.why} {one.fix}")
    cable = find_cable(*nodes, interface)
    ends = zip(nodes, (cable.head, cable.worker), strict=True)
    say("cable: " + ", ".join(f"{node.host} {end.interface} {' '.join(end.devices)}".strip() for node, end in ends))
    return pair_of(start, there, cable, nodes)


def examine(project: Project, cell: Cell, there: There, models: str, interface: str) -> tuple[Node, Node, Need]:
    """Look at both machines for `pair doctor`, which changes nothing."""
    need = need_of(project, cell, interface)
    with suppress(UsageError):
        need = replace(need, running=bool(find(there.name)))
    return *probe(there, models), need


def need_of(project: Project, cell: Cell, interface: str) -> Need:
    nccl = next((wheel.version for wheel in project.wheel_lock(cell).wheels if wheel.name.startswith(NCCL)), None)
    env = find_env(Path.home())
    return Need(
        platform=cell.platform,
        gpu=bool(project.matrix.archs[cell.arch].capability),
        nccl=nccl,
        interface=interface,
        env=read_env(env) if env else None,
    )


def port_of(start: Start) -> int:
    words = list(start.command)
    return int(words[words.index("--port") + 1]) if "--port" in words else 8000


def pair_of(start: Start, there: There, cable: Cable, nodes: tuple[Node, Node]) -> Pair:
    """Return the launches of both machines, with every address and device set."""
    home = check(there, "sh", "-c", 'printf %s "$HOME"')
    models = start.launch.models
    own = (models, models.replace("~", home, 1) if models.startswith("~/") else models)
    others, addresses = (there.name, nodes[0].host), (cable.head.address, cable.worker.address)
    launches = []
    for rank in (0, 1):
        launch = replace(
            start.launch,
            given={**cable.settings(rank), **start.launch.given},
            key_file=None if rank else start.launch.key_file,  # the second has no API
            models=own[rank],
            devices=(VERBS,) if nodes[rank].verbs else (),
        )
        labels = {PAIR: others[rank], ADDRESS: addresses[rank]}
        mark = sha256_of(canonical_json([docker_run(launch), labels]))
        launches.append(replace(launch, labels={**labels, START: mark}))
    return Pair(start, there, *launches)


def shown(pair: Pair, way: str) -> str:
    """Return both starts for people or another launcher, each after a comment that names its machine."""
    if way not in WAYS:
        raise unknown_name("recipe for a pair", way, [QUADLET], "the --recipe option")
    return "\n".join(f"# {machine.name}\n{WAYS[way](launch)}" for machine, launch in pair.nodes)


def up(project: Project, cell: Cell, pair: Pair, *, limit: float, say: Say) -> str:
    """Bring both servers up; return the text that the model completes."""
    if runs(pair):
        say("both containers run as wanted")
    else:
        pair = replace(pair, worker=replace(pair.worker, image=bring_image(project, cell, pair, say)))
        fetched = weights.bring(pair.head, pair.worker, pair.there, say)
        say(f"weights: {size(fetched)} sent" if fetched else "weights: both have them")
        for container in pair.containers:
            make_room(container, say)
        say(f"proof: {prove(pair)}")
        for machine, launch in pair.nodes:
            check(machine, *docker_run(launch), timeout=120)
            say(f"{machine.name}: started {pair.start.launch.container}")
    wait(pair.containers, limit, say)
    return complete(pair.start)


def runs(pair: Pair) -> bool:
    wanted = zip(pair.containers, (pair.head, pair.worker), strict=True)
    states = [(container.state(), launch.labels[START]) for container, launch in wanted]
    return all(state is not None and state.runs and state.start == start for state, start in states)


def missing(image: str, worker: Node) -> int:
    """Return how many bytes of the image the second machine has to store: none if it has it."""
    [found] = json.loads(check(HERE, "docker", "image", "inspect", image))
    return 0 if found["Id"] in (worker.images or ()) else int(found["Size"])


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


def bring_image(project: Project, cell: Cell, pair: Pair, say: Say) -> str:
    """Send the image unless it is there; return its id on the second machine."""
    own = pair.start.launch.image
    layout = _layout(project, cell, own)
    ids = images.from_layout(layout).ids if layout else (own,)
    if found := images.find(pair.there, *ids):
        say(f"image: both have {own[:19]}")
        return found
    name = f"spark-{cell.server}:{cell.slug}"
    if layout:
        found, sent = images.send(images.from_layout(layout), pair.there, name, say)
    else:
        say("image: saving it from this machine's Docker")
        with project.store.scratch() as folder, images.from_daemon(own, folder) as source:
            found, sent = images.send(source, pair.there, name, say)
    say(f"image: {sent}")
    return found


def _layout(project: Project, cell: Cell, own: str) -> Layout | None:
    """Return the layout of an image that was built here; its layers are compressed, unlike the daemon's."""
    with suppress(BuildError):
        [(_, layout, _)] = built_layouts(project, [f"{cell}/{cell.machine}"], one=True)
        if own in {layout.config_digest(), layout.manifest_digest()}:
            return layout
    return None


def prove(pair: Pair) -> str:
    """Have both containers talk over the cable; return what they measured."""

    def test(machine: Machine, launch: Launch) -> subprocess.CompletedProcess[str]:
        return run(machine, *docker_once(replace(launch, labels={}), "pair-test"), timeout=PROOF)

    with ThreadPoolExecutor() as pool:
        done = list(pool.map(test, *zip(*pair.nodes, strict=True)))
    for (machine, _), one in zip(pair.nodes, done, strict=True):
        if one.returncode:
            raise weights.refusal(machine, "pair-test", one.stderr + one.stdout)
    lines = done[1].stdout.strip().splitlines()
    return clean(lines[-1]) if lines else "both answer"


def wait(containers: tuple[Container, Container], limit: float, say: Say) -> None:
    """Wait until both are healthy; raise an error if one of them refuses to start, or starts again and again."""
    began = time.monotonic()
    told: dict[str, str] = {}
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
            healthy = healthy and well
            if told.get(name) != sentence:
                say(f"{name}: {sentence} ({time.monotonic() - began:.0f} s)")
                told[name] = sentence
        if healthy:
            return
        if time.monotonic() - began > limit:
            raise _broken(containers[0], f"not healthy after {limit:.0f} s", containers[0].log(40))
        time.sleep(EVERY)


def _broken(container: Container, state: str, log: str) -> Exception:
    """Return the error for a server that does not start; both containers stay, for their logs."""
    if "error[" in log:
        return weights.refusal(container.machine, "serve", log)
    last = next((clean(line) for line in reversed(log.splitlines()) if "rror" in line), "")
    return CheckError(
        "pair-failed",
        f"The server on {container.machine.name} does not start: {state}.",
        where=container.machine.name,
        why=last or "Its log has no error.",
        fix="Read `./inv pair logs`; `./inv pair doctor` looks at both machines, `./inv pair down` removes both.",
    )


def complete(start: Start) -> str:
    launch = start.launch
    key = launch.key_file.read_text().strip() if launch.key_file else ""
    server = Endpoint(f"http://127.0.0.1:{port_of(start)}", key)
    body = {"model": launch.names[0], "prompt": "Two Sparks are", "max_tokens": 8, "temperature": 0}
    try:
        return str(server.json("POST", "/v1/completions", body)["choices"][0]["text"])
    except (CheckError, LookupError, TypeError) as error:
        raise CheckError(
            "pair-failed",
            "Both servers are healthy, but the model does not answer.",
            where=server.address,
            why=clean(error.why if isinstance(error, CheckError) else str(error)),
            fix="Read `./inv pair logs`, and run `./inv pair restart`.",
        ) from None
