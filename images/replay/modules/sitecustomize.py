"""Lets a script find the installed packages: they are imported as empty modules that know their file and version.

Scripts import a package mostly to learn where it is. Its own code would need torch and a GPU.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
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


class _Loader:
    """Leaves a module empty."""

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        """Let Python make the module."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Say which version it is of."""
        package = module.__name__.partition(".")[0]
        found = importlib.metadata.packages_distributions().get(package, [])
        if found and module.__name__ == package:
            module.__version__ = importlib.metadata.version(found[0])  # type: ignore[attr-defined]


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
