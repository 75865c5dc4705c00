"""Measures how long Docker takes to pull and unpack images from a registry on this machine.

    .venv/bin/python -m tests.bench.pull fat=FOLDER slim=FOLDER [--rounds 3]

Each image is named and given as an OCI layout (`./inv build --output FOLDER`) or as a target that is in the cache. The
first one is the baseline. Docker skips layers that it has, so each layer gets another digest for the same content:
zeros after the end of its archive. Needs docker, docker-registry, and disk for each image three times.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from isal import igzip

from imagefactory.oci.layout import Layout
from imagefactory.store.cache import Store
from imagefactory.store.digests import sha256_of
from tests.bench.measuring import Spent, middle, row, timed
from tests.bench.push import build, push, registry

BLOCK = 512


def named(text: str) -> tuple[str, str]:
    """Parse NAME=IMAGE."""
    name, equals, image = text.partition("=")
    if not name or not equals or not image:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=IMAGE")
    return name, image


def changed(layout: Layout, folder: Path, salt: int) -> Layout:
    """Copy a layout with other digests and the same content."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    zeros = gzip.compress(bytes(BLOCK * salt), mtime=0)
    manifest = json.loads(layout.blob(layout.manifest_digest()).read_bytes())
    config = layout.config()
    for number, layer in enumerate(manifest["layers"]):
        content, packed = hashlib.sha256(), hashlib.sha256()
        temporary = folder / "layer"
        with layout.blob(layer["digest"]).open("rb") as source, temporary.open("wb") as target:
            while block := source.read(1 << 20):
                packed.update(block)
                target.write(block)
            packed.update(zeros)
            target.write(zeros)
        with igzip.open(temporary, "rb") as stream:  # type: ignore[no-untyped-call]
            while block := stream.read(1 << 20):
                content.update(block)
        layer["digest"] = f"sha256:{packed.hexdigest()}"
        layer["size"] += len(zeros)
        config["rootfs"]["diff_ids"][number] = f"sha256:{content.hexdigest()}"
        temporary.rename(blobs / packed.hexdigest())
    manifest["config"] |= written(blobs, config)
    index = json.loads((layout.folder / "index.json").read_bytes())
    [described] = index["manifests"]
    described |= written(blobs, manifest)
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_bytes((layout.folder / "oci-layout").read_bytes())
    return Layout(folder)


def written(blobs: Path, document: object) -> dict[str, object]:
    """Write a document and describe it."""
    data = json.dumps(document).encode()
    (blobs / sha256_of(data)).write_bytes(data)
    return {"digest": f"sha256:{sha256_of(data)}", "size": len(data)}


def pull(address: str, layout: Layout) -> Spent:
    """Pull an image by digest, and remove it again."""
    reference = f"{address}/bench/image@{layout.manifest_digest()}"
    command = ["docker", "pull", "--quiet", reference]
    try:
        return timed(lambda: subprocess.run(command, check=True, capture_output=True))
    finally:
        subprocess.run(["docker", "rmi", reference], check=False, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=named, nargs="+", metavar="NAME=IMAGE")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Store().root, prefix="bench-pull-") as scratch:
        folder = Path(scratch)
        layouts: dict[str, Layout] = {}
        for number, (name, image) in enumerate(options.images):
            is_layout = Path(image, "index.json").exists()
            layout = Layout(Path(image)) if is_layout else build(image, folder / f"built{number}")
            layouts[name] = changed(layout, folder / f"changed{number}", number + 1)
        sizes = {
            name: sum(layout.size_of(digest) for digest in layout.layer_digests()) for name, layout in layouts.items()
        }
        taken: dict[str, list[Spent]] = {name: [] for name in layouts}
        with registry(folder) as address:
            for layout in layouts.values():
                push(address, layout)
            for _ in range(options.rounds):
                for name, layout in layouts.items():
                    taken[name].append(pull(address, layout))
                    print(f"# {name}: {taken[name][-1].seconds:.1f} s", file=sys.stderr)
    row("image", "pulled", "time", "ratio")
    row("---", "---:", "---:", "---:")
    base = middle(next(iter(taken.values()))).seconds
    for name, spent in taken.items():
        seconds = middle(spent).seconds
        row(name, f"{sizes[name] / 1e9:.2f} GB", f"{seconds:.1f} s", f"{seconds / base:.2f}")


if __name__ == "__main__":
    main()
