"""Lists the compiles whose trees are on this machine: those that run, and those that were interrupted."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from filelock import FileLock, Timeout

from imagefactory.compile.estimate import ObjectWork, read_work
from imagefactory.compile.job import Job, Request
from imagefactory.store.atomic import write_text
from imagefactory.store.cache import Store
from imagefactory.store.cleaning import folder_size

_RUN: Final = "run.json"
_TAIL: Final = 4096
State = Literal["running", "interrupted", "failed", "done"]


@dataclass(frozen=True)
class UnderWay:
    """A compile whose tree is on this machine."""

    key: str
    name: str
    arch: str
    state: State
    work: ObjectWork | None
    """None before ninja has started."""
    size: int
    """The bytes of its folder."""
    last: str
    """The last line of its log."""
    command: str
    """What continues it, or repeats it."""
    folder: Path

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"folder": str(self.folder)}


def note(folder: Path, job: Job, state: State) -> None:
    """Write down what is compiled in a folder, and how far it came."""
    noted = {
        "name": f"{job.inputs.name} {job.inputs.version}",
        "arch": job.request.arch,
        "command": command_of(job.request),
        "state": state,
    }
    write_text(folder / _RUN, json.dumps(noted, indent=1) + "\n")


def forget(folder: Path) -> None:
    """Remove the note of a compile whose tree is gone."""
    (folder / _RUN).unlink(missing_ok=True)


def under_way(store: Store) -> list[UnderWay]:
    """Return the compiles with a tree, by name and arch."""
    return sorted(_found(store), key=lambda found: (found.name, found.arch, found.key))


def command_of(request: Request) -> str:
    """Return the command line of a request."""
    words = ["./inv", "compile", "--what", request.what, "--vllm", request.vllm, "--arch", request.arch]
    only = request.modules or (request.targets if request.graft else ())
    words += ["--only", ",".join(only)] if only else []
    words += ["--targets", ",".join(request.targets)] if request.inspects else []
    words += [word for source in request.sources for word in ("--source", source)]
    words += [word for mod in request.without_mods for word in ("--without-mod", mod)]
    words += ["--jobs", str(request.jobs)] if request.jobs else []
    words += ["--group", request.group] if request.group else []
    return shlex.join(words)


def _found(store: Store) -> Iterator[UnderWay]:
    for folder in (store.root / "compile").glob("*"):
        noted = _noted(folder / _RUN)
        if not noted and not (folder / "src").exists():
            continue
        state: State = noted.get("state", "interrupted")
        if _is_held(folder / ".lock"):
            state = "running"
        elif state == "running":  # it was killed before it could say how it ended
            state = "interrupted"
        yield UnderWay(
            key=folder.name,
            name=str(noted.get("name", "unknown")),
            arch=str(noted.get("arch", "")),
            state=state,
            work=read_work(folder),
            size=folder_size(folder),
            last=_last_line(folder / "log"),
            command=str(noted.get("command", "")),
            folder=folder,
        )


def _noted(path: Path) -> dict[str, Any]:
    """Read a note; a folder whose note is missing or damaged is listed without what it would say."""
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _is_held(lock: Path) -> bool:
    try:
        with FileLock(lock, blocking=False):
            return False
    except Timeout:
        return True


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
