"""Reads the files of an image under test, as a container would see them, without starting one."""

import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from isal import igzip

from imagefactory.assemble.parallel import available_cores
from imagefactory.oci.compare import Opened, merged
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import LayerReading, ListedPath, read_layer, remember_listing, unreadable
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest

_FILES = frozenset({"file", "hard link"})
_IN_MEMORY = 1 << 20  # larger files are kept on disk


class Contents:
    """The configuration and files of an image; each layer is read once, and files of interest are kept on the way."""

    def __init__(
        self,
        layout: Layout,
        store: Store,
        keep: Callable[[str], bool] = lambda _: False,
        scratch: Path | None = None,
    ) -> None:
        """Choose the files to keep by path; large ones are kept in the folder `scratch`."""
        self._layout = layout
        self._store = store
        self._keep = keep
        self._scratch = scratch
        self._kept: dict[tuple[Digest, str], IO[bytes]] = {}

    @cached_property
    def layers(self) -> dict[Digest, LayerReading]:
        """What was found in each layer, by the digest in the manifest; damage is part of it."""
        digests = list(dict.fromkeys(self._layout.layer_digests()))
        with ThreadPoolExecutor(available_cores()) as pool:
            return dict(zip(digests, pool.map(self._read, digests), strict=True))

    @property
    def config(self) -> Mapping[str, Any]:
        return self._opened.config

    @cached_property
    def files(self) -> Mapping[str, ListedPath]:
        """Every path with its metadata, layers stacked."""
        return merged(self._opened.layers)

    def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Read files; ignore paths that the image does not have."""
        return {path: content.read() for path, content in self._open_each(self._existing(paths))}

    def copy(self, path: str, target: Path) -> None:
        for _, content in self._open_each(self._existing([path])):
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].close()

    @cached_property
    def _opened(self) -> Opened:
        for digest, layer in self.layers.items():
            if layer.fault:
                raise unreadable(self._layout.blob(digest), layer.fault)
        listings = [self.layers[digest].listing for digest in self._layout.layer_digests()]
        return Opened(self._layout.config(), listings)

    @cached_property
    def _layer_of(self) -> dict[str, Digest]:
        """The topmost layer with each path, whose version a container sees."""
        layers = zip(self._layout.layer_digests(), self._opened.layers, strict=True)
        return {entry.path: digest for digest, listing in layers for entry in listing}

    def _read(self, digest: Digest) -> LayerReading:
        def sink(path: str) -> IO[bytes] | None:
            if not self._keep(path):
                return None
            folder = str(self._scratch) if self._scratch else None
            kept = SpooledTemporaryFile(_IN_MEMORY, dir=folder)  # noqa: SIM115 - `close` closes it
            return self._kept.setdefault((digest, path), kept)

        reading = read_layer(self._layout.blob(digest), sink)
        if reading.digest == digest and not reading.fault:
            remember_listing(reading.listing, digest, self._store)
        return reading

    def _existing(self, paths: Iterable[str]) -> list[str]:
        return sorted(path for path in {*paths} & self.files.keys() if self.files[path].kind in _FILES)

    def _open_each(self, paths: list[str]) -> Iterator[tuple[str, IO[bytes]]]:
        unread: dict[Digest, dict[str, list[str]]] = {}
        for path in paths:
            entry = self.files[path]
            # A layer stores the bytes of a hard link once, with the path that it names.
            source = entry.target if entry.kind == "hard link" else path
            digest = self._layer_of[source]
            kept = self._kept.get((digest, source))
            if kept is None:
                unread.setdefault(digest, {}).setdefault(source, []).append(path)
                continue
            kept.seek(0)
            yield path, kept
        for digest, sources in unread.items():
            with (
                igzip.open(self._layout.blob(digest), "rb") as stream,  # type: ignore[no-untyped-call]
                tarfile.open(fileobj=stream, mode="r|") as archive,
            ):
                for member in archive:
                    name = member.name.removeprefix("./").rstrip("/")
                    for path in sources.pop(name, ()):
                        content = archive.extractfile(member)
                        if content is not None:
                            yield path, content
                    if not sources:
                        break
