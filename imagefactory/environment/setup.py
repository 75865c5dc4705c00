"""Creates or updates `.venv` with exactly the packages of the locked sets, verified by hash.

`./inv` runs this file with any Python that it finds; commands that need more than `run` call `ensure`.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from imagefactory.environment.index_config import IndexConfig, environment_for_uv, options_for_uv, redact
from imagefactory.environment.progress import Say
from imagefactory.environment.sets import RUN, SETS, LockedSet
from imagefactory.errors.commands import SetUpError

STAMPS: Final = ".locked"
"""The folder in an environment with a copy of each installed set."""
_PATH_FILE: Final = "spark-image-factory.pth"
"""Makes the factory importable in the environment."""


def is_current(root: Path, prefix: Path, names: Iterable[str]) -> bool:
    """Return whether an environment has the current versions of these sets."""
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
        raise SetUpError(
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
    wanted = sorted({RUN, *names, *(name for name in SETS if _stamp(prefix, name))})
    python = prefix / "bin" / "python"
    if is_current(root, prefix, wanted) and _works(python):
        return
    started = time.monotonic()
    sets = [LockedSet.of(root, name) for name in wanted]
    pins = {package: version for one in sets for package, version in one.pins().items()}
    purpose = "; ".join(SETS[name] for name in wanted)
    shown = prefix.relative_to(root) if prefix.is_relative_to(root) else prefix
    say(f"setting up {shown}: {len(pins)} packages, pinned by hash (for {purpose})")
    if not _works(python):
        create = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(prefix)]
        _run(create, "create the environment")
    uv = shutil.which("uv", path=str(prefix / "bin")) or shutil.which("uv") or _fetch_uv(sets[0], python)
    _install(uv, sets, python)
    for site in prefix.glob("lib/python3.*/site-packages"):
        (site / _PATH_FILE).write_text(f"{root}\n", "utf-8")
    for one in sets:
        _write_stamp(prefix, one)
    say(f"ready after {time.monotonic() - started:.0f} s")


def _fetch_uv(locked: LockedSet, python: Path) -> str:
    """Install uv with the available pip, or with the one bundled with Python."""
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    if not _succeeds([*pip, "--version"]):
        if not _succeeds([str(python), "-m", "ensurepip"]):
            raise SetUpError(
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


def _install(uv: str, sets: Iterable[LockedSet], python: Path) -> None:
    """Install the packages of the sets with uv, and remove all others."""
    files = [str(one.path) for one in sets]
    command = [uv, "pip", "sync", "--python", str(python), *files]
    # Hashes identify the files, so any index may provide them.
    options = ["--require-hashes", "--only-binary", ":all:", "--index-strategy", "unsafe-best-match"]
    _run([*command, *options, *options_for_uv()], "install the packages", env=environment_for_uv())


def _run(command: list[str], purpose: str, env: Mapping[str, str] | None = None) -> None:
    """Run a step of the set-up; show its output on a terminal, otherwise only if it fails."""
    seen = sys.stderr.isatty()
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, env=env, stdout=2 if seen else subprocess.PIPE, stderr=None if seen else subprocess.STDOUT,
            stdin=subprocess.DEVNULL, text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise SetUpError(
            f"The set-up could not {purpose}.",
            where=command[0],
            why=str(error),
            fix="Remove .venv and run ./inv again.",
        ) from None
    if done.returncode:
        said = " ".join(redact(done.stdout or "").split())[-600:]
        raise SetUpError(
            f"The set-up could not {purpose}.",
            where=" ".join(redact(word) for word in command[:4]),
            why=said or f"It exited with code {done.returncode}; see its output above.",
            fix="Check the network and the disk. Packages come from the index configured for pip and uv "
            f"({IndexConfig.from_environment().describe()}); set PIP_INDEX_URL or UV_INDEX_URL to use another.",
        )


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False


def _works(python: Path) -> bool:
    """Return whether an environment's Python starts; it does not if its base Python was removed."""
    return _succeeds([str(python), "-c", "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))"])


def _write_stamp(prefix: Path, locked: LockedSet) -> None:
    folder = prefix / STAMPS
    folder.mkdir(exist_ok=True)
    fresh = folder / f"{locked.name}.new"
    fresh.write_text(locked.text(), "utf-8")
    fresh.replace(folder / f"{locked.name}.txt")


def _stamp(prefix: Path, name: str) -> str | None:
    try:
        return (prefix / STAMPS / f"{name}.txt").read_text("utf-8")
    except OSError:
        return None


def main() -> int:
    """Set up the checkout that contains this file."""
    root = Path(__file__).resolve().parents[2]

    def say(text: str) -> None:
        sys.stderr.write(f"inv: {text}\n")
        sys.stderr.flush()

    try:
        set_up(root, root / ".venv", (), say)
    except SetUpError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted; run ./inv again to continue")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
