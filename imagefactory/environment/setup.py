"""Creates or updates `.venv` with exactly the packages of the locked sets, verified by hash.

`./inv` runs this file with any Python that it finds; commands that need more than `run` call `ensure`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from imagefactory.errors import NetworkError
from imagefactory.store.index_config import IndexConfig, environment_for_uv, options_for_uv, redact
from imagefactory.store.progress import Say

FOLDER: Final = Path("locks", "environment")
STAMPS: Final = ".locked"  # the folder in an environment with a copy of each installed set
RUN: Final = "run"  # the set that suffices to plan, build, run, verify and publish
SETS: Final = {
    RUN: "every command",
    "smoke": "smoke tests of images",
    "sign": "signing and checking with the identity of a CI job",
    "plot": "plots of benchmarks",
    "test": "linters, type checks and the project's own tests",
}
"""Every set includes `run`, and `test` includes all; except for `run`, they are the extras in pyproject.toml."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_PIN = re.compile(r"^([a-z0-9-]+)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class LockedSet:
    """A committed requirements file with hashes."""

    name: str
    path: Path

    @classmethod
    def of(cls, root: Path, name: str) -> LockedSet:
        return cls(name, root / FOLDER / f"{name}.txt")

    def text(self) -> str:
        return self.path.read_text("utf-8")

    def pins(self) -> dict[str, str]:
        """Return the version of each package; if markers pin several, the last one."""
        return dict(_PIN.findall(self.text()))

    def made_from(self) -> str | None:
        """Return the checksum of the requirements that the file was resolved from."""
        match = re.search(r"^# made from: ([0-9a-f]{64})$", self.text(), re.MULTILINE)
        return match[1] if match else None

    def only(self, package: str) -> str:
        # A pin, and the indented lines of its hashes.
        match = re.search(rf"^{package}==[^\n]*\n(?:    [^\n]*\n)*", self.text(), re.MULTILINE)
        return f"--only-binary :all:\n{match[0] if match else package}"


def extras(root: Path, name: str) -> list[str]:
    if name == "test":
        return list(_project(root)["optional-dependencies"])
    return [] if name == RUN else [name]


