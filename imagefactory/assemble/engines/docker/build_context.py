"""Plans and writes the build context of a rendered Dockerfile; planning it downloads nothing."""

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from packaging.utils import parse_wheel_filename

from imagefactory.assemble.layers.debian.policy import folder as folder_attributes
from imagefactory.assemble.layers.layer_blob import LayerWork, layer_entries
from imagefactory.assemble.layers.wheel_layer import metadata_entries
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, read_content
from imagefactory.oci.format import MTIME
from imagefactory.oci.layout import link_or_copy
from imagefactory.oci.tar import complete
from imagefactory.plan.bytecode import COMPILER, is_list, listed_paths
from imagefactory.plan.plan import (
    BytecodeLayer,
    Input,
    Layer,
    ModelLayer,
    ModLayer,
    Plan,
    ServeLayer,
    WheelLayer,
)
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256

TOOLS = "tools"
UV = "/scripts/uv"  # the end of uv's path inside its wheel
SETTLE = "images/docker/settle.py"
ModFilesByKey = Mapping[Sha256, tuple[Entry, ...]]


Put = Callable[[Path, Store, ModFilesByKey], None]
"""Writes a part of the context below a folder; all it needs is in the store, or among mods' files."""


class Step(NamedTuple):
    """The installation of one layer of wheels."""

    title: str
    key: Sha256
    folder: str
    yielding: tuple[str, ...]  # wheels that leave some of their paths to others (matrix.yaml `conflicts`)
    has_others: bool
    metadata: str | None


class Copy(NamedTuple):
    """A folder of the context that is copied over the image, or whose list of modules is compiled there."""

    title: str
    note: str
    folder: str
    compiles: bool = False


@dataclass(frozen=True)
class BuildContext:
    """Everything that a Dockerfile refers to."""

    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]
    puts: tuple[Put, ...]

    def put_together(self, folder: Path, store: Store, mod_files: ModFilesByKey) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for put in self.puts:
            put(folder, store, mod_files)


def plan_context(project: Project, plan: Plan) -> BuildContext:
    programs = [_file(f"{TOOLS}/{Path(name).name}", (project.root / name).read_bytes()) for name in (SETTLE, COMPILER)]
    steps: list[Step] = []
    puts = [_uv(project, plan), *programs]
    for number, layer in enumerate((layer for layer in plan.layers if isinstance(layer, WheelLayer)), 1):
        step, more = _wheel_step(number, layer)
        steps.append(step)
        puts += more
    above = copied_layers(plan.layers, project.root)
    copies = tuple(copy for copy, _ in above)
    return BuildContext(tuple(steps), copies, (*puts, *(put for _, put in above)))


def _uv(project: Project, plan: Plan) -> Put:
    uv = project.tool_lock.find("uv", plan.cell.machine)

    def put(folder: Path, store: Store, _: object) -> None:
        target = _with_parent(folder / TOOLS / "uv")
        with ZipFile(store.download(uv.sha256)) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(UV)]
            with archive.open(name) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        target.chmod(0o755)

    return put


def _wheel_step(number: int, layer: WheelLayer) -> tuple[Step, list[Put]]:
    label = layer.name if layer.kind == "wheel" else layer.kind
    folder = f"wheels/{number:02}-{label}"
    without, second_name = layer.settings.without, layer.settings.second_name
    puts = [_locked_file(f"{folder}/{wheel.name}", wheel.sha256) for wheel in layer.inputs]
    # Wheels that yield paths are installed one at a time, because uv installs those of one call in any order.
    yielding: list[str] = []
    for wheel in (wheel for wheel in layer.inputs if wheel.name in without):
        name = str(parse_wheel_filename(wheel.name)[0])
        yielding.append(name)
        puts.append(_file(f"{folder}/{name}.txt", _requirement(wheel)))
        puts.append(_file(f"{folder}/{name}.yields", "".join(f"{path}\n" for path in without[wheel.name]).encode()))
    others = b"".join(_requirement(wheel) for wheel in layer.inputs if wheel.name not in without)
    if others:
        puts.append(_file(f"{folder}/requirements.txt", others))
    metadata = None
    if second_name is not None:
        metadata = f"metadata/{number:02}-{label}"
        puts.append(layer_tree(metadata, metadata_entries(second_name, layer.settings)))
    count = f"{len(layer.inputs)} wheels" if layer.kind != "wheel" else "1 wheel"
    title = f"{label}: {count}, {layer.download / 1e6:.1f} MB"
    return Step(title, layer.key, folder, tuple(yielding), bool(others), metadata), puts


