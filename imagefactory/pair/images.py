"""Brings the image of this machine to the second Spark, by the digest of its configuration; layers it has are not sent.

The second Spark's Docker pulls from a registry on its own loopback, which ssh forwards to this machine.
"""

import json
import posixpath
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.oci.image import CONFIG_TYPE, MANIFEST_TYPE
from imagefactory.oci.layout import Layout
from imagefactory.pair.lending import Lender, Piece, lent
from imagefactory.pair.machines import HERE, There, check, failed, run
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.digests import canonical_json, sha256_of
from imagefactory.store.progress import Say, size

LAYER_TYPES = {
    b"\x1f\x8b": "application/vnd.oci.image.layer.v1.tar+gzip",
    b"\x28\xb5": "application/vnd.oci.image.layer.v1.tar+zstd",
}
PLAIN = "application/vnd.oci.image.layer.v1.tar"
NAME = "pair/image"
EVERY = 5.0
"""Seconds between two lines about the progress."""
LIMIT = 6 * 3600.0


@dataclass(frozen=True)
class Source:
    """An image as a registry has it."""

    manifest: bytes
    blobs: dict[str, Piece]

    @property
    def digest(self) -> str:
        return f"sha256:{sha256_of(self.manifest)}"

    @property
    def document(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.manifest)

    @property
    def ids(self) -> tuple[str, str]:
        """How daemons call the image: by its configuration or, with containerd's store, by its manifest."""
        return self.document["config"]["digest"], self.digest

    @property
    def pieces(self) -> dict[str, Piece]:
        """What a registry serves, by path."""
        named = {f"/v2/{NAME}/blobs/{digest}": piece for digest, piece in self.blobs.items()}
        kind = self.document.get("mediaType", MANIFEST_TYPE)
        return {"/v2/": Piece.of(b"{}"), f"/v2/{NAME}/manifests/{self.digest}": Piece.of(self.manifest, kind), **named}


@dataclass(frozen=True)
class Sent:
    """What went over the cable."""

    bytes: int
    layers: int
    of: int

    def __str__(self) -> str:
        return f"{size(self.bytes)} sent, {self.layers} of {self.of} layers"


def from_layout(layout: Layout) -> Source:
    digests = [layout.config_digest(), *layout.layer_digests()]
    manifest = layout.blob(layout.manifest_digest()).read_bytes()
    return Source(manifest, {digest: Piece.of(layout.blob(digest)) for digest in digests})


@contextmanager
def from_daemon(image: str, folder: Path) -> Iterator[Source]:
    """Save an image of this machine's Docker to a folder, as daemons keep no compressed layers."""
    path = folder / "image.tar"
    with translating_disk_full(path):
        with path.open("wb") as file:
            done = subprocess.run(["docker", "save", image], stdout=file, stderr=subprocess.PIPE, check=False)  # noqa: S603, S607
        if done.returncode:
            raise failed(HERE, ("docker", "save"), done.stderr.decode(errors="replace"))
    try:
        yield saved(path)
    finally:
        path.unlink(missing_ok=True)


def saved(path: Path) -> Source:
    """Read what `docker save` wrote: the format of old daemons (layer.tar), or an OCI layout."""
    with tarfile.open(path, "r:") as archive:
        members = {member.name: member for member in archive if member.isfile() or member.issym()}

        def piece(name: str) -> Piece:
            member = members[name]
            if member.issym():  # one layer that occurs twice
                member = members[posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))]
            return Piece(path, member.offset_data, member.size)

        [image] = json.loads(b"".join(piece("manifest.json").blocks(0)))
        config = piece(image["Config"])
        data = b"".join(config.blocks(0))
        differences = json.loads(data)["rootfs"]["diff_ids"]
        blobs = {f"sha256:{sha256_of(data)}": config}
        layers = []
        for name, difference in zip(image["Layers"], differences, strict=True):
            layer = piece(name)
            digest = f"sha256:{Path(name).name}" if name.startswith("blobs/sha256/") else difference
            blobs[digest] = layer
            magic = next(layer.blocks(0), b"")[:2]
            layers.append({"mediaType": LAYER_TYPES.get(magic, PLAIN), "digest": digest, "size": layer.size})
        # A daemon with containerd's store knows the image by the manifest that it was built or pulled with.
        for name in filter(lambda name: name.startswith("blobs/sha256/"), members):
            if members[name].size < 1 << 20 and (document := _manifest(b"".join(piece(name).blocks(0)), blobs)):
                return Source(document, blobs)
    described = {"mediaType": CONFIG_TYPE, "digest": next(iter(blobs)), "size": config.size}
    return Source(
        canonical_json({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": layers}), blobs
    )


def _manifest(data: bytes, blobs: dict[str, Piece]) -> bytes | None:
    """Return the data if they are the manifest of these blobs."""
    try:
        document = json.loads(data)
        wanted = [document["config"]["digest"], *(layer["digest"] for layer in document["layers"])]
    except (ValueError, LookupError, TypeError):
        return None
    return data if set(wanted) == set(blobs) else None


def find(there: There, *ids: str) -> str | None:
    """Return the id by which the second Spark has an image; None if it lacks it."""
    for one in ids:
        done = run(there, "docker", "image", "inspect", "--format", "{{.Id}}", one)
        if not done.returncode:
            return done.stdout.strip()
        if "No such image" not in done.stderr:
            raise failed(there, ("docker", "image", "inspect"), done.stderr)
    return None


def send(source: Source, there: There, name: str, say: Say) -> tuple[str, Sent]:
    """Have the second Spark pull the image and give it a name; return its id there, and what was sent."""
    layers = {f"/v2/{NAME}/blobs/{layer['digest']}": layer for layer in source.document["layers"]}
    with lent(source.pieces) as server, there.lending(server.server_port) as port:
        reference = f"127.0.0.1:{port}/{NAME}@{source.digest}"
        with _telling(server, sum(layer["size"] for layer in layers.values()), say):
            done = run(there, "docker", "pull", "--quiet", reference, timeout=LIMIT)
        if done.returncode:
            raise failed(there, ("docker", "pull"), done.stderr)
        sent = Sent(server.sent.total(), sum(path in server.sent for path in layers), len(layers))
    found = find(there, *source.ids) or source.ids[0]
    check(there, "docker", "tag", found, name)
    run(there, "docker", "rmi", "--no-prune", reference)  # the name of a registry that is gone
    return found, sent


@contextmanager
def _telling(server: Lender, total: int, say: Say) -> Iterator[None]:
    ended = threading.Event()

    def tell() -> None:
        before = 0
        while not ended.wait(EVERY):
            now = server.sent.total()
            if now != before:
                say(f"image: {size(now)} sent of at most {size(total)}, {size(int((now - before) / EVERY))}/s")
            before = now

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
