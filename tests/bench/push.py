"""Measures pushing a full-size image to a registry on this machine, beside skopeo and `docker push`.

    .venv/bin/python -m tests.bench.push [--target TARGET] [--other TARGET] [--rounds 3] [--docker]

Prints a Markdown table. Each push goes to an empty docker-registry, which hashes and writes everything: compare the
processor time to see how little of it is ours. Needs the image in the cache (run `./inv build` first),
docker-registry, skopeo for its row and, with --docker, a daemon and 16 GB of disk. Nothing is asserted; compare ratios
within one run between machines.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagefactory.assemble.engines.docker.daemon import load
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry.image_push import Pushable, PushableBlob, Pushed, opening, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.cache import Store
from tests.bench.measuring import Spent, middle, row, timed
from tests.fixtures.engines import running_registry

ROOT = Path(__file__).resolve().parents[2]
INVOKE = [sys.executable, "-m", "invoke", "--search-root", str(ROOT)]
LOADED = "bench-push:image"


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Run an empty registry, and remove what it stored."""
    with tempfile.TemporaryDirectory(dir=folder) as data, running_registry(Path(data)) as address:
        yield address


def build(target: str, folder: Path) -> Layout:
    """Lay out an image that is in the cache."""
    subprocess.run([*INVOKE, "build", "--target", target, "--output", str(folder)], check=True, capture_output=True)
    return Layout(folder)


def push(address: str, layout: Layout) -> Pushed:
    """Push as `./inv push` does."""
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


def docker_push(address: str) -> Spent:
    """Push with the Docker daemon."""
    name = f"{address}/bench/docker:image"
    subprocess.run(["docker", "tag", LOADED, name], check=True)
    try:
        return timed(lambda: subprocess.run(["docker", "push", name], check=True, capture_output=True))
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="qwen3.6-27b-nvfp4@0.32.0/rtx5090")
    parser.add_argument("--other", default="qwen3.6-27b-nvfp4@0.32.0/rtx5090", help="another model on the same vLLM")
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
            note("another model on the same vLLM", timed(lambda: pushed.append(push(address, other))))  # noqa: B023
        if shutil.which("skopeo"):
            with registry(folder) as address:
                note("skopeo copy", timed(lambda: skopeo(address, layout)))
    base = middle(taken[first]).seconds
    for what, values in taken.items():
        spent = middle(values)
        row(what, f"{spent.seconds:.2f} s", f"{spent.seconds / base:.2f}", f"{spent.processor:.2f} s")
    row("... bytes uploaded for the other model", f"{pushed[0].uploaded / 1e3:.0f} kB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    row("peak memory of the pushing process", f"{peak / 1e6:.0f} MB")


def docker_rows(layout: Layout, folder: Path) -> None:
    """Measure `docker push`, and ours once more beside it."""
    load(layout, LOADED)
    try:
        with registry(folder) as address:
            ours = timed(lambda: push(address, layout))
        with registry(folder) as address:
            theirs = docker_push(address)
        row("push, measured beside docker push", f"{ours.seconds:.1f} s", "1.0")
        ratio = f"{theirs.seconds / ours.seconds:.1f}"
        row("`docker push` of the same image", f"{theirs.seconds:.1f} s", ratio)
    finally:
        subprocess.run(["docker", "rmi", LOADED], check=False, capture_output=True)


if __name__ == "__main__":
    main()
