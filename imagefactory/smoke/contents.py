"""The files of an image under test: what a container would see, without starting one."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

from isal import igzip

from imagefactory.build.engines.docker.daemon import files_of
from imagefactory.build.engines.docker.saved_image import open_image
from imagefactory.oci.compare import Opened, merged, open_layout
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import ListedPath
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest

_FILES = frozenset({"file", "hard link"})


class Contents(Protocol):
    """An image's configuration and its files."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration document."""

    @property
    def files(self) -> Mapping[str, ListedPath]:
        """Every path with its metadata, layers stacked."""

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Read files; those that the image does not have are left out."""

    def copy(self, path: str, target: Path) -> None:
        """Copy one file, of any size."""


class LayoutContents:
    """An image in an OCI layout; a layer is only unpacked for files that are read."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self._layout = layout
        self._store = store

    @cached_property
    def _opened(self) -> Opened:
        return open_layout(self._layout, self._store)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration document."""
        return self._layout.config()

    @cached_property
    def files(self) -> Mapping[str, ListedPath]:
        """Every path with its metadata, layers stacked."""
        return merged(self._opened.layers)

    @cached_property
    def _layer_of(self) -> dict[str, Digest]:
        """Return the layer whose version of a path a container sees: the topmost."""
        layers = zip(self._layout.layer_digests(), self._opened.layers, strict=True)
        return {entry.path: digest for digest, listing in layers for entry in listing}

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Read files; those that the image does not have are left out."""
        found: dict[str, bytes] = {}
        for path, content in self._each(set(paths)):
            found[path] = content.read()
        return found

    def copy(self, path: str, target: Path) -> None:
        """Copy one file, of any size."""
        for _, content in self._each({path}):
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)

    def _each(self, paths: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
        wanted: dict[Digest, dict[str, list[str]]] = {}
        for path in sorted(paths):
            entry = self.files.get(path)
            if entry is not None and entry.kind in _FILES:
                source = entry.target if entry.kind == "hard link" else path
                wanted.setdefault(self._layer_of[source], {}).setdefault(source, []).append(path)
        for digest, sources in wanted.items():
            with _open_layer(self._layout.blob(digest)) as archive:
                for member in archive:
                    name = member.name.removeprefix("./").rstrip("/")
                    for path in sources.pop(name, ()):
                        content = archive.extractfile(member)
                        if content is not None:
                            yield path, content
                    if not sources:
                        break


class DaemonContents:
    """An image that only the Docker daemon has: listed once as it is saved, files taken from an idle container."""

    def __init__(self, image: str) -> None:
        self._image = image

    @cached_property
    def _opened(self) -> Opened:
        return open_image(self._image)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration document."""
        return self._opened.config

    @cached_property
    def files(self) -> Mapping[str, ListedPath]:
        """Every path with its metadata, layers stacked."""
        return merged(self._opened.layers)

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Read files; those that the image does not have are left out."""
        wanted = [path for path in sorted(set(paths)) if self._has(path)]
        return {path: content.read() for path, content in files_of(self._image, wanted)}

    def copy(self, path: str, target: Path) -> None:
        """Copy one file, of any size."""
        for _, content in files_of(self._image, [path] if self._has(path) else []):
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)

    def _has(self, path: str) -> bool:
        entry = self.files.get(path)
        return entry is not None and entry.kind in _FILES


@contextmanager
def _open_layer(blob: Path) -> Iterator[tarfile.TarFile]:
    with (
        igzip.open(blob, "rb") as stream,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        yield archive