def _requirement(wheel: Input) -> bytes:
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return f"{name}=={version} --hash=sha256:{wheel.sha256}\n".encode()


def copied_layers(layers: Iterable[Layer], root: Path) -> list[tuple[Copy, Put]]:
    """Return the layers above the wheels as folders to copy, computed by the embedded engine's code."""
    copies: list[tuple[Copy, Put]] = []
    number = 0
    for layer in layers:
        note = f"layer key {layer.key}"
        if isinstance(layer, ModLayer):
            number += 1
            folder = f"mods/{number:02}-{layer.name}"
            copies.append((Copy(f"mod {layer.name}", note, folder), _modded(folder, layer)))
        elif isinstance(layer, BytecodeLayer):
            folder = f"bytecode/{layer.name.partition(' ')[0]}"
            copy = Copy(f"bytecode of {layer.name}", note, folder, compiles=True)
            copies.append((copy, _module_list(f"{folder}/modules.txt", layer, root)))
        elif isinstance(layer, ServeLayer | ModelLayer):
            files = {file.sha256: root / file.name for file in layer.inputs}
            entries = [entry for _, entry in layer_entries(LayerWork(layer, files), root)]
            title = "serve program" if layer.kind == "serve" else f"settings of the model {layer.name}"
            copies.append((Copy(title, note, layer.kind), layer_tree(layer.kind, entries)))
    return copies


def _modded(folder: str, layer: ModLayer) -> Put:
    return lambda context, _, mod_files: _write_tree(context / folder, mod_files[layer.key])


def _module_list(path: str, layer: BytecodeLayer, root: Path) -> Put:
    settings = layer.settings

    def put(context: Path, _: Store, mod_files: ModFilesByKey) -> None:
        modded = mod_files[layer.key] if settings.mods else ()
        lines = sorted({*settings.files.values(), *(entry.path for entry in modded)})
        if not settings.files:
            lists = [file.name for file in layer.inputs if is_list(file.name)]
            lines = listed_paths(root, settings, lists)
        _with_parent(context / path).write_text("".join(f"{line}\n" for line in lines), "utf-8")

    return put


def layer_tree(folder: str, entries: Sequence[Entry]) -> Put:
    """Put the files of a layer there, as the embedded engine would put them into the image."""
    return lambda context, *_: _write_tree(context / folder, entries)


def _file(path: str, data: bytes) -> Put:
    return layer_tree("", [Entry(ImagePath(path), EntryKind.FILE, 0o644, Bytes(data))])


def _locked_file(path: str, sha256: Sha256) -> Put:
    return lambda context, store, _: link_or_copy(store.download(sha256), _with_parent(context / path))


def _with_parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _write_tree(folder: Path, entries: Iterable[Entry]) -> None:
    """Write files, folders and links as they will be in the image; COPY keeps their modes and times."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in complete(entries, owner="the build context", folder_of=folder_attributes):
        path = folder / entry.path
        if entry.kind is EntryKind.SYMLINK:
            path.symlink_to(entry.target)
        elif entry.kind is EntryKind.DIRECTORY:
            path.mkdir(parents=True, exist_ok=True)
        elif entry.content is not None:
            path.write_bytes(read_content(entry.content))
        else:
            raise ValueError(f"{entry.path}: a {entry.kind.value} cannot be copied into an image")
        # After its content, which would change the time of a file again.
        os.utime(path, (MTIME, MTIME), follow_symlinks=False)
        if entry.kind is not EntryKind.SYMLINK:
            path.chmod(stat.S_IMODE(entry.mode))
