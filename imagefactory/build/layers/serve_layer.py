"""The serve layer: the program that starts vLLM, and the modules that apply mods at start-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.oci.entry import Bytes, Entry, ImagePath, Kind
from imagefactory.plan.serve.image_paths import CACHES, SHARE, program_folder
from imagefactory.store.digests import Sha256

MODS_AT_START = f"/{SHARE}/mods_at_start"
"""The module that applies mods, as the serve program is told of it."""

_PACKAGE = "images/shipped"
"""The package that applies mods at start-up; all of it ships."""


def serve_files(root: Path) -> dict[str, str]:
    """List what goes into the layer: path in the checkout -> path in the image."""
    program = program_folder(root)
    files = {
        path.relative_to(root).as_posix(): f"{SHARE}/serve/{path.relative_to(program).as_posix()}"
        for path in sorted(program.rglob("*.py"))
    }
    files["images/mods/mods_at_start.py"] = f"{MODS_AT_START}.py".lstrip("/")
    package = [root / "images" / "__init__.py", *sorted((root / _PACKAGE).rglob("*.py"))]
    names = [path.relative_to(root).as_posix() for path in package]
    return files | {name: f"{SHARE}/python/{name}" for name in names}


def serve_entries(
    places: Mapping[str, str], inputs: Iterable[tuple[str, Sha256]], files: Mapping[Sha256, Path]
) -> Iterable[Entry]:
    """List the entries of the layer; the caches' folder is for whoever the container runs as."""
    for name, sha256 in inputs:
        yield Entry(ImagePath(places[name]), Kind.FILE, 0o644, Bytes(files[sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), Kind.DIRECTORY, 0o1777)
