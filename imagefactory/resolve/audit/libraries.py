"""Finds the libraries to audit: in a file, in a wheel (local or remote), or in the layers of an image."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO
from zipfile import ZipFile, ZipInfo

from isal import igzip

from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import cached_listing
from imagefactory.resolve.wheel_contents import file_sha256
from imagefactory.store.cache import Store

_LIBRARIES = ("*.so", "*.so.*")
_PACKAGES = ("vllm/*", "flashinfer*/*")
"""Packages whose kernels an image is judged by; the libraries of CUDA and torch are left to their publishers."""
_SITE = "/site-packages/"


@dataclass(frozen=True)
class GpuLibrary:
    """A shared library that is unpacked only when it has to be inspected."""

    name: str
    identity: str
    """Identifies the content, so that findings about it stay valid."""
    unpack: Callable[[Path], object]
    """Writes the library to a path."""


def is_library(name: str) -> bool:
    """Whether a path is a shared library of an audited package."""
    return any(fnmatchcase(name, pattern) for pattern in _LIBRARIES) and any(
        fnmatchcase(name, pattern) for pattern in _PACKAGES
    )


def from_file(path: Path) -> Iterator[GpuLibrary]:
    """Yield a library from disk."""
    yield GpuLibrary(path.name, f"file:{file_sha256(path)}", partial(shutil.copyfile, path))


def from_wheel(archive: ZipFile, sha256: str) -> Iterator[GpuLibrary]:
    """Yield the libraries in a wheel."""
    for info in archive.infolist():
        if is_library(info.filename):
            unpack = partial(_from_archive, archive, info)
            yield GpuLibrary(info.filename, f"wheel:{sha256}:{info.filename}", unpack)


def from_layout(layout: Layout, store: Store) -> Iterator[GpuLibrary]:
    """Yield the libraries in an image; layers without any are not unpacked."""
    for digest in layout.layer_digests():
        blob = layout.blob(digest)
        for entry in cached_listing(blob, digest, store):
            name = entry.path.partition(_SITE)[2]
            if entry.kind == "file" and is_library(name):
                yield GpuLibrary(name, f"file:{entry.sha256}", partial(_from_layer, blob, entry.path))


def _from_archive(archive: ZipFile, info: ZipInfo, target: Path) -> None:
    _copy(archive.open(info), target)


def _from_layer(blob: Path, path: str, target: Path) -> None:
    with (
        igzip.open(blob, "rb") as stream,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            content = archive.extractfile(member) if member.name == path else None
            if content is not None:
                _copy(content, target)
                return


def _copy(source: IO[bytes], target: Path) -> None:
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
