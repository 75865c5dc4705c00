"""OCI layouts: an image as a folder of hard links into the store, or as a tar stream.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md. The tar also contains the manifest.json for
`docker load`, so it works with any version of Docker, podman and skopeo.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from imagefactory.errors import BuildError, UsageError
from imagefactory.oci.entry import Bytes, Content, Entry, EntryKind, ImagePath, RawSlice
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE, Image
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.store.atomic import translating_disk_full, write_text, writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, canonical_json, parse_json, sound_blocks

_VERSION = '{"imageLayoutVersion":"1.0.0"}'


@dataclass(frozen=True)
class Layout:
    """An OCI layout folder with one image."""

    folder: Path

    def blob(self, digest: Digest | str) -> Path:
        algorithm, _, value = digest.partition(":")
        return self.folder / "blobs" / algorithm / value

    def manifest_digest(self) -> Digest:
        with self._reading():
            return Digest(parse_json((self.folder / "index.json").read_bytes())["manifests"][0]["digest"])

    def manifest(self) -> dict[str, Any]:
        return self._document(self.manifest_digest())

    def layer_digests(self) -> list[Digest]:
        """Return the digests of the layers, lowest first."""
        with self._reading():
            return [Digest(layer["digest"]) for layer in self.manifest()["layers"]]

    def config_digest(self) -> Digest:
        with self._reading():
            return Digest(self.manifest()["config"]["digest"])

    def config(self) -> dict[str, Any]:
        return self._document(self.config_digest())

    def labels(self) -> dict[Digest, str]:
        """Return what each layer is, as the image's history has it."""
        history = [entry for entry in self.config().get("history", ()) if not entry.get("empty_layer")]
        names = [str(entry.get("created_by", "layer")).removeprefix("imagefactory ") for entry in history]
        digests = self.layer_digests()
        names += ["layer"] * (len(digests) - len(names))
        return dict(zip(digests, names, strict=False))

    def size_of(self, digest: Digest) -> int:
        with self._reading():
            return self.blob(digest).stat().st_size

    def size(self) -> int:
        """Return the bytes of all layers."""
        return sum(map(self.size_of, self.layer_digests()))

    def _document(self, digest: Digest) -> dict[str, Any]:
        with self._reading():
            data: dict[str, Any] = parse_json(self.blob(digest).read_bytes())
            return data

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise an error with a remedy if the layout is missing or incomplete."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            what, why = "There is no image here.", f"The folder has no {Path(str(error.filename)).name}."
        except (ValueError, KeyError, IndexError, TypeError) as error:
            what, why = "The image cannot be read.", f"Its documents are damaged ({type(error).__name__})."
        else:
            return
        raise BuildError(
            "no-image", what, where=self.folder, why=why, fix="Build the image: `./inv build --target ...`."
        )


def write_layout(image: Image, name: str, store: Store, folder: Path) -> Layout:
    """Write an image as a layout; a folder with another image contains one of the two at any time."""
    hashed = store.hashed_files()
    for digest, data in ((image.config_digest, image.config), (image.digest, image.manifest)):
        if not hashed.is_sound(store.blob(digest)):
            with writing(store.blob(digest)) as file:
                file.write(data)
    layout = Layout(folder)
    digests = {image.digest, image.config_digest, *(blob.digest for blob in image.layers)}
    hashed.refuse_changed(map(store.blob, digests))
    with writing_output(folder):
        layout.blob(image.digest).parent.mkdir(parents=True, exist_ok=True)
        # Two builds may write to the same folder.
        with FileLock(folder / ".lock"):
            write_text(folder / "oci-layout", _VERSION)
            for digest in digests:
                source, target = store.blob(digest), layout.blob(digest)
                if not target.exists() or not (target.samefile(source) or hashed.is_sound(target)):
                    _put(source, target)
            # After its blobs and before old ones go: what the index names is always there.
            write_text(folder / "index.json", canonical_json(_index(image, name)).decode())
            for blob in layout.blob(image.digest).parent.iterdir():
                if f"sha256:{blob.name}" not in digests:
                    blob.unlink()
    # After linking, which changes the ctime by which a file is recognised; a hard link needs no entry of its own.
    pairs = [(store.blob(digest), layout.blob(digest)) for digest in digests]
    hashed.remember(path for pair in pairs for path in pair[: 1 if pair[0].samefile(pair[1]) else 2])
    return layout


def archive(layout: Layout, name: str) -> Iterator[bytes]:
    """Stream a layout as a tar that Docker, podman and skopeo load, without writing it to disk.

    Blobs are hashed on the way: a changed one raises DamagedCacheError before its last bytes, and cuts the tar off.
    """
    config, layers = layout.config_digest(), layout.layer_digests()
    docker_manifest = [{"Config": _member(config), "RepoTags": [name], "Layers": [*map(_member, layers)]}]
    contents: dict[str, Content] = {
        "oci-layout": Bytes(_VERSION.encode()),
        "index.json": Bytes((layout.folder / "index.json").read_bytes()),
        "manifest.json": Bytes(canonical_json(docker_manifest)),
    }
    for digest in dict.fromkeys([layout.manifest_digest(), config, *layers]):
        contents[_member(digest)] = RawSlice(layout.blob(digest), 0, layout.size_of(digest))
    entries = (Entry(ImagePath(path), EntryKind.FILE, 0o644, content) for path, content in contents.items())
    for entry in complete(entries, owner="the image archive"):
        yield header(entry)
        if isinstance(entry.content, RawSlice):
            yield from sound_blocks(entry.content.file)
        elif isinstance(entry.content, Bytes):
            yield entry.content.data
        yield padding(entry.content.size if entry.content else 0)
    yield END


def write_archive(stream: Iterator[bytes], file: Path) -> None:
    with writing_output(file), writing(file) as target:
        for data in stream:
            target.write(data)


@contextmanager
def writing_output(place: Path) -> Iterator[None]:
    """Turn an OSError about the user's output path into an error with a remedy."""
    try:
        with translating_disk_full(place):
            yield
    except OSError as error:
        raise UsageError(
            "output-unusable",
            "The image cannot be written there.",
            where=place,
            why=f"{error.strerror or error}.",
            fix="Choose an existing folder that you can write to.",
        ) from None


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


def _put(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        link_or_copy(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        # Another file system, or one without hard links.
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)
