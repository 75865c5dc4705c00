"""Packs a checkout, its environment's wheels and built images into parts that can travel one by one.

The parts are slices of all files laid end to end; contents.json has their hashes, and those of the files with the
places where each goes. Layers that images share travel once. `unpack.py`, beside them, puts everything back.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from imagefactory.assemble.images_here import built_layouts
from imagefactory.ci.pull_request import git
from imagefactory.environment.setup import RUN
from imagefactory.errors import BuildError, UsageError
from imagefactory.lock.wheelhouse.keep import MACHINES
from imagefactory.oci.layout import Layout, writing_output
from imagefactory.offline import unpack
from imagefactory.offline.wheels import environment_wheels
from imagefactory.plan.make import make_plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Sha256, file_sha256, sound_blocks
from imagefactory.store.progress import Say, count, size

SETS: Final = (RUN, "smoke", "sign")
_PARTS: Final = "part-*"
_SCRIPT: Final = Path(unpack.__file__)


@dataclass(frozen=True)
class Cargo:
    """What is to travel."""

    cells: Sequence[Cell]
    layouts: Sequence[Path] = ()  # more images, such as one that was built with --fat
    also: Sequence[Path] = ()  # files and folders of the user
    pythons: Sequence[str] = ()


@dataclass
class _Files:
    """The files to pack, by hash, with the places where each goes."""

    sources: dict[Sha256, Path] = field(default_factory=dict)
    places: dict[Sha256, list[str]] = field(default_factory=dict)

    def add(self, source: Path, *places: str, sha256: str = "") -> None:
        digest = Sha256(sha256) if sha256 else file_sha256(source)
        self.sources[digest] = source
        known = self.places.setdefault(digest, [])
        known += [place for place in places if place not in known]


def pack(project: Project, cargo: Cargo, folder: Path, part: int, say: Say) -> int:
    """Write the parts of a cargo, each of up to `part` bytes, and what unpacks them; return the bytes of all."""
    # In the order in which they were named: the first can be used while the others travel.
    images = [built_layouts(project, [cell.full_target], one=True)[0] for cell in cargo.cells]
    platform = _only_platform(cargo.cells)
    commit = _clean_commit(project.root)
    _make_room(folder)
    files = _Files()
    with tempfile.TemporaryDirectory() as scratch, project.store.in_use():
        archive = _archive(project.root, Path(scratch))
        files.add(archive, f"checkout/{unpack.ARCHIVE}")
        say(f"checkout: {commit[:12]}, {size(archive.stat().st_size)}")
        wheels = environment_wheels(project.root, SETS, cargo.pythons, platform, project.store)
        for name, wheel in wheels.items():
            files.add(wheel, f"checkout/{unpack.WHEELS}/{name}")
        total = size(sum(wheel.stat().st_size for wheel in wheels.values()))
        say(f"environment for Python {', '.join(cargo.pythons)}: {count(len(wheels), 'wheel')}, {total}")
        for cell, layout, _ in images:
            _add_layers(files, project, cell)
            _add_layout(files, layout, project.build_folder(cell).name)
            say(f"{cell.full_target}: {size(layout.size())}")
        for path in cargo.layouts:
            _add_layout(files, Layout(path), path.name)
            say(f"{path}: {size(Layout(path).size())}")
        for path in cargo.also:
            _add_also(files, path)
        with writing_output(folder):
            hashes = _write_parts(files, folder, part)
            shutil.copyfile(_SCRIPT, folder / _SCRIPT.name)
            contents = {
                "commit": commit,
                "machine": MACHINES[platform][0],
                "pythons": list(cargo.pythons),
                "sets": list(SETS),
                "targets": {cell.full_target: project.build_folder(cell).name for cell in cargo.cells},
                "part": part,
                "parts": hashes,
                "files": [
                    {"sha256": sha256, "size": source.stat().st_size, "places": files.places[sha256]}
                    for sha256, source in files.sources.items()
                ],
            }
            # Last: a folder without it is not finished.
            write_text(folder / unpack.CONTENTS, json.dumps(contents, indent=1) + "\n")
    return sum(path.stat().st_size for path in folder.glob(_PARTS))


def _only_platform(cells: Sequence[Cell]) -> str:
    platforms = sorted({cell.platform for cell in cells})
    if len(platforms) > 1:
        raise UsageError(
            "bad-option",
            "The images are for different machines.",
            where="the --target option",
            why=f"They are for {' and '.join(platforms)}; one machine runs only one of these.",
            fix="Name the machine in each target, such as tiny/cpu/amd64, or pack twice.",
        )
    return platforms[0]


def _clean_commit(root: Path) -> str:
    if changed := git(root, "status", "--porcelain", "--untracked-files=no").splitlines():
        raise BuildError(
            "uncommitted",
            "The checkout has changes that are not committed.",
            where=root,
            why=f"What travels is the last commit, and these files differ from it: {', '.join(changed[:5])}.",
            fix="Commit them (`git stash` puts them aside), and pack again.",
        )
    return git(root, "rev-parse", "HEAD").strip()


def _make_room(folder: Path) -> None:
    """Remove what an earlier run wrote; refuse a folder with anything else."""
    ours = {unpack.CONTENTS, _SCRIPT.name}
    with writing_output(folder):
        folder.mkdir(parents=True, exist_ok=True)
        present = sorted(folder.iterdir())
        strange = [path.name for path in present if path.name not in ours and not path.match(_PARTS)]
        if strange:
            raise UsageError(
                "output-unusable",
                "The folder holds other files.",
                where=folder,
                why=f"It holds {strange[0]}, which is no part of an earlier packing.",
                fix="Name a new or empty folder.",
            )
        for path in sorted(present, key=lambda path: path.name != unpack.CONTENTS):
            path.unlink()


def _archive(root: Path, scratch: Path) -> Path:
    """Clone the last commit, so that git knows it there, too, and archive the clone."""
    clone, archive = scratch / "clone", scratch / "checkout.tar.gz"
    git(root, "clone", "--quiet", "--depth", "1", root.absolute().as_uri(), str(clone))
    # Where the checkout comes from decides about the registry, and whose signatures count.
    origin = git(root, "config", "--default", "", "--get", "remote.origin.url").strip()
    git(clone, *(("remote", "set-url", "origin", origin) if origin else ("remote", "remove", "origin")))
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        # .git goes last: it shows that everything before it was unpacked.
        for path in sorted(clone.iterdir(), key=lambda path: (path.name == ".git", path.name)):
            tar.add(path, path.name)
    return archive


def _add_layers(files: _Files, project: Project, cell: Cell) -> None:
    """Add what the store knows of the layers, so that `build` and `publish` find them built."""
    store = project.store
    for layer in make_plan(project, cell).layers:
        for path in (store.layer(layer.key), store.owners(layer.key), store.slimmed(layer.key)):
            if path.exists():
                files.add(path, f"cache/{path.relative_to(store.root)}")


def _add_layout(files: _Files, layout: Layout, name: str) -> None:
    place = f"checkout/build/{name}"
    for path in sorted(layout.folder.iterdir()):
        if path.suffix == ".json" or path.name == "oci-layout":
            files.add(path, f"{place}/{path.name}")
    for digest in dict.fromkeys([layout.manifest_digest(), layout.config_digest(), *layout.layer_digests()]):
        blob = digest.replace(":", "/")
        files.add(layout.blob(digest), f"cache/blobs/{blob}", f"{place}/blobs/{blob}", sha256=digest.partition(":")[2])


def _add_also(files: _Files, path: Path) -> None:
    found = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in found:
        files.add(file, f"checkout/{unpack.BROUGHT}/{file.relative_to(path.parent)}")


def _write_parts(files: _Files, folder: Path, part: int) -> list[str]:
    """Write all files end to end into parts; return the hash of each part."""
    blocks = (block for sha256, source in files.sources.items() for block in _blocks(source, sha256) if block)
    total = sum(source.stat().st_size for source in files.sources.values())
    hashes, left = [], memoryview(b"")
    for number in range(1, -(-total // part) + 1):  # rounded up
        digest, room = hashlib.sha256(), part
        with (folder / unpack.PART.format(number)).open("wb") as file:
            while room and (left or (left := memoryview(next(blocks, b"")))):
                taken, left = left[:room], left[room:]
                file.write(taken)
                digest.update(taken)
                room -= len(taken)
        hashes.append(digest.hexdigest())
    return hashes


def _blocks(source: Path, sha256: Sha256) -> Iterator[bytes]:
    if source.name == sha256:  # a blob, which is hashed on the way
        yield from sound_blocks(source)
        return
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            yield block
