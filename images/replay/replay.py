"""Replays a mod's script on the files of locked wheels, and reports what it changed; process 1 of a container.

The script is not trusted: it runs in tmpfs of limited size, and what it leaves behind is read without following links.
The report goes to the standard output, which the script does not get to see.
"""

import base64
import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from pathlib import Path
from zipfile import ZipFile

PLACE = Path("/usr/local/lib")
ROOT = PLACE / "python3.12" / "dist-packages"
WORKSPACE = Path("/workspace")
OWN = Path("/run/factory")
INPUT = Path("/factory")
PROGRAMS = ("curl", "wget", "pip", "pip3", "uv", "apt", "apt-get", "sudo", "patch", "git")
LARGEST = 4 * 1024**2
"""The largest file of a wheel that is unpacked, and the largest changed file; larger ones are libraries."""
MOST_FILES, MOST_BYTES = 600, 24 * 1024**2  # what a report may contain
_OUTPUT = 40_000
_PR_SET_DUMPABLE = 4


def main() -> int:
    """Unpack, run, stop everything that still runs, and report."""
    # The script has the same user: without this it could write into this process and its output.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.umask(0o022)
    order = json.loads((INPUT / "order.json").read_text("utf-8"))
    expected = _unpack()
    _prepare(order)
    status, output = _run(order)
    report = {"status": status, "output": output, "left_running": _stop_all(), "full": _full()}
    journal = OWN / "journal"
    noted = _bytes(journal) if journal.is_file() and not journal.is_symlink() else b""
    report["journal"] = noted.decode("utf-8", "replace")[-200_000:]
    report |= _changes(expected)
    sys.stdout.write(json.dumps(report))
    return 0


def _unpack() -> dict[str, int | None]:
    """Unpack the wheels; return the checksum of each file, None for a library, which is left empty."""
    expected: dict[str, int | None] = {}
    for wheel in sorted((INPUT / "wheels").iterdir()):
        with ZipFile(wheel) as archive:
            for item in archive.infolist():
                if item.is_dir() or ".data/" in item.filename:
                    continue
                target = ROOT / item.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                large = item.file_size > LARGEST or item.filename.endswith(".so")
                target.write_bytes(b"" if large else archive.read(item))
                expected[item.filename] = None if large else item.CRC
    (PLACE / "python3.13").symlink_to("python3.12")
    return expected


def _prepare(order: dict[str, object]) -> None:
    mod = WORKSPACE / "mods" / str(order["name"])
    for name, folder in {"mod.tar": mod, "supplied.tar": OWN / "supplied"}.items():
        folder.mkdir(parents=True)
        with tarfile.open(INPUT / name) as archive:
            archive.extractall(folder, filter="data")
    (OWN / "supplied" / "names.json").write_text(json.dumps(order["supplied"]), encoding="utf-8")
    (OWN / "locked.json").write_text(json.dumps(order["locked"]), encoding="utf-8")
    (OWN / "bin").mkdir()
    for name in PROGRAMS:
        (OWN / "bin" / name).symlink_to(INPUT / "replay" / "stand_in.py")
    (OWN / "bin" / "python").symlink_to("/usr/bin/python3")


