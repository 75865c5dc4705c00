"""Layers that the second Spark has are not sent."""

import gzip
import io
import json
import random
import sys
import tarfile
from pathlib import Path

import pytest

from imagefactory.oci.image import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE
from imagefactory.pair.images import Source, send
from imagefactory.pair.lending import Piece
from imagefactory.pair.machines import check, reach
from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.platforms import MACHINE
from tests.integration.pair.conftest import Commands

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.slow]
SIZE = 100_000


def image_of(*names: str) -> Source:
    """Make an image with a layer for each name, of bytes that cannot be compressed."""
    differences, blobs, layers = [], {}, []
    for name in names:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = SIZE
            archive.addfile(member, io.BytesIO(random.Random(name).randbytes(SIZE)))
        data = gzip.compress(stream.getvalue(), mtime=0)
        differences.append(f"sha256:{sha256_of(stream.getvalue())}")
        blobs[f"sha256:{sha256_of(data)}"] = Piece.of(data)
        layers.append({"mediaType": LAYER_TYPE, "digest": f"sha256:{sha256_of(data)}", "size": len(data)})
    described = {"architecture": MACHINE, "os": "linux", "rootfs": {"type": "layers", "diff_ids": differences}}
    config = json.dumps(described).encode()
    digest = f"sha256:{sha256_of(config)}"
    own = {"mediaType": CONFIG_TYPE, "digest": digest, "size": len(config)}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": own, "layers": layers}
    return Source(json.dumps(manifest).encode(), {**blobs, digest: Piece.of(config)})


def main() -> None:
    """Send images from the first Spark, on which this runs; write what went over the cable."""
    with reach("spark2") as there:
        for names in (("a", "b"), ("a", "b", "c"), ("a", "b", "c")):
            source = image_of(*names)
            found, sent = send(source, there, "small:test", lambda _: None)
            assert found == source.ids[0]
            sys.stdout.write(f"{sent.layers} {sent.of} {sent.bytes}\n")
        sys.stdout.write(check(there, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "small"))


def test_only_missing_layers_are_sent(pair: Commands) -> None:
    done = pair.head.run(sys.executable, str(Path(__file__)), env={"PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert done.returncode == 0, done.stderr
    *sends, names = done.stdout.splitlines()
    layers, of, sizes = zip(*(map(int, line.split()) for line in sends), strict=True)
    assert (layers, of) == ((2, 1, 0), (2, 3, 3))
    assert [size // SIZE for size in sizes] == [2, 1, 0]
    assert names == "small:test", "nothing is named after a registry that is gone"


if __name__ == "__main__":
    main()
