"""Sends an image to the second Spark: `docker save` here, `docker load` there, through ssh.

Docker names an image only after it has read all of its layers and compared them with their digests, so that an
interrupted transfer leaves nothing that could be started.
"""

import json
import re
import subprocess
import time
from dataclasses import dataclass
from typing import IO

from imagefactory.errors import EngineError
from imagefactory.pair.machines import HERE, Machine, There, check, failed, run
from imagefactory.store.digests import canonical_json, sha256_of
from imagefactory.store.progress import Say, size

BLOCK = 1 << 20
EVERY = 5.0
"""Seconds between two lines about the progress."""


@dataclass(frozen=True)
class Image:
    """An image of a Docker daemon."""

    id: str
    """The digest of its configuration or, in containerd's store, of its manifest: two daemons may differ."""
    size: int
    contents: str
    """A digest over its layers and start, which is the same in every daemon."""


def find(machine: Machine, *names: str) -> Image | None:
    """Return the first of these images that a machine's Docker has."""
    for name in names:
        done = run(machine, "docker", "image", "inspect", name)
        if not done.returncode:
            [described] = json.loads(done.stdout)
            config = described["Config"]
            # One daemon leaves out what another writes as null or as an empty list.
            start = [config.get(part) or None for part in ("Entrypoint", "Cmd", "Env", "Labels")]
            contents = [described["Architecture"], described["RootFS"]["Layers"], *start]
            return Image(described["Id"], int(described["Size"]), sha256_of(canonical_json(contents)))
        if "no such image" not in done.stderr.lower():
            raise failed(machine, ("docker", "image", "inspect"), done.stderr)
    return None


def send(image: Image, second: There, name: str, say: Say) -> Image:
    """Copy an image of this machine to the second, and name it there; return it as that machine's Docker has it."""
    with (
        subprocess.Popen(["docker", "save", image.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as save,  # noqa: S603, S607
        subprocess.Popen(  # noqa: S603 - ssh
            second.command(("docker", "load", "--quiet")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as load,
    ):
        assert save.stdout and save.stderr and load.stdin and load.stdout and load.stderr  # noqa: S101, PT018
        try:
            _pump(save.stdout, load.stdin, image.size, say)
        except BrokenPipeError:  # why is in the error stream of `docker load`
            save.stdout.close()
            save.kill()
        except BaseException:
            save.kill()
            load.kill()
            raise
        printed, complaint = load.stdout.read().decode(errors="replace"), load.stderr.read().decode(errors="replace")
        unsaved = save.stderr.read().decode(errors="replace")
    second.refuse(subprocess.CompletedProcess((), load.returncode, printed, complaint))
    if load.returncode:
        raise failed(second, ("docker", "load"), complaint or printed)
    if save.returncode:
        raise failed(HERE, ("docker", "save"), unsaved)
    # It was saved by its id, so Docker has no name to print.
    loaded = re.search(r"Loaded image(?: ID)?: (\S+)", printed)
    arrived = find(second, loaded[1]) if loaded else None
    if arrived is None or arrived.contents != image.contents:
        raise EngineError(
            "image-differs",
            f"The image on {second.name} is not the one that was sent.",
            where=f"docker load on {second.name}",
            why=f"{image.id[:19]} was sent, and {arrived.id[:19] if arrived else 'nothing'} is there.",
            fix=f"Run it again; `docker version` on {second.name} should print 20.10 or newer.",
        )
    check(second, "docker", "tag", arrived.id, name)
    return arrived


def _pump(source: IO[bytes], target: IO[bytes], total: int, say: Say) -> None:
    sent = before = 0
    reported = time.monotonic()
    with target:
        while block := source.read(BLOCK):
            target.write(block)
            sent += len(block)
            passed = time.monotonic() - reported
            if passed >= EVERY:
                # What Docker saves is about as large as what it says that the image takes.
                say(f"image: {size(sent)} of about {size(total)} sent, {size(int((sent - before) / passed))}/s")
                before, reported = sent, time.monotonic()
    say(f"image: {size(sent)} sent")
