"""The rooms of the library: imports only go down, and never form a circle."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from tests.fixtures.checkouts import REPOSITORY

SHIPPED = "images.shipped"
ROOMS = (
    "errors",
    "environment",
    "store",
    "gpu_code",
    "oci",
    "matrix",
    "servers",
    "locks",
    "mods",
    "resolve",
    "plan",
    "build",
    "compile",
    "importing",
    "smoke",
    "bench",
    "publish",
    "site",
    "commands",
)
"""Lowest first. A module may import its own room and those before it; images.shipped imports only itself."""


class Modules:
    """The modules of a tree, and what each imports: at the top, in functions, or for annotations alone."""

    def __init__(self, root: Path) -> None:
        folders = (root / "imagefactory", root.joinpath(*SHIPPED.split(".")))
        paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
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
        return {self._module(name) for name in named} - {importer, ""}

    def _module(self, name: str) -> str:
        """Return the module of an import: `a.b.c` is the module a.b.c, or a name in the module a.b."""
        while name and name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def upward(self) -> Iterator[str]:
        """List the imports from a room into one above it."""
        for importer, imported in self.imports.items():
            for name in imported:
                if _floor(name) > _floor(importer):
                    yield f"{importer} imports {name}"

    def circle(self) -> list[str]:
        """Return the modules of a circle, if there is one."""
        try:
            TopologicalSorter(self.imports).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []


def _name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _floor(module: str) -> int:
    """Number the rooms; images.shipped is below all, and the package itself above, so that no room imports it."""
    if module == SHIPPED or module.startswith(f"{SHIPPED}."):
        return -1
    _, _, inside = module.partition(".")
    return ROOMS.index(inside.partition(".")[0]) if inside else len(ROOMS)


@pytest.fixture(scope="module")
def modules() -> Modules:
    return Modules(REPOSITORY)


def test_imports_only_go_down_and_form_no_circle(modules: Modules) -> None:
    upward, circle = list(modules.upward()), modules.circle()
    counts = f"modules: {len(modules.paths)}, upward imports: {len(upward)}, circles: {1 if circle else 0}"
    sys.stdout.write(f"{' < '.join((SHIPPED, *ROOMS))}\n{counts}\n")
    assert upward == []
    assert circle == []


def test_the_library_consists_of_rooms_with_docstrings() -> None:
    library = REPOSITORY / "imagefactory"
    entries = {path.name for path in library.iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS, "__init__.py", "py.typed"}
    for room in ROOMS:
        assert ast.get_docstring(ast.parse((library / room / "__init__.py").read_text("utf-8")))


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("imagefactory/errors/matrix.py", "from imagefactory.store.cache import Store"),
        ("imagefactory/plan/make.py", "def f():\n    from imagefactory.build import assemble"),
        ("imagefactory/oci/tar.py", "if TYPE_CHECKING:\n    from imagefactory.plan.plan import Plan"),
        ("images/shipped/yamlfile.py", "import imagefactory.errors"),
    ],
)
def test_upward_imports_are_found(tmp_path: Path, modules: Modules, importer: str, line: str) -> None:
    for path in modules.paths.values():
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("", "utf-8")
    (tmp_path / importer).write_text(line, "utf-8")
    [found] = Modules(tmp_path).upward()
    assert found.startswith(_name(tmp_path, tmp_path / importer))


def test_circles_are_found_even_inside_functions(tmp_path: Path) -> None:
    room = tmp_path / "imagefactory" / "store"
    room.mkdir(parents=True)
    (tmp_path / "images" / "shipped").mkdir(parents=True)
    (room / "one.py").write_text("from imagefactory.store import two", "utf-8")
    (room / "two.py").write_text("def f():\n    from imagefactory.store.one import name", "utf-8")
    assert set(Modules(tmp_path).circle()) == {"imagefactory.store.one", "imagefactory.store.two"}


def test_names_of_modules_and_classes_are_unique(modules: Modules) -> None:
    # Errors and commands are sorted by subject, so their modules may have the names of others.
    sorted_by_subject = ("imagefactory.errors.", "imagefactory.commands.")
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in modules.paths.items():
        if path.name != "__init__.py" and not module.startswith(sorted_by_subject):
            places[path.stem].append(module)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
