"""Builds a layer: collects its entries, puts them in order, and writes them as a blob."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory.assemble.layers.debian.file_tree import FACTORY
from imagefactory.assemble.layers.debian.policy import folder
from imagefactory.assemble.layers.own_layers import model_entries, serve_entries, toolkit_links
from imagefactory.assemble.layers.slim_wheel import Slimmer
from imagefactory.assemble.layers.wheel_layer import metadata_entries, wheel_entries
from imagefactory.oci.entry import Entry
from imagefactory.oci.gzip import LayerBlob, NotAsExpectedError
from imagefactory.oci.image import Blob
from imagefactory.oci.tar import END, complete, header, padding
from imagefactory.plan.known_layers import write_record, write_slimmed
from imagefactory.plan.plan import (
    BaseLayer,
    BytecodeLayer,
    Layer,
    ModelLayer,
    ModLayer,
    ServeLayer,
    ToolkitLayer,
    WheelLayer,
)
from imagefactory.project.locks.files import LockedDeb
from imagefactory.project.locks.kernels import SlimmedWheel
from imagefactory.store.atomic import adopt, translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, refuse_changed
from imagefactory.store.progress import Progress

REPORT_EVERY = 8 * 1024 * 1024  # bytes between two reports of progress


@dataclass(frozen=True)
class LayerWork:
    """A layer to build, and what that takes."""

    layer: Layer
    files: Mapping[Sha256, Path]  # its inputs
    expected: Blob | None = None  # what it is known to come out as
    modded: tuple[Entry, ...] = ()  # the files that mods give to it
    python: tuple[tuple[LockedDeb, Path], ...] = ()  # the packages of a Python that compiles bytecode here
    slimmed: tuple[SlimmedWheel, ...] = ()  # the records of wheels whose libraries are slimmed


def build_layer(work: LayerWork, store: Store, progress: Progress) -> Blob:
    """Build a layer's blob, put it into the store and record its digests.

    If the result is known in advance, copied data is not unpacked to be checked. If the blob then comes out different,
    it is built again with all checks, which name the file that is wrong, if one is. The files of any other layer are
    hashed first: nothing else would notice that one of them changed in the cache.
    """
    if work.expected is None:
        refuse_changed(work.files)
    refuse_changed({deb.sha256: path for deb, path in work.python})
    with translating_disk_full(store.root):
        try:
            made = _make(work, store, progress)
        except NotAsExpectedError:
            refuse_changed(work.files)
            made = _make(replace(work, expected=None), store, progress)
    blob, owners, records = made
    write_slimmed(work.layer.key, records, store)  # before the record, with which the layer counts as built
    write_record(work.layer.key, blob, owners, store)
    return blob


def _make(work: LayerWork, store: Store, progress: Progress) -> tuple[Blob, dict[str, str], list[SlimmedWheel]]:
    """Write a layer's blob; return it with the owner of each path and what was taken out of wheels."""
    slimmers: list[Slimmer] = []
    with store.scratch() as scratch:
        owned = list(layer_entries(work, scratch, slimmers))
        owner = f"layer {work.layer.kind} {work.layer.name}"
        entries = complete((entry for _, entry in owned), owner=owner, folder_of=folder)
        blob = _write(entries, store, scratch, progress, work.expected)
    records = [record for slimmer in slimmers if (record := slimmer.record) is not None]
    return blob, {str(entry.path): owner for owner, entry in owned}, records


def layer_entries(  # noqa: PLR0911 - one for each kind
    work: LayerWork, scratch: Path, slimmers: list[Slimmer] | None = None
) -> Iterable[tuple[str, Entry]]:
    """List a layer's entries, each with its owner: the locked file, mod or other source that it comes from.

    What slims wheels is added to `slimmers`; afterwards, it tells what was taken out.
    """
    match work.layer:
        case BaseLayer() as layer:
            return _base_entries(layer, work.files, scratch)
        case WheelLayer() as layer:
            return _wheel_entries(layer, work, [] if slimmers is None else slimmers)
        case BytecodeLayer() as layer:
            from imagefactory.assemble.layers.bytecode_layer import bytecode_entries  # noqa: PLC0415 - rarely built

            return bytecode_entries(layer, work.files, scratch, work.modded, work.python)
        case ServeLayer() as layer:
            return ((FACTORY, entry) for entry in serve_entries(layer, work.files))
        case ModLayer() as layer:
            return ((f"mods/{layer.name}", entry) for entry in work.modded)
        case ModelLayer() as layer:
            return (("matrix.yaml", entry) for entry in model_entries(layer.settings))
        case ToolkitLayer() as layer:
            return ((FACTORY, entry) for entry in toolkit_links(layer.settings))


def _base_entries(layer: BaseLayer, files: Mapping[Sha256, Path], scratch: Path) -> Iterable[tuple[str, Entry]]:
    from imagefactory.assemble.layers.base_layer import base_entries, environment_entries  # noqa: PLC0415 - slow
    from imagefactory.assemble.layers.debian.deb import NamedDeb  # noqa: PLC0415

    debs = [(NamedDeb.of_file(file.name, file.sha256), files[file.sha256]) for file in layer.inputs]
    yield from base_entries(debs, scratch)
    yield from ((FACTORY, entry) for entry in environment_entries(layer.settings))


def _wheel_entries(layer: WheelLayer, work: LayerWork, slimmers: list[Slimmer]) -> Iterable[tuple[str, Entry]]:
    settings = layer.settings
    if settings.second_name is not None:
        yield from ((FACTORY, entry) for entry in metadata_entries(settings.second_name, settings))
    seen: dict[str, Entry] = {}
    for wheel in layer.inputs:
        slimmer = None
        if settings.slim is not None:
            key = (wheel.sha256, settings.slim.chip, settings.slim.rule)
            records = (record for record in work.slimmed if (record.sha256, record.chip, record.rule) == key)
            slimmer = Slimmer(wheel, settings.slim, next(records, None), believed=work.expected is not None)
            slimmers.append(slimmer)
        for entry in wheel_entries(
            work.files[wheel.sha256],
            wheel.name,
            settings,
            without=settings.without.get(wheel.name, ()),
            rehash=wheel.name in settings.rehash,
            slimmer=slimmer,
        ):
            if not _repeats(entry, seen):
                seen[entry.path] = entry
                yield wheel.name, entry


def _repeats(entry: Entry, seen: Mapping[str, Entry]) -> bool:
    """Return whether another wheel of the bundle has this path with the same content.

    Namespace packages share their __init__.py. Different content is refused when the lock is made, and again when the
    entries are put in order.
    """
    earlier = seen.get(entry.path)
    if earlier is None or earlier.content is None or entry.content is None:
        return False
    return earlier.mode == entry.mode and earlier.content.sha256 == entry.content.sha256


def _write(entries: Iterable[Entry], store: Store, scratch: Path, progress: Progress, expected: Blob | None) -> Blob:
    temporary = scratch / "blob"
    with translating_disk_full(temporary), temporary.open("wb", buffering=0) as file:
        writer = LayerBlob(file, expected)
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
    adopt(temporary, store.blob(blob.digest))
    return blob