def checksum(root: Path, name: str) -> str:
    project = _project(root)
    more = [line for extra in extras(root, name) for line in project["optional-dependencies"][extra]]
    covered = {"requirements": sorted([*project["dependencies"], *more]), "pythons": PYTHONS}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _project(root: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def is_current(root: Path, prefix: Path, names: Iterable[str]) -> bool:
    return all(_stamp(prefix, name) == LockedSet.of(root, name).text() for name in names)


def ensure(root: Path, name: str, say: Say) -> bool:
    """Add a set to the running environment; return whether anything had to be installed.

    An environment that `./inv` did not create for this checkout is left alone.
    """
    prefix = Path(sys.prefix)
    ours = prefix == root / ".venv" and (prefix / STAMPS).is_dir()
    if not ours or is_current(root, prefix, {RUN, name}):
        return False
    set_up(root, prefix, {name}, say)
    return True


def set_up(root: Path, prefix: Path, names: Iterable[str], say: Say) -> None:
    """Install exactly the named sets and those that an environment already has."""
    try:
        with _alone(prefix, say):
            _set_up(root, prefix, names, say)
    except OSError as error:
        raise NetworkError(
            "set-up-failed",
            "The environment cannot be created.",
            where=str(error.filename or prefix),
            why=error.strerror or str(error),
            fix="Check that the checkout is writable and that the disk has free space.",
        ) from None


@contextmanager
def _alone(prefix: Path, say: Say) -> Iterator[None]:
    """Wait until no other process sets up the environment; no package that could help is installed yet."""
    # Next to the environment, because creating it again empties the folder.
    with prefix.with_name(f"{prefix.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _set_up(root: Path, prefix: Path, names: Iterable[str], say: Say) -> None:
    needed = sorted({RUN, *names, *(name for name in SETS if _stamp(prefix, name))})
    python = prefix / "bin" / "python"
    # It does not start if its base Python was removed.
    works = _succeeds([str(python), "-c", "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"])
    if works and is_current(root, prefix, needed):
        return
    started = time.monotonic()
    sets = [LockedSet.of(root, name) for name in needed]
    say(f"setting up {prefix} with packages pinned by hash, for {'; '.join(SETS[name] for name in needed)}")
    if not works:
        make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(prefix)]
        _run(make, "create the environment")
    uv = shutil.which("uv", path=str(prefix / "bin")) or shutil.which("uv") or _fetch_uv(sets[0], python)
    # Hashes identify the files, so any index may provide them. Without bytecode, every start would compile it.
    command = [
        uv, "pip", "sync", "--python", str(python), *(str(locked.path) for locked in sets),
        "--require-hashes", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match",
        "--compile-bytecode", *options_for_uv(),
    ]  # fmt: skip
    _run(command, "install the packages", env=environment_for_uv())
    for site in prefix.glob("lib/python3.*/site-packages"):
        # Makes the factory importable in the environment.
        (site / "spark-image-factory.pth").write_text(f"{root}\n", "utf-8")
    (prefix / STAMPS).mkdir(exist_ok=True)
    # Last, and whole: an interrupted set-up has to be done again.
    for locked in sets:
        fresh = prefix / STAMPS / f"{locked.name}.new"
        fresh.write_text(locked.text(), "utf-8")
        fresh.replace(fresh.with_suffix(".txt"))
    say(f"ready after {time.monotonic() - started:.0f} s")


def _fetch_uv(locked: LockedSet, python: Path) -> str:
    """Install uv with the available pip, or with the one bundled with Python."""
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    if not _succeeds([*pip, "--version"]):
        if not _succeeds([str(python), "-m", "ensurepip"]):
            raise NetworkError(
                "set-up-failed",
                "Neither uv nor pip is available to install packages.",
                where=sys.executable,
                why="Debian and Ubuntu ship Python without pip.",
                fix="Run `apt-get install python3-venv` (or python3-pip, or install uv), then ./inv again.",
            )
        pip = [str(python), "-m", "pip"]
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(locked.only("uv"))
        requirements.flush()
        _run([*pip, "install", *options, "-r", requirements.name], "install uv with pip")
    return str(python.with_name("uv"))


def _run(command: list[str], purpose: str, env: Mapping[str, str] | None = None) -> None:
    """Run a step of the set-up; show its output on a terminal, otherwise only if it fails."""
    on_terminal = sys.stderr.isatty()
    done = subprocess.run(  # noqa: S603 - our own arguments
        command, env=env, stdout=2 if on_terminal else subprocess.PIPE,
        stderr=None if on_terminal else subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        output = " ".join(redact(done.stdout or "").split())[-600:]  # the reason is at its end
        raise NetworkError(
            "set-up-failed",
            f"The set-up could not {purpose}.",
            where=" ".join(redact(word) for word in command[:4]),
            why=output or f"It exited with code {done.returncode}; see its output above.",
            fix="Check the network and the disk. Packages come from the index configured for pip and uv "
            f"({IndexConfig.from_environment().describe()}); set PIP_INDEX_URL or UV_INDEX_URL to use another.",
        )


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def _stamp(prefix: Path, name: str) -> str | None:
    try:
        return (prefix / STAMPS / f"{name}.txt").read_text("utf-8")
    except OSError:
        return None


def main() -> int:
    root = Path(__file__).resolve().parents[2]

    def say(text: str) -> None:
        sys.stderr.write(f"inv: {text}\n")
        sys.stderr.flush()

    try:
        set_up(root, root / ".venv", sys.argv[1:], say)
    except NetworkError as error:
        sys.stderr.write(f"error[{error.name}]: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; run ./inv again to continue")
        return 130  # as a shell reports an interrupt
    return 0


if __name__ == "__main__":
    sys.exit(main())
