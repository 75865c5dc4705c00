"""The serve layer: the program that starts vLLM, and the modules that apply mods at start-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.content import Sha256
from imagefactory.oci.entry import Bytes, Entry, ImagePath, Kind
from imagefactory.serving.container import CACHES, SHARE, program_folder

MODS_AT_START = f"/{SHARE}/mods_at_start"
"""The module that applies mods, as the serve program is told of it."""

_RUNTIME = (
    "__init__.py",
    "content.py",
    "errors/__init__.py",
    "errors/matrix.py",
    "errors/mods.py",
    "matrix.py",
    "matrix_values.py",
    "mods/__init__.py",
    "mods/apply.py",
    "mods/diffs.py",
    "mods/edits.py",
    "mods/facts.py",
    "mods/load.py",
    "mods/manifest.py",
    "mods/requirements.py",
    "mods/runtime.py",
    "mods/text.py",
    "mods/versions.py",
    "yamlfile.py",
)
"""What of the factory itself an image needs to apply mods."""


def serve_files(root: Path) -> dict[str, str]:
    """List what goes into the layer: path in the checkout -> path in the image."""
    program = program_folder(root)
    files = {
        path.relative_to(root).as_posix(): f"{SHARE}/serve/{path.relative_to(program).as_posix()}"
        for path in sorted(program.rglob("*.py"))
    }
    files["images/mods/mods_at_start.py"] = f"{MODS_AT_START}.py".lstrip("/")
    return files | {f"imagefactory/{name}": f"{SHARE}/python/imagefactory/{name}" for name in _RUNTIME}


def serve_entries(
    places: Mapping[str, str], inputs: Iterable[tuple[str, Sha256]], files: Mapping[Sha256, Path]
) -> Iterable[Entry]:
    """List the entries of the layer; the caches' folder is for whoever the container runs as."""
    for name, sha256 in inputs:
        yield Entry(ImagePath(places[name]), Kind.FILE, 0o644, Bytes(files[sha256].read_bytes()))
    yield Entry(ImagePath(CACHES.lstrip("/")), Kind.DIRECTORY, 0o1777)
