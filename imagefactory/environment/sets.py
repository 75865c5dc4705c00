"""The factory's own packages, in named sets, each of which is locked by hash in one file."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path("locks", "environment")
RUN: Final = "run"
"""The set that suffices to plan, build, run, verify and publish."""
SETS: Final = {
    RUN: "every command",
    "smoke": "smoke tests of images",
    "sign": "signing and checking with the identity of a CI job",
    "plot": "plots of benchmarks",
    "arena": "llama-benchy, which runs the benchmark profile `arena`",
    "test": "linters, type checks and the project's own tests",
}
"""Every set includes `run`, and `test` all but those apart; except for `run`, they are the extras in pyproject.toml."""
APART: Final = frozenset({"arena"})
"""Sets that no test needs; they are too large to install for nothing."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_MADE_FROM = re.compile(r"^# made from: ([0-9a-f]{64})$", re.MULTILINE)
_PIN = re.compile(r"^([a-z0-9-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class LockedSet:
    """A committed requirements file with hashes."""

    name: str
    path: Path

    @classmethod
    def of(cls, root: Path, name: str) -> LockedSet:
        """Return the set with a name in a checkout."""
        return cls(name, root / FOLDER / f"{name}.txt")

    def text(self) -> str:
        """Return the whole file."""
        return self.path.read_text("utf-8")

    def pins(self) -> dict[str, str]:
        """Return the version of each package; if markers pin several, the last one."""
        return dict(_PIN.findall(self.text()))

    def made_from(self) -> str | None:
        """Return the checksum of the requirements that the file was resolved from."""
        found = _MADE_FROM.search(self.text())
        return found[1] if found else None

    def only(self, package: str) -> str:
        """Return a requirements file for one package of the set."""
        found = re.search(rf"^{package}==[^\n]*\n(?:    [^\n]*\n)*", self.text(), re.MULTILINE)
        return f"--only-binary :all:\n{found[0] if found else package}"


def extras(root: Path, name: str) -> list[str]:
    """Return the extras of pyproject.toml that a set includes."""
    if name == "test":
        return [extra for extra in _project(root)["optional-dependencies"] if extra not in APART]
    return [] if name == RUN else [name]


def checksum(root: Path, name: str) -> str:
    """Return a checksum of a set's requirements and the supported Pythons."""
    project = _project(root)
    more = [line for extra in extras(root, name) for line in project["optional-dependencies"][extra]]
    wanted = {"requirements": sorted([*project["dependencies"], *more]), "pythons": PYTHONS}
    return hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()


def _project(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return found
