"""OCI layouts: an image as a folder (of hard links into the store) or as one tar stream.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md. The tar also carries the manifest.json that
`docker load` asks for, so one stream serves Docker of any age, podman and skopeo.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagefactory.content import Digest, canonical_json
from imagefactory.errors import ImageMissingError
from imagefactory.oci.entry import Bytes, Content, Entry, ImagePath, Kind, RawSlice
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE, Image
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.store import Store, translating_disk_full

_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_CHUNK = 1024 * 1024


@dataclass(frozen=True)
class Layout:
    """An OCI layout folder with one image in it."""

    folder: Path

    def blob(self, digest: Digest | str) -> Path:
        """Say where a blob of the layout is."""
        algorithm, _, value = digest.partition(":")
        return self.folder / "blobs" / algorithm / value

    def manifest_digest(self) -> Digest:
        """Read which image the layout holds."""
        try:
            index = json.loads((self.folder / "index.json").read_text("utf-8"))
        except FileNotFoundError:
            raise ImageMissingError(
                "There is no image here.",
                where=self.folder,
                why="The folder has no index.json.",
                fix="Build it first: `invoke build --target ...`.",
            ) from None
        return Digest(index["manifests"][0]["digest"])

    def manifest(self) -> dict[str, object]:
        """Read the manifest."""
        data: dict[str, object] = json.loads(self.blob(self.manifest_digest()).read_bytes())
        return data

    def layer_digests(self) -> list[Digest]:
        """List the layers, lowest first."""
        layers = self.manifest()["layers"]
        return [Digest(layer["digest"]) for layer in layers] if isinstance(layers, list) else []

    def config_digest(self) -> Digest:
        """Name the configuration."""
        config = self.manifest()["config"]
        return Digest(config["digest"]) if isinstance(config, dict) else Digest("")


def write_layout(image: Image, name: str, store: Store, folder: Path) -> Layout:
    """Lay an image out; the old content of the folder is replaced in one step."""
    for digest, data in ((image.config_digest, image.config), (image.digest, image.manifest)):
        if not store.blob(digest).exists():
            with store.writing(store.blob(digest)) as file:
                file.write(data)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    layout = Layout(fresh)
    try:
        digests = [image.digest, image.config_digest, *(blob.digest for blob in image.layers)]
        layout.blob(image.digest).parent.mkdir(parents=True)
        for digest in dict.fromkeys(digests):
            _link_or_copy(store.blob(digest), layout.blob(digest))
        (fresh / "oci-layout").write_bytes(_VERSION)
        (fresh / "index.json").write_bytes(canonical_json(_index(image, name)))
        _replace_folder(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Layout(folder)


def archive(layout: Layout, name: str) -> Iterator[bytes]:
    """Stream a layout as a tar that Docker, podman and skopeo load. Nothing is written to disk."""
    config, layers = layout.config_digest(), layout.layer_digests()
    docker_manifest = [
        {
            "Config": _member(config),
            "RepoTags": [name],
            "Layers": [_member(digest) for digest in layers],
        }
    ]
    contents: dict[str, Content] = {
        "oci-layout": Bytes(_VERSION),
        "index.json": Bytes((layout.folder / "index.json").read_bytes()),
        "manifest.json": Bytes(canonical_json(docker_manifest)),
    }
    for digest in dict.fromkeys([layout.manifest_digest(), config, *layers]):
        blob = layout.blob(digest)
        contents[_member(digest)] = RawSlice(blob, 0, blob.stat().st_size)
    entries = (Entry(ImagePath(path), Kind.FILE, 0o644, content) for path, content in contents.items())
    for entry in complete(entries, owner="the image archive"):
        yield header(entry)
        if isinstance(entry.content, RawSlice):
            with entry.content.file.open("rb") as file:
                while data := file.read(_CHUNK):
                    yield data
        elif isinstance(entry.content, Bytes):
            yield entry.content.data
        yield padding(entry.content.size if entry.content else 0)
    yield END


def write_archive(stream: Iterator[bytes], file: Path) -> None:
    """Write an archive to a file, whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with translating_disk_full(file), temporary.open("wb") as target:
            for data in stream:
                target.write(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _member(digest: Digest) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _index(image: Image, name: str) -> dict[str, object]:
    system, _, machine = image.platform.partition("/")
    return {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            {
                "mediaType": MANIFEST_TYPE,
                "digest": image.digest,
                "size": len(image.manifest),
                "platform": {"architecture": machine, "os": system},
                "annotations": {"org.opencontainers.image.ref.name": name},
            }
        ],
    }


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        # Another file system, or one without hard links.
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _replace_folder(fresh: Path, folder: Path) -> None:
    """Put a new folder in the place of an old one; a reader sees the one or the other."""
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(fresh, folder)
    shutil.rmtree(old, ignore_errors=True)
