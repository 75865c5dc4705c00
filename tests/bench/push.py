"""Push a full-size image to a registry on this machine: ours, skopeo's way, and `docker push` of the same content.

Usage: python tests/bench/push.py [--target gemma4-31b@0.32.0/rtx5090] [--other
gemma4-26b-a4b@0.32.0/rtx5090] [--rounds 3]
       [--docker]

Prints a Markdown table. Each push goes to an empty docker-registry, which hashes and writes everything: compare the
processor time to see how little of it is ours. Wants the image in the cache (`invoke build` it first),
docker-registry, skopeo for its row and, with --docker, a daemon and some 16 GB of disk. Nothing is asserted; ratios
within one run are what can be compared between machines.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from imagefactory.oci.layout import Layout, archive
from imagefactory.oci.registry.image_push import Pushable, PushableBlob, Pushed, opening, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.cache import Store

ROOT = Path(__file__).resolve().parents[2]
INVOKE = [sys.executable, "-m", "invoke", "--search-root", str(ROOT)]
LOADED = "bench-push:image"


class Spent(NamedTuple):
    """What something took."""

    seconds: float
    processor: float
    """Of this process and the programs that it started; the registry and a daemon are counted for themselves."""


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run an empty registry of our own on the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    data = folder / "registry"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {data}}}}}\nhttp: {{addr: {address}}}\n"
        "log: {level: error, accesslog: {disabled: true}}\n"
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(address[10:]))):
                break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(data, ignore_errors=True)


def build(target: str, folder: Path) -> Layout:
    """Lay out an image that is in the cache."""
    subprocess.run(
        [*INVOKE, "build", "--target", target, "--output", str(folder)], check=True, capture_output=True
    )
    return Layout(folder)


def timed(step: Callable[[], object]) -> Spent:
    """Run something."""
    before, started = _processor(), time.perf_counter()
    step()
    return Spent(time.perf_counter() - started, _processor() - before)


def _processor() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def push(address: str, layout: Layout) -> Pushed:
    """Push as `invoke push` does."""
    manifest = layout.blob(layout.manifest_digest()).read_bytes()
    parts = [
        PushableBlob(digest, layout.size_of(digest), digest, opening(layout.blob, digest))
        for digest in (*layout.layer_digests(), layout.config_digest())
    ]
    with Repository.open(f"{address}/bench/image") as repository:
        return push_image(repository, Pushable(manifest, parts, "linux/any"))


def skopeo(address: str, layout: Layout) -> None:
    """Copy with skopeo, which sends blobs as they are, too."""
    target = f"docker://{address}/bench/skopeo:image"
    command = ["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout.folder}", target]
    subprocess.run(command, check=True, capture_output=True)


def load(layout: Layout) -> None:
    """Bring the image into the Docker daemon."""
    with subprocess.Popen(["docker", "load"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        for data in archive(layout, LOADED):
            process.stdin.write(data)
        process.stdin.close()
        if process.wait():
            raise SystemExit("docker load failed")


def docker_push(address: str) -> Spent:
    """Push with the Docker daemon."""
    name = f"{address}/bench/docker:image"
    subprocess.run(["docker", "tag", LOADED, name], check=True)
    try:
        return timed(lambda: subprocess.run(["docker", "push", name], check=True, capture_output=True))
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


def middle(values: list[Spent]) -> Spent:
    return Spent(*(statistics.median(column) for column in zip(*values, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="gemma4-31b@0.32.0/rtx5090")
    parser.add_argument(
        "--other", default="gemma4-26b-a4b@0.32.0/rtx5090", help="another model on the same vLLM"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docker", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Store().root, prefix="bench-push-") as name:
        folder = Path(name)
        layout, other = build(options.target, folder / "one"), build(options.other, folder / "two")
        row("what", "time", "ratio", "processor")
        row("---", "---:", "---:", "---:")
        rows(layout, other, folder, options.rounds)
        if options.docker:
            docker_rows(layout, folder)


def rows(layout: Layout, other: Layout, folder: Path, rounds: int) -> None:
    taken: dict[str, list[Spent]] = {}

    def note(what: str, spent: Spent) -> None:
        taken.setdefault(what, []).append(spent)
        print(f"# {what}: {spent}", file=sys.stderr)

    size = sum(blob.stat().st_size for blob in (layout.folder / "blobs/sha256").iterdir())
    first = f"push to an empty registry ({size / 1e9:.2f} GB)"
    for _ in range(rounds):
        with registry(folder) as address:
            note(first, timed(lambda: push(address, layout)))
            note("the same again", timed(lambda: push(address, layout)))
            pushed: list[Pushed] = []
            note(
                "another model on the same vLLM",
                timed(lambda: pushed.append(push(address, other))),  # noqa: B023
            )
            sent = pushed[0].uploaded
        if shutil.which("skopeo"):
            with registry(folder) as address:
                note("skopeo copy", timed(lambda: skopeo(address, layout)))
    base = middle(taken[first]).seconds
    for what, values in taken.items():
        spent = middle(values)
        row(what, f"{spent.seconds:.2f} s", f"{spent.seconds / base:.2f}", f"{spent.processor:.2f} s")
    row("... bytes uploaded for the other model", f"{sent / 1e3:.0f} kB", "", "")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row("peak memory of the pushing process", f"{peak / 1e6:.0f} MB", "", "")


def docker_rows(layout: Layout, folder: Path) -> None:
    """Measure `docker push`, and ours once more beside it."""
    load(layout)
    try:
        with registry(folder) as address:
            ours = timed(lambda: push(address, layout))
        with registry(folder) as address:
            theirs = docker_push(address)
        row("push, measured beside docker push", f"{ours.seconds:.1f} s", "1.0", "")
        row(
            "`docker push` of the same image",
            f"{theirs.seconds:.1f} s",
            f"{theirs.seconds / ours.seconds:.1f}",
            "",
        )
    finally:
        subprocess.run(["docker", "rmi", LOADED], check=False, capture_output=True)


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
