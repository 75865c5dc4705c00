"""From a layer of the plan to its blob: collect the entries of its kind, write them in the one order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from imagefactory.build.layers.cuda_toolkit import toolkit_links
from imagefactory.build.layers.debian.file_tree import FACTORY
from imagefactory.build.layers.debian.policy import folder
from imagefactory.build.layers.model_layer import model_entries
from imagefactory.build.layers.virtual_environment import environment_entries
from imagefactory.build.layers.wheel_layer import Environment, metadata_entries, wheel_entries
from imagefactory.environment.progress import Progress
from imagefactory.oci.blob import Blob
from imagefactory.oci.entry import Bytes, Entry
from imagefactory.oci.gzip import LayerBlob, NotAsExpectedError
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.plan.built_layers import write_record
from imagefactory.plan.plan import Input, Layer
from imagefactory.store.atomic import adopt, translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of

REPORT_EVERY = 8 * 1024 * 1024
"""Bytes between two reports of progress."""


def build_layer(
    layer: Layer,
    files: Mapping[Sha256, Path],
    store: Store,
    progress: Progress,
    *,
    expected: Blob | None = None,
) -> Blob:
    """Make the blob of a layer, put it into the store and remember what it came out as.

    Where it is known what it must come out as, what is copied is not looked into. A blob that is another one in the end
    is made again with all checks: they say which file is wrong, or that none is.
    """
    with translating_disk_full(store.root), store.scratch() as scratch:
        owned = list(layer_entries(layer, files, scratch))
        entries = complete(
            (entry for _, entry in owned), owner=f"layer {layer.kind} {layer.name}", folder_of=folder
        )
        try:
            blob = _write(entries, store, scratch, progress, expected)
        except NotAsExpectedError:
            blob = _write(entries, store, scratch, progress, None)
    owners = {str(entry.path): owner for owner, entry in owned}
    write_record(layer.key, blob, owners, store)
    return blob


def layer_entries(layer: Layer, files: Mapping[Sha256, Path], scratch: Path) -> Iterable[tuple[str, Entry]]:
    """List a layer's entries, each with the file of the lock that owns it."""
    if layer.kind in ("model", "toolkit"):
        yield from _entries_of_settings(layer)
        return
    if layer.kind == "serve":
        from imagefactory.build.layers.serve_layer import serve_entries  # noqa: PLC0415 - with the serving schema

        places = cast("Mapping[str, str]", layer.settings["files"])
        inputs = [(item.name, item.sha256) for item in layer.inputs]
        yield from ((FACTORY, entry) for entry in serve_entries(places, inputs, files))
        toolkit = layer.settings.get("toolkit")
        if isinstance(toolkit, dict):
            yield from ((FACTORY, entry) for entry in toolkit_links(toolkit["venv"], toolkit["python"]))
        return
    environment = Environment(venv=str(layer.settings["venv"]), python=str(layer.settings["python"]))
    if layer.kind == "base":
        from imagefactory.build.layers.base_layer import base_entries  # noqa: PLC0415 - heavy, and built seldom

        debs = [(_Deb.of(item), files[item.sha256]) for item in layer.inputs]
        yield from base_entries(debs=debs, scratch=scratch)
        yield from ((FACTORY, entry) for entry in environment_entries(environment))
        return
    if layer.kind == "mod":
        from imagefactory.build.layers.mod_layer import mod_entries  # noqa: PLC0415 - needs the mods' whole machinery

        wheels = {item.name: files[item.sha256] for item in layer.inputs}
        yield from (
            (f"mods/{layer.name}", entry) for entry in mod_entries(layer.settings, wheels, environment)
        )
        return
    without = layer.settings.get("without", {})
    rehash = layer.settings.get("rehash", ())
    rehash = rehash if isinstance(rehash, list) else ()
    second_name = layer.settings.get("second_name")
    if isinstance(second_name, dict):
        yield from ((FACTORY, entry) for entry in metadata_entries(second_name, environment))
    seen: dict[str, Entry] = {}
    for item in layer.inputs:
        given_up = without.get(item.name, ()) if isinstance(without, dict) else ()
        for entry in wheel_entries(
            files[item.sha256], item.name, environment, without=given_up, rehash=item.name in rehash
        ):
            if not _repeats(entry, seen):
                seen[entry.path] = entry
                yield item.name, entry


def _entries_of_settings(layer: Layer) -> Iterable[tuple[str, Entry]]:
    """List the entries of a layer that is made of its settings alone."""
    if layer.kind == "model":
        return [("matrix.yaml", entry) for entry in model_entries(layer.settings)]
    links = toolkit_links(str(layer.settings["venv"]), str(layer.settings["python"]))
    return [(FACTORY, entry) for entry in links]


class _Deb(NamedTuple):
    """A Debian package as its file name describes it."""

    name: str
    version: str
    architecture: str
    file: str
    sha256: str

    @classmethod
    def of(cls, item: Input) -> _Deb:
        name, version, architecture = item.name.removesuffix(".deb").split("_")
        return cls(name, version.replace("%3a", ":"), architecture, item.name, item.sha256)


def _repeats(entry: Entry, seen: Mapping[str, Entry]) -> bool:
    """True for a path that another wheel of the bundle already brought, with the same content.

    Namespace packages share their __init__.py that way. Different content was refused when the lock was made, and
    is refused again when the entries are put in order.
    """
    other = seen.get(entry.path)
    return other is not None and other.mode == entry.mode and _fingerprint(other) == _fingerprint(entry)


def _fingerprint(entry: Entry) -> object:
    if isinstance(entry.content, Bytes):
        return sha256_of(entry.content.data)
    return entry.content.sha256 if entry.content is not None else None


def _write(
    entries: Iterable[Entry], store: Store, scratch: Path, progress: Progress, expected: Blob | None
) -> Blob:
    temporary = scratch / "blob"
    with translating_disk_full(temporary), temporary.open("wb", buffering=0) as file:
        writer = LayerBlob(file, expected)
        try:
            reported = 0
            for entry in entries:
                writer.write(header(entry))
                if entry.content is not None:
                    writer.add(entry.content, entry.path)
                    writer.write(padding(entry.content.size))
                if writer.unpacked - reported >= REPORT_EVERY:
                    reported = writer.unpacked
                    progress(reported)
            writer.write(END)
            blob = writer.finish()
        finally:
            writer.close()
    adopt(temporary, store.blob(blob.digest))
    return blob
