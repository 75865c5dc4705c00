"""Reads the files of an image under test, as a container would see them, without starting one."""

from __future__ import annotations

import shutil
import tarfile
from abc import ABC, abstractmethod
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
        """Read files; ignore paths that the image does not have."""

    def copy(self, path: str, target: Path) -> None:
        """Copy a file of any size."""


class _OpenedContents(ABC):
    @cached_property
    @abstractmethod
    def _opened(self) -> Opened: ...

    @abstractmethod
    def _open_each(self, paths: list[str]) -> Iterator[tuple[str, IO[bytes]]]: ...

    @property
    def config(self) -> Mapping[str, Any]:
        return self._opened.config

    @cached_property
    def files(self) -> Mapping[str, ListedPath]:
        return merged(self._opened.layers)

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: content.read() for path, content in self._open_each(self._existing(paths))}

    def copy(self, path: str, target: Path) -> None:
        for _, content in self._open_each(self._existing([path])):
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)

    def _existing(self, paths: Iterable[str]) -> list[str]:
        wanted = set(paths)
        return sorted(path for path in wanted & self.files.keys() if self.files[path].kind in _FILES)


class LayoutContents(_OpenedContents):
    """An image in an OCI layout; a layer is only unpacked for files that are read."""

    def __init__(self, layout: Layout, store: Store) -> None:
        self._layout = layout
        self._store = store

    @cached_property
    def _opened(self) -> Opened:
        return open_layout(self._layout, self._store)

    @cached_property
    def _layer_of(self) -> dict[str, Digest]:
        """The topmost layer with each path, whose version a container sees."""
        layers = zip(self._layout.layer_digests(), self._opened.layers, strict=True)
        return {entry.path: digest for digest, listing in layers for entry in listing}

    def _open_each(self, paths: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
        wanted: dict[Digest, dict[str, list[str]]] = {}
        for path in paths:
            entry = self.files[path]
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


class DaemonContents(_OpenedContents):
    """An image that only the Docker daemon has; files are taken from an idle container."""

    def __init__(self, image: str) -> None:
        self._image = image

    @cached_property
    def _opened(self) -> Opened:
        return open_image(self._image)

    def _open_each(self, paths: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
        yield from files_of(self._image, paths)


@contextmanager
def _open_layer(blob: Path) -> Iterator[tarfile.TarFile]:
    with (
        igzip.open(blob, "rb") as stream,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        yield archive
