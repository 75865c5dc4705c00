"""Locks the factory's own environment with uv, for every supported Python and platform at once."""

import subprocess
import tempfile
from pathlib import Path

from imagefactory.environment.setup import PYTHONS, SETS, LockedSet, checksum, extras
from imagefactory.errors import LockError
from imagefactory.store.atomic import write_text
from imagefactory.store.index_config import environment_for_uv, options_for_uv, redact
from imagefactory.store.progress import Say


def lock_environment(root: Path, say: Say, *, upgrade: bool = False) -> list[tuple[Path, bool]]:
    """Lock every set, keeping the locked versions unless told to upgrade; return each path and whether it changed."""
    old = LockedSet.of(root, "test").path
    kept = "" if upgrade or not old.exists() else old.read_text("utf-8")
    # `test` includes nearly everything, so its versions apply to the other sets as well.
    say("resolving versions")
    decided = _resolve(root, "test", kept)
    written = []
    for name, purpose in SETS.items():
        text = (
            f"# The factory's own environment, for {purpose}. Written by `./inv lock --environment`; do not edit.\n"
            f"# made from: {checksum(root, name)}\n"
            f"--only-binary :all:\n{decided if name == 'test' else _resolve(root, name, decided)}"
        )
        path = LockedSet.of(root, name).path
        changed = not path.exists() or path.read_text("utf-8") != text
        if changed:
            write_text(path, text)
        written.append((path, changed))
    return written


def check_environment(root: Path) -> int:
    """Check that every locked set matches pyproject.toml; return how many there are."""
    for name in SETS:
        locked = LockedSet.of(root, name)
        if not locked.path.exists() or locked.made_from() != checksum(root, name):
            raise LockError(
                "lock-drift",
                "The lock of the factory's own environment does not match pyproject.toml.",
                where=locked.path,
                why="The requirements in pyproject.toml changed after the lock was made.",
                fix="Run `./inv lock --environment` and commit the files it writes.",
            )
    return len(SETS)


def _resolve(root: Path, name: str, preferred: str) -> str:
    """Let uv choose versions and list the hashes of their wheels; it moves preferred versions only where it must."""
    from uv import find_uv_bin  # noqa: PLC0415 - only locking needs it

    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text(preferred, "utf-8")
        # With --universal, the oldest Python stands for all newer ones.
        command = [
            find_uv_bin(), "pip", "compile", str(root / "pyproject.toml"), "--output-file", str(pins),
            *(option for extra in extras(root, name) for option in ("--extra", extra)),
            "--universal", "--generate-hashes", "--python-version", PYTHONS[0], "--only-binary", ":all:",
            "--no-header", "--no-annotate", "--no-emit-index-url", "--index-strategy", "unsafe-best-match",
            "--color", "never", "--quiet", *options_for_uv(),
        ]  # fmt: skip
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, env=environment_for_uv()
        )
        if done.returncode:
            raise LockError(
                "unresolvable",
                "The factory's own environment cannot be resolved.",
                where="pyproject.toml",
                why=redact(" ".join(done.stderr.split())),
                fix="Change the requirements in pyproject.toml, or point PIP_INDEX_URL or UV_INDEX_URL at an index "
                "that has them.",
            )
        return pins.read_text("utf-8")