def _run(order: dict[str, object]) -> tuple[int | None, str]:
    """Run the script; return its exit status, None after the time is over, and the end of its output."""
    given = order["env"]
    environment = {
        **(given if isinstance(given, dict) else {}),
        "PATH": f"{OWN}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",  # noqa: S108 - a tmpfs of the container
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": f"{INPUT}/replay/modules",
        "FACTORY_PACKAGES": " ".join(path.name for path in ROOT.iterdir() if path.is_dir()),
        "WORKSPACE_DIR": str(WORKSPACE),
    }
    folder = WORKSPACE / "mods" / str(order["name"])
    (folder / "run.sh").chmod(0o755)
    try:
        process = subprocess.Popen(
            ["./run.sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return 127, f"run.sh cannot be started: {error.strerror}"
    said = bytearray()

    def listen() -> None:
        while process.stdout is not None and (chunk := os.read(process.stdout.fileno(), 65536)):
            said.extend(chunk)
            del said[:-_OUTPUT]

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        status: int | None = process.wait(float(str(order["seconds"])))
    except subprocess.TimeoutExpired:
        status = None
    listener.join(2)  # a process in the background may hold the pipe open
    return status, bytes(said).decode("utf-8", "replace")


def _stop_all() -> list[str]:
    """Kill every other process; return the commands of those that outlived the script."""
    left: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != "1" and len(left) < 5:
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if words.strip():
                left.append(words.decode("utf-8", "replace").strip()[:200])
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except (ProcessLookupError, ChildProcessError):
            break
        time.sleep(0.05)
    return left


def _full() -> list[str]:
    states = {str(place): os.statvfs(place) for place in (PLACE, WORKSPACE, "/tmp")}  # noqa: S108
    return [
        place for place, state in states.items() if state.f_bavail * state.f_bsize < 64 * 1024 or state.f_favail < 8
    ]


def _changes(expected: dict[str, int | None]) -> dict[str, object]:
    found = _Found()
    for path, entry in _walk(PLACE):
        inside = path.removeprefix("python3.12/dist-packages/")
        if path == "python3.13":
            continue
        if inside == path:
            found.listed["outside"].append(f"{PLACE}/{path}")
            continue
        found.seen.add(inside)
        _compare(found, ROOT / inside, inside, entry, expected)
    for path, entry in _walk(WORKSPACE):
        if path.startswith("mods/"):
            continue
        if stat.S_ISREG(entry.st_mode):
            found.keep("workspace", WORKSPACE / path, path, entry)
        else:
            found.odd[f"{WORKSPACE}/{path}"] = stat.filemode(entry.st_mode)[0]
    return {
        **found.kept,
        "deleted": sorted(set(expected) - found.seen)[:MOST_FILES],
        "odd": dict(list(found.odd.items())[:50]),
        **{name: paths[:50] for name, paths in found.listed.items()},
    }


class _Found:
    def __init__(self) -> None:
        self.kept: dict[str, dict[str, str]] = {"changed": {}, "workspace": {}}
        self.odd: dict[str, str] = {}
        self.listed: dict[str, list[str]] = {name: [] for name in ("modes", "too_large", "outside", "rejects")}
        self.seen: set[str] = set()
        self._left = MOST_BYTES

    def keep(self, where: str, file: Path, path: str, entry: os.stat_result) -> None:
        if len(self.kept[where]) >= MOST_FILES or entry.st_size > min(LARGEST, self._left):
            self.listed["too_large"].append(path)
            return
        self._left -= entry.st_size
        self.kept[where][path] = base64.b64encode(_bytes(file)).decode()


def _compare(found: _Found, file: Path, path: str, entry: os.stat_result, expected: dict[str, int | None]) -> None:
    if not stat.S_ISREG(entry.st_mode):
        found.odd[path] = stat.filemode(entry.st_mode)[0]
        return
    if "__pycache__" in path or path.endswith((".pyc", ".orig")):
        return
    if path.endswith(".rej"):
        found.listed["rejects"].append(path)
        return
    if path in expected and stat.S_IMODE(entry.st_mode) != 0o644:
        found.listed["modes"].append(path)
    if path in expected and expected[path] is None:
        if entry.st_size:
            found.listed["too_large"].append(path)
    elif entry.st_size > LARGEST or path not in expected or zlib.crc32(_bytes(file)) != expected[path]:
        found.keep("changed", file, path, entry)


def _walk(top: Path) -> list[tuple[str, os.stat_result]]:
    """List everything below a folder but folders, without following links; the owner may read all of it."""
    found: list[tuple[str, os.stat_result]] = []
    waiting = [top]
    while waiting and len(found) < 200_000:
        folder = waiting.pop()
        folder.chmod(0o755)
        for item in os.scandir(folder):
            entry = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(entry.st_mode):
                waiting.append(folder / item.name)
            else:
                found.append((os.fsdecode(os.fsencode((folder / item.name).relative_to(top))), entry))
    return found


def _bytes(file: Path) -> bytes:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except PermissionError:
        file.chmod(0o644, follow_symlinks=True)
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle, "rb") as opened:
        return opened.read(LARGEST + 1)


if __name__ == "__main__":
    raise SystemExit(main())
