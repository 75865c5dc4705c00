"""The rooms of the library and the programs of images: imports only go down, and never form a circle."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY

LIBRARY, IMAGES = "imagefactory", "images"
ROOMS = (
    *("errors", "store", "environment", "gpu_code", "oci", "project", "mods", "lock", "plan", "assemble"),
    *("compile", "importing", "launch", "check", "publish", "pair", "ci", "site", "docs", "cli"),
)
"""Lowest first. A module may import its own room and those before it; images import nothing of the library."""


class Modules:
    """The modules of a tree, and what each imports: at the top, in functions, or for annotations alone."""

    def __init__(self, root: Path, *trees: str) -> None:
        paths = [path for tree in trees or (LIBRARY, IMAGES) for path in sorted((root / tree).rglob("*.py"))]
        self.paths = {_name(root, path): path for path in paths}
        self.imports = {name: sorted(self._imported(name)) for name in self.paths}

    def _imported(self, importer: str) -> set[str]:
        path = self.paths[importer]
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        named: list[str] = []
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = resolve_name("." * node.level + (node.module or ""), package)
                named += [f"{module}.{alias.name}" for alias in node.names]
        return {self._module(name, package) for name in named} - {importer, ""}

    def _module(self, name: str, package: str) -> str:
        """Return the module of an import: `a.b.c` is the module a.b.c, or a name in the module a.b."""
        # Programs of images import their neighbours without a package: Python starts in their folder.
        if package.startswith(IMAGES) and f"{package}.{name.partition('.')[0]}" in self.paths:
            name = f"{package}.{name}"
        while name and name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def upward(self) -> Iterator[str]:
        """List the imports from a room into one above it."""
        for importer, imported in self.imports.items():
            for name in imported:
                if _floor(name) > _floor(importer):
                    yield f"{importer} imports {name}"

    def circle(self, tree: str) -> list[str]:
        """Return the modules of a circle below a folder, if there is one."""
        inside = {name: found for name, found in self.imports.items() if name.partition(".")[0] == tree}
        try:
            TopologicalSorter(inside).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []


def _name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _floor(module: str) -> int:
    """Number the rooms; images are below all, and the package itself above, so that no room imports it."""
    tree, _, inside = module.partition(".")
    if tree == IMAGES:
        return -1
    return ROOMS.index(inside.partition(".")[0]) if inside else len(ROOMS)


@pytest.fixture(scope="module")
def modules() -> Modules:
    return Modules(REPOSITORY)


def test_imports_only_go_down_and_form_no_circle(modules: Modules) -> None:
    upward, circle = list(modules.upward()), modules.circle(LIBRARY)
    counts = f"modules: {len(modules.paths)}, upward imports: {len(upward)}, circles: {1 if circle else 0}"
    sys.stdout.write(f"{' < '.join((IMAGES, *ROOMS))}\n{counts}\n")
    assert upward == []
    assert circle == modules.circle(IMAGES) == []


def test_the_library_consists_of_rooms() -> None:
    entries = {path.name for path in (REPOSITORY / LIBRARY).iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS[1:], "errors.py", "__init__.py", "py.typed"}


def tree(root: Path, files: dict[str, str]) -> Modules:
    """Write modules and read them."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Modules(root)


def test_upward_imports_are_found(tmp_path: Path) -> None:
    upward = {
        "imagefactory/errors.py": "from imagefactory.store.cache import Store",
        "imagefactory/plan/make.py": "def f():\n    from imagefactory.assemble import assemble",
        "imagefactory/oci/tar.py": "if TYPE_CHECKING:\n    from imagefactory.plan.plan import Plan",
        "images/shipped/yamlfile.py": "import imagefactory.errors",
    }
    below = ("store/cache", "assemble/assemble", "plan/plan")
    found = tree(tmp_path, dict.fromkeys((f"imagefactory/{name}.py" for name in below), "") | upward).upward()
    assert sorted(line.partition(" ")[0] for line in found) == [
        "imagefactory.errors", "imagefactory.oci.tar", "imagefactory.plan.make", "images.shipped.yamlfile"
    ]  # fmt: skip


def test_circles_are_found_even_inside_functions_and_between_neighbours(tmp_path: Path) -> None:
    modules = tree(
        tmp_path,
        {
            "imagefactory/store/one.py": "from imagefactory.store import two",
            "imagefactory/store/two.py": "def f():\n    from imagefactory.store.one import name",
            "images/compile/one.py": "from two import make",
            "images/compile/two.py": "import one",
            "images/compile/ast.py": "import os",
        },
    )
    for place in ("imagefactory.store", "images.compile"):
        assert set(modules.circle(place.partition(".")[0])) == {f"{place}.one", f"{place}.two"}
