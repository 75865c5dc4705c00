"""What ships into every image: the serve program, and the package that applies mods at start-up."""

from __future__ import annotations

from pathlib import Path

from imagefactory.plan.serve.image_paths import SHARE, program_folder

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
