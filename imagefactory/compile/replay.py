"""Replays a script in a container that has no network, no privileges and little of everything else."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import requests
from docker.errors import DockerException
from docker.models.containers import Container
from docker.types import LogConfig, Ulimit
from docker.utils.socket import frames_iter

import images
from imagefactory.assemble.engines.docker.daemon import client_for
from imagefactory.assemble.watch import Watcher
from imagefactory.compile.toolchain import CompileProject, provide, toolchain_plan
from imagefactory.errors import EngineError
from imagefactory.mods.importing.replays import Order, Report
from imagefactory.project.targets import host_machine
from imagefactory.store.digests import parse_json
from imagefactory.store.signals import ending_in_order

LABEL: Final = "imagefactory.replay"
_PROGRAMS: Final = Path(images.__file__).parent / "replay"
_GRACE: Final = 120  # the time for unpacking the wheels and for the report
_MIB: Final = 1024**2
_SPARE_MIB, _WORKSPACE_MIB, _TEMPORARY_MIB, _MEMORY_MIB = 96, 64, 64, 1024
"""Space besides the files of the wheels, and memory besides all of that space, which is memory too."""
_PROCESSES: Final = 128
_FILES: Final = 100_000
_REPORT: Final = 48 * _MIB
_NOBODY: Final = 65534
LARGEST: Final = 4 * _MIB  # the largest file that is unpacked, as in images/replay/replay.py


def provide_image(project: CompileProject, watch: Watcher) -> str:
    """Load the image that scripts run in into the Docker daemon, unless it is there; return its name."""
    cell = project.cell(project.matrix.defaults.vllm, f"linux/{host_machine()}")
    return provide(project, toolchain_plan(project, cell, bare=True), watch)


def replaying(provide: Callable[[], str]) -> Callable[[Order, Path], Report]:
    """Return a way to replay scripts in an image that is provided when the first one needs it."""
    image = cache(provide)
    return lambda order, folder: replay(image(), order, folder)


def replay(image: str, order: Order, folder: Path) -> Report:
    inputs = folder / "order.json"
    told = {"name": order.name, "locked": dict(order.locked), "supplied": dict(order.names)}
    inputs.write_text(json.dumps({**told, "env": dict(order.env), "seconds": order.seconds}), "utf-8")
    # The container's user is not this one, and a umask may have closed them.
    own = folder / "programs"
    shutil.copytree(_PROGRAMS, own, dirs_exist_ok=True)
    for path in (own, *own.rglob("*"), inputs, order.mod, order.supplied):
        path.chmod(0o755 if path.is_dir() or path.name == "stand_in.py" else 0o644)
    mounts = {
        own: "/factory/replay",
        inputs: "/factory/order.json",
        order.mod: "/factory/mod.tar",
        order.supplied: "/factory/supplied.tar",
        **{wheel: f"/factory/wheels/{number}.whl" for number, wheel in enumerate(order.wheels)},
    }
    said = _run(image, mounts, order.seconds + _GRACE, _space(order.wheels) + _SPARE_MIB, folder)
    try:
        return Report.model_validate(parse_json(said))
    except ValueError:
        raise EngineError(
            "replay-failed",
            f"The script of {order.name} ended its container without a report.",
            where="docker run",
            why=f"What it left was not readable: {said[-300:].decode('utf-8', 'replace')!r}. "
            f"It may have used up {_MEMORY_MIB} MiB of memory or {order.seconds + _GRACE:.0f} seconds.",
            fix="Read the script: none that edits a few files needs as much.",
        ) from None


def _run(image: str, mounts: Mapping[Path, str], seconds: float, tree_mib: int, folder: Path) -> bytes:
    # A user without a name in the image: its own files are readable, and nothing else is writable.
    user, group = os.getuid() or _NOBODY, os.getgid() or _NOBODY

    def space(mebibytes: int) -> str:
        # Not the mode alone: runc gives a tmpfs the mode of the folder below it.
        limits = f"size={mebibytes}m,nr_inodes={_FILES}"
        return f"rw,nosuid,nodev,exec,mode=755,uid={user},gid={group},{limits}"

    memory = (tree_mib + _WORKSPACE_MIB + 2 * _TEMPORARY_MIB + _MEMORY_MIB) * _MIB
    client = client_for(
        "docker run",
        "The Docker daemon cannot run the script.",
        "Start Docker and check DOCKER_HOST: scripts run only in a container. Diffs and files need none.",
        timeout=None,
    )
    with ending_in_order(), client as docker:
        container = docker.containers.create(
            image,
            ["/usr/bin/python3", "-I", "/factory/replay/replay.py"],
            labels={LABEL: str(folder)},
            auto_remove=True,  # even if this process is killed: the container ends by itself in time
            user=f"{user}:{group}",
            working_dir="/",
            environment={"PATH": "/usr/bin:/bin"},
            network_mode="none",
            ipc_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=_PROCESSES,
            nano_cpus=10**9 if docker.info().get("CpuCfsQuota") else None,
            ulimits=[Ulimit(name="cpu", soft=int(seconds), hard=int(seconds))],
            mem_limit=memory,
            memswap_limit=memory,
            log_config=LogConfig(type="none"),
            tmpfs={
                "/usr/local/lib": space(tree_mib),
                "/workspace": space(_WORKSPACE_MIB),
                "/tmp": space(_TEMPORARY_MIB),  # noqa: S108 - of the container
                "/run/factory": space(_TEMPORARY_MIB),
            },
            volumes={str(path): {"bind": place, "mode": "ro"} for path, place in mounts.items()},
        )
        try:
            said = _listen(container, seconds)
        finally:
            with suppress(DockerException, requests.RequestException):
                container.remove(force=True, v=True)
            with suppress(DockerException, requests.RequestException):
                container.wait(condition="removed", timeout=30)
    return said


def _space(wheels: Iterable[Path]) -> int:
    """Return the mebibytes that the files of wheels take, each in whole pages; libraries are left empty."""
    total = 0
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            total += sum(-(-item.file_size // 4096) * 4096 for item in archive.infolist() if item.file_size <= LARGEST)
    return -(-total // _MIB)


def _listen(container: Container, seconds: float) -> bytes:
    """Start a container and return its output; it is killed after a time, or when it says too much."""
    stream = container.attach_socket(params={"stdout": 1, "stderr": 1, "stream": 1})
    end = threading.Timer(seconds, _kill, [container])
    try:
        end.start()
        container.start()
        said = bytearray()
        for _, data in frames_iter(stream, tty=False):
            said += data
            if len(said) > _REPORT:
                _kill(container)
                return b"more than a report can be"
        return bytes(said)
    finally:
        end.cancel()
        stream._response.close()  # noqa: SLF001 - or its connection stays open
        stream.close()


def _kill(container: Container) -> None:
    with suppress(DockerException, requests.RequestException):
        container.kill()
