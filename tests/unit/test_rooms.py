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
    *(
        "errors",
        "serve_program",
        "store",
        "environment",
        "gpu_code",
        "oci",
        "project",
        "mods",
        "lock",
        "plan",
        "assemble",
    ),
    *("assemble", "compile", "importing", "launch", "check", "publish", "pair", "ci", "offline", "site", "docs", "cli"),
)
"""Lowest first. A module may import its own room and those before it; images import nothing of the library."""
FLOORS = {
    "images.shipped": (
        *("errors hashing values", "yamlfile", "mods.diffs mods.settings", "mods.text", "mods.manifest"),
        *("mods.checks mods.edits mods.load", "mods.apply", "mods.at_start"),
    ),
    "images.serve.program": (
        *("channel checkpoint errors heat holders network private_files redaction timeline",),
        *("image keys processes readings",),
        *("health state", "flags liveness readiness rules", "ahead first_process hosts memory settings"),
        *("command memory_guard", "kv_disk servers.server", "hangs servers.sglang servers.vllm findings"),
        *(
            "servers.known splitting",
            "drafting kv_disk_checks loading machine_checks model_checks pair reading weights",
        ),
        *("checks comparing hub link show", "meeting"),
        *("downloading proof watch", "main"),
    ),
}
"""The floors inside images, lowest first: a module imports those before its own, and none of another package."""
DOOR, SHARED = "imagefactory.serve_program", "images.shipped"
"""The only module that imports the serve program, and the only package that images and the library share."""


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

    def between_floors(self) -> Iterator[str]:
        """List the imports inside images that do not go down a floor, and modules that have no floor."""
        for package, floors in FLOORS.items():
            numbers = {f"{package}.{name}": number for number, floor in enumerate(floors) for name in floor.split()}
            for importer in (name for name in self.imports if name.startswith(f"{package}.")):
                if importer not in numbers:
                    if self.imports[importer]:
                        yield f"{importer} has no floor"
                    continue
                for name in self.imports[importer]:
                    if name.startswith(f"{IMAGES}.") and numbers.get(name, len(floors)) >= numbers[importer]:
                        yield f"{importer} imports {name}"

    def past_the_door(self) -> Iterator[str]:
        """List the library's imports of images that are neither of the shared package nor in the one module for it."""
        for importer, imported in self.imports.items():
            for name in imported if importer.startswith(LIBRARY) and importer != DOOR else ():
                if name.startswith(IMAGES) and not f"{name}.".startswith(f"{SHARED}."):
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


def test_images_have_floors_and_the_library_has_one_door_to_the_serve_program(modules: Modules) -> None:
    assert list(modules.between_floors()) == []
    assert list(modules.past_the_door()) == []


def test_the_library_consists_of_rooms() -> None:
    entries = {path.name for path in (REPOSITORY / LIBRARY).iterdir() if path.name != "__pycache__"}
    assert entries == {*ROOMS[2:], "errors.py", "serve_program.py", "__init__.py", "py.typed"}


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


def test_imports_across_floors_and_past_the_door_are_found(tmp_path: Path) -> None:
    modules = tree(
        tmp_path,
        {
            "images/serve/program/command.py": "from .memory import judge",
            "images/serve/program/memory.py": "from .command import option",
            "images/serve/program/rules.py": "from images.shipped import values",
            "images/serve/program/stray.py": "from . import rules",
            "images/shipped/values.py": "",
            "imagefactory/serve_program.py": "from images.serve.program import rules",
            "imagefactory/launch/docker_run.py": "def f():\n    from images.serve.program.rules import holds",
            "imagefactory/mods/check.py": "from images.shipped.values import Name",
        },
    )
    assert list(modules.between_floors()) == [
        "images.serve.program.memory imports images.serve.program.command",
        "images.serve.program.rules imports images.shipped.values",
        "images.serve.program.stray has no floor",
    ]
    assert list(modules.past_the_door()) == ["imagefactory.launch.docker_run imports images.serve.program.rules"]


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
