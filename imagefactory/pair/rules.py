"""Compares two machines with what a pair needs and no container can see; the sentences are in rules.yaml."""

from collections.abc import Iterator
from dataclasses import dataclass

from imagefactory.errors import clean
from imagefactory.pair.cable import Cable, search
from imagefactory.pair.node import Node
from imagefactory.pair.problem import Problem, problem
from imagefactory.store.progress import size

_REPORTED = {"docker", "driver"}  # what is unread of these has rules of its own


@dataclass(frozen=True)
class Need:
    """What a pair needs."""

    platform: str
    gpu: bool
    interface: str = ""
    """The head's end of the cable, if the user chose it."""
    image: int = 0
    """Bytes of the image that the second machine has to store; none if it has the image."""
    weights: int | None = None
    """Bytes of weights that it has to store; None if it has them."""


def problems(head: Node, worker: Node, need: Need) -> list[Problem]:
    """Return all that stands in the way: what refuses a start first, and otherwise from the cable to the disk."""
    cable = search(head, worker, need.interface)
    obstacles = [cable] if isinstance(cable, Problem) else [*_of_cable(head, worker, cable)]
    if head.driver and worker.driver and head.driver != worker.driver:
        obstacles.append(
            problem("drivers-differ", f"{head.host} and {worker.host}", ours=head.driver, theirs=worker.driver)
        )
    for node in (head, worker):
        obstacles += _of_machine(node, need)
        if need.weights is not None and not node.rsync:
            obstacles.append(problem("no-rsync", node.host))
    for subject, needed in {"images": need.image, "weights": need.weights or 0}.items():
        disk = worker.disks.get(subject)
        if disk and disk.free < needed:
            gaps = {"subject": subject, "path": disk.path, "found": size(disk.free), "needed": size(needed)}
            obstacles.append(problem("disk-short", worker.host, **gaps))
    return sorted(obstacles, key=lambda obstacle: obstacle.severity != "refuse")


def _of_cable(head: Node, worker: Node, cable: Cable) -> Iterator[Problem]:
    both = f"{head.host} and {worker.host}"
    if not cable.head.devices:
        yield problem("plain-ethernet", both, interface=cable.head.interface.name, reason=cable.shortfall)
    elif cable.shortfall:
        yield problem("one-twin", both, reason=cable.shortfall)
    for node, end in ((head, cable.head), (worker, cable.worker)):
        if end.interface.address and end.interface.address.is_link_local:
            yield problem("link-local-address", node.host, address=end.address)


def _of_machine(node: Node, need: Need) -> Iterator[Problem]:
    if node.platform != need.platform:
        yield problem("other-machine", node.host, found=node.platform, needed=need.platform)
    if need.gpu and node.driver is None:
        yield problem("no-driver", node.host, reason=_reason(node, "driver"))
    for subject in sorted(node.unread.keys() - _REPORTED):
        yield problem("unread", node.host, subject=subject, reason=_reason(node, subject))
    if node.docker is None:
        reason = _reason(node, "docker")
        name = "docker-not-allowed" if "permission denied" in reason.lower() else "docker-missing"
        yield problem(name, node.host, reason=reason)
    elif need.gpu and not node.docker.gpus:
        yield problem("no-gpu-runtime", node.host)


def _reason(node: Node, subject: str) -> str:
    reason = clean(node.unread.get(subject, "no reason was given")).rstrip(".")
    return reason[:1].upper() + reason[1:]
