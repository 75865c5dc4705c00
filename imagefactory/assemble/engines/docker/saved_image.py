"""Reads an image from the stream of `docker save`, without writing it to disk."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Iterator
from typing import IO, Any

from isal import igzip

from imagefactory.assemble.engines.docker.daemon import reader, save
from imagefactory.errors import InputError
from imagefactory.oci.compare import Opened
from imagefactory.oci.entry import INFLATE_ERROR
from imagefactory.oci.listing import ListedPath, read_stream

_GZIP = b"\x1f\x8b"
_DOCUMENT = b"{["
"""The first byte of a JSON document; no layer begins with it."""
_PEEK = 512


def open_image(name: str) -> Opened:
    """Read an image of the daemon."""
    return open_saved(save(name), name)


def open_saved(chunks: Iterator[bytes], name: str) -> Opened:
    """Read a `docker save` stream: the format of old daemons (layer.tar), or an OCI layout."""
    documents: dict[str, Any] = {}
    layers: dict[str, list[ListedPath]] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=reader(chunks), mode="r|") as archive:
            for member in archive:
                if member.issym():  # one layer that occurs twice
                    links[member.name] = posixpath.normpath(
                        posixpath.join(posixpath.dirname(member.name), member.linkname)
                    )
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    _take(member.name, content, documents, layers)
        [image] = documents["manifest.json"]
        stack = [layers[links.get(layer, layer)] for layer in image["Layers"]]
        return Opened(documents[image["Config"]], stack)
    except (tarfile.TarError, INFLATE_ERROR, EOFError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            "damaged-file",
            f"The saved image {name} cannot be read.",
            where="docker save",
            why=f"{type(error).__name__}: {error}",
            fix="Try again; if it keeps failing, save it with `docker save` and inspect the file.",
        ) from None


def _take(
    name: str, content: IO[bytes], documents: dict[str, Any], layers: dict[str, list[ListedPath]]
) -> None:
    """Keep a document, list a layer, skip the rest."""
    buffered = io.BufferedReader(content, _PEEK)  # type: ignore[type-var]
    head = buffered.peek(_PEEK)
    if head[:1] and head[:1] in _DOCUMENT:
        documents[name] = json.load(buffered)
    elif head.startswith(_GZIP):
        layers[name] = list(read_stream(igzip.open(buffered, "rb")))  # type: ignore[no-untyped-call]
    elif name.endswith("layer.tar") or name.startswith("blobs/"):
        layers[name] = list(read_stream(buffered))
