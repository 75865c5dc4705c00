"""Lets a script find the installed packages: modules know their file, version and names, but their code does not run.

Scripts import a package to learn where it is, and whether it has a name. Its own code would need torch and a GPU.
"""

import ast
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path("/usr/local/lib/python3.12/dist-packages")
PACKAGES = frozenset(os.environ.get("FACTORY_PACKAGES", "").split())


class _Finder:
    """Finds modules of the packages, and runs none."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG003
        if name.partition(".")[0] not in PACKAGES:
            return None
        place = ROOT.joinpath(*name.split("."))
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if not file.is_file():
            return None
        spec = ModuleSpec(name, _Loader(), origin=str(file), is_package=place.is_dir())
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(place))
        return spec


class _Unknown:
    """Stands for what a name would mean if the code ran; nothing can be decided by it."""

    __hash__ = object.__hash__

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}, not run>"

    def _refuse(self, *_: object, **__: object) -> bool:
        message = f"what {self._name} is shows only when the server runs"
        raise RuntimeError(message)

    __bool__ = __call__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those behind conditions."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(statement, part, []))


def _names(module: ModuleType) -> dict[str, object]:
    found: dict[str, object] = {}
    for statement in _statements(ast.parse(Path(str(module.__file__)).read_bytes()).body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = _Unknown(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names = (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
            found |= {name: _Unknown(name) for name in names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                try:
                    found[name] = _Unknown(name) if name in found else ast.literal_eval(statement.value)
                except ValueError:
                    found[name] = _Unknown(name)
    return found


def _reader(module: ModuleType) -> Callable[[str], object]:
    """Return what looks up a module's names: its submodules, then what its source defines."""
    known: dict[str, object] = {}

    def read(name: str) -> object:
        if "__path__" in vars(module) and _Finder.find_spec(f"{module.__name__}.{name}") is not None:
            return importlib.import_module(f"{module.__name__}.{name}")
        if not known:
            known.update(_names(module))
        if name not in known:
            message = f"module {module.__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return known[name]

    return read


class _Loader:
    """Gives a module its names without running it."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let Python make the module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__getattr__ = _reader(module)  # type: ignore[method-assign]
        package = module.__name__.partition(".")[0]
        found = importlib.metadata.packages_distributions().get(package, [])
        if found and module.__name__ == package:
            module.__version__ = importlib.metadata.version(found[0])  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
