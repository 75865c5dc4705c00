# ruff: noqa: INP001 - a program of its own
"""Settles what uv leaves in the image's environment: runs inside a Docker build, once per layer of wheels.

Both engines then agree on what is there: one wheel per path, no bytecode, no traces of the installer, one time for all.
"""

import csv
import io
import os
import shutil
import sys
from pathlib import Path

VENV = Path(os.environ["VIRTUAL_ENV"])
TIME = int(os.environ["SOURCE_DATE_EPOCH"])
KEPT = VENV / ".kept"
NOTES = ("REQUESTED", "uv_cache.json")
"""What uv notes about an installation; the second holds its time."""
TRACES = (KEPT, VENV / ".lock", Path(os.environ["UV_CACHE_DIR"]))


def keep(paths: list[str]) -> None:
    """Put files aside that the next wheel would overwrite, although the lock gives them to another one."""
    for path in paths:
        if (VENV / path).exists():
            (KEPT / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(VENV / path, KEPT / path)


def restore(paths: list[str]) -> None:
    """Undo what the wheel did to these paths, in the environment and in its RECORD."""
    for path in paths:
        (VENV / path).unlink(missing_ok=True)
        if (KEPT / path).exists():
            (KEPT / path).rename(VENV / path)
        else:
            _remove_empty((VENV / path).parent)
    shutil.rmtree(KEPT, ignore_errors=True)
    gone = {os.path.normpath(VENV / path) for path in paths}
    for record in _new_records():
        _forget(record, gone)


def finish() -> None:
    """Remove the traces and give everything that is new the one time of all layers."""
    for trace in TRACES:
        shutil.rmtree(trace) if trace.is_dir() else trace.unlink(missing_ok=True)
    for record in _new_records():
        notes = {record.with_name(name) for name in NOTES}
        _forget(record, {str(note) for note in notes})
        for note in notes:
            note.unlink(missing_ok=True)
        record.chmod(0o644)  # not the mode that it happens to have in the wheel
    for name, folders, files in os.walk(VENV, topdown=False):
        folder = Path(name)
        if folder.name == "__pycache__":
            shutil.rmtree(folder)
        elif _is_new(folder) and not any(folder.iterdir()):
            folder.rmdir()  # a wheel may name a folder and put nothing into it
        else:
            links = [name for name in folders if (folder / name).is_symlink()]
            for path in [*(folder / name for name in [*files, *links]), folder]:
                if _is_new(path):
                    os.utime(path, (TIME, TIME), follow_symlinks=False)


def _is_new(path: Path) -> bool:
    """Return whether something was put here in this layer; what is older has its final time already."""
    return path.lstat().st_mtime != TIME


def _new_records() -> list[Path]:
    return [path for path in VENV.glob("lib/python*/site-packages/*.dist-info/RECORD") if _is_new(path)]


def _remove_empty(folder: Path) -> None:
    while folder != VENV and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _forget(record: Path, gone: set[str]) -> None:
    site = record.parent.parent
    rows = list(csv.reader(io.StringIO(record.read_text("utf-8"))))
    kept = [row for row in rows if os.path.normpath(site / row[0]) not in gone]
    if kept != rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(kept)
        record.write_text(text.getvalue(), "utf-8")


if __name__ == "__main__":
    step, *lists = sys.argv[1:]
    paths = [line for file in lists for line in Path(file).read_text("utf-8").splitlines()]
    {"keep": keep, "restore": restore, "finish": lambda _: finish()}[step](paths)
