"""Copies the models in use to the second Spark with rsync through ssh, then compares each file there with its hash.

rsync writes a file under another name until it is complete, and resumes it after an interruption.
"""

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from imagefactory.errors import MachineError, clean
from imagefactory.launch.docker_run import Launch, docker_once
from imagefactory.pair.machines import HERE, SSH_FAILED, Machine, There, check, failed
from imagefactory.serve_program import WeightFile, list_weights
from imagefactory.store.progress import Say

HASHING: Final = Path(__file__).with_name("hash_files.py")
EVERY = 5.0
"""Seconds between two lines about the progress."""
HOURS: Final = 3600.0
"""Seconds for reading all weights once, to hash them."""
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")  # git's SHA-1, or SHA-256 for files in LFS
_OFFLINE = {"HF_HUB_OFFLINE": ""}
"""An image whose model is inside says that there is no hub."""


@dataclass(frozen=True)
class Models:
    """What this machine has of the models that an image uses."""

    snapshots: tuple[tuple[str, str], ...]
    """Repositories and revisions that are here, at least in part."""
    lacking: str
    """What has to be downloaded; empty if nothing."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the snapshots in huggingface_hub's cache."""
        return tuple(f"models--{repo.replace('/', '--')}/snapshots/{commit}" for repo, commit in self.snapshots)


def look(launch: Launch) -> Models:
    """Ask the image what this machine has of its models."""
    return read(json.loads(check(HERE, *docker_once(launch, "weights", "--json"), timeout=300)))


def read(answer: Mapping[str, Any]) -> Models:
    used = [entry for entry in answer["snapshots"] if entry["used_as"]]
    lacking = [str(entry["repo"]) for entry in answer["absent"]]
    for entry in used:
        lacking += [f"{name} of {entry['repo']}" for name in entry["missing"][:3]]  # for a line of the log
    return Models(tuple((str(entry["repo"]), str(entry["revision"])) for entry in used), ", ".join(lacking))


def download(launch: Launch, say: Say) -> Models:
    """Complete the models on this machine, with the image's own program."""
    words = docker_once(replace(launch, given={**launch.given, **_OFFLINE}), "download")
    last: list[str] = []
    with subprocess.Popen(  # noqa: S603 - docker
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            if line.startswith("[download] "):
                say(f"weights: {clean(line.removeprefix('[download] '))}")
            else:
                last.append(line)
    if process.returncode:
        raise refusal(HERE, "download", "".join(last))
    return look(launch)


def copy(cache: Path, models: Models, second: There, place: str, say: Say) -> None:
    """Copy models from this machine's cache to the second's, and compare what is there with its hashes."""
    names: list[str] = []
    hashes: list[tuple[str, int, str]] = []
    for snapshot in (cache / folder for folder in models.folders):
        for file in files_of(snapshot):
            path = snapshot / file.path
            if path.is_file():  # formats that no server reads are listed, too
                hashes.append((str(path.relative_to(cache)), file.size, file.digest))
                names += map(str, _within(cache, path, path.resolve()))
        repository, commit = snapshot.parents[1], snapshot.name
        lists = [path for path in repository.glob(f"*/{commit}.json") if path.is_file()]
        # refs/main has the commit: without it, huggingface_hub does not find the snapshot of a branch offline.
        refs = [path for path in (repository / "refs").glob("*") if path.is_file() and path.read_text() == commit]
        names += map(str, _within(cache, *lists, *refs))
    check(second, "mkdir", "-p", place)
    _rsync(cache, names, second, place, say)
    say(f"weights: comparing {len(hashes)} files on {second.name} with their hashes")
    words = ("python3", "-c", HASHING.read_text("utf-8"), place)
    if damaged := check(second, *words, given=json.dumps(hashes), timeout=HOURS).splitlines():
        raise MachineError(
            "damaged-weights",
            f"{damaged[0]} on {second.name} does not have its hash.",
            where=f"{second.name}:{place}",
            why=f"{len(damaged)} of {len(hashes)} files differed, and were removed there.",
            fix="Run it again; if they still differ, they are damaged here: remove them here, and run it again.",
        )


def _within(cache: Path, *paths: Path) -> Iterator[Path]:
    """Name files for rsync; where a link leads out of the cache, rsync copies the file in place of the link."""
    yield from (path.relative_to(cache) for path in paths if path.is_relative_to(cache))


def _rsync(cache: Path, names: Sequence[str], second: There, place: str, say: Say) -> None:
    words = [
        *("rsync", "--links", "--copy-unsafe-links", "--times", "--perms", "--partial-dir=.rsync-partial"),
        *("--info=progress2", "--files-from=-", "--rsh", shlex.join(("ssh", *second.options))),
        *(f"{cache}/", f"{second.name}:{place}/"),
    ]
    reported, last = time.monotonic(), ""
    with subprocess.Popen(  # noqa: S603 - rsync
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018
        with process.stdin:
            process.stdin.write("".join(f"{name}\n" for name in dict.fromkeys(names)))  # files may share a blob
        for line in process.stdout:  # carriage returns end lines, too
            last = clean(line) or last
            if time.monotonic() - reported >= EVERY:
                reported = time.monotonic()
                say(f"weights: {last}")
        complaint = process.stderr.read()
    if process.returncode == SSH_FAILED:
        raise second.explained(complaint)
    if process.returncode:
        raise failed(second, ("rsync",), complaint)
    say(f"weights: {last}")


def files_of(snapshot: Path) -> list[WeightFile]:
    """List the files of a revision with their digests, which huggingface_hub's cache has as names of blobs."""
    listed = list_weights(snapshot.parents[1], snapshot.name)
    if listed is not None:
        return listed[0]
    paths = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
    files = [WeightFile(str(path.relative_to(snapshot)), path.stat().st_size, path.resolve().name) for path in paths]
    if unknown := [file.path for file in files if not _BLOB.fullmatch(file.digest)]:
        raise MachineError(
            "no-hashes",
            f"{unknown[0]} has no known hash.",
            where=snapshot,
            why="It is a plain file instead of a link to a blob, and no list beside it has its hash.",
            fix="Download the model with the image: `docker run … IMAGE download` writes the list.",
        )
    return files


def refusal(machine: Machine, command: str, output: str) -> MachineError:
    """Return the error for what the serve program refuses, in its own words."""
    message = re.search(r"^error\[[\w-]+\]: (.*)((?:\n {2}\w.*)*)", output, re.MULTILINE)
    if message is None:
        raise failed(machine, ("docker", "run", "…", command), output)
    remedy = re.search(r"^ {2}remedy: +(.*)", message[2], re.MULTILINE)
    return MachineError(
        "node-refuses",
        clean(message[1]),
        where=f"`{command}` on {machine.name}",
        why="The image's own program says so.",
        fix=clean(remedy[1]) if remedy else f"Look at the output of `{command}` there.",
    )
