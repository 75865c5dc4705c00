"""Brings the model to the second Spark: it downloads from this machine, as if this were the model hub.

The image's own `download` does it there, so files are resumed, verified and locked as always; ssh forwards the port.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from imagefactory.errors import MachineError, clean
from imagefactory.launch.docker_run import Launch, docker_once
from imagefactory.pair.lending import Piece, lent
from imagefactory.pair.machines import HERE, Machine, There, check, failed
from imagefactory.store.paths import expand_home
from imagefactory.store.progress import Say
from images.serve.program.weights import File, read_list

_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_OFFLINE = {"HF_HUB_OFFLINE": ""}
"""An image whose model is inside says that there is no hub."""


def bring(head: Launch, worker: Launch, there: There, say: Say) -> int:
    """Complete the model on both machines; return how many bytes the second one fetched."""
    ours = look(HERE, head)
    if lacking := wants(ours):
        say(f"weights: this machine lacks {lacking}")
        _download(HERE, replace(head, given={**head.given, **_OFFLINE}), say)
        ours = look(HERE, head)
    theirs = look(there, worker)
    lacking = wants(theirs) or _differ(ours, theirs)
    if not lacking:
        return 0
    say(f"weights: {there.name} lacks {lacking}")
    with lent(hub(expand_home(head.models, "the --models option") / "hub", ours)) as server:
        with there.lending(server.server_port) as port:
            variables = {**_OFFLINE, "HF_ENDPOINT": f"http://127.0.0.1:{port}"}
            _download(there, replace(worker, given={**worker.given, **variables}, with_token=False), say)
        return server.sent.total()


def look(machine: Machine, launch: Launch) -> Any:  # noqa: ANN401 - JSON
    """Return what a machine has of the models that the image uses."""
    return json.loads(check(machine, *docker_once(launch, "weights", "--json"), timeout=300))


def wants(found: Mapping[str, Any]) -> str:
    """Say what is missing; nothing if all is there."""
    lacks = [str(entry["repo"]) for entry in found["absent"]]
    for entry in found["snapshots"]:
        if entry["used_as"] and not entry["complete"]:
            lacks += [f"{name} of {entry['repo']}" for name in entry["missing"][:3]]
    return ", ".join(lacks)


def _differ(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Say which models of both are complete, but other revisions."""
    used = [
        {(entry["repo"], entry["revision"]) for entry in one["snapshots"] if entry["used_as"]} for one in (ours, theirs)
    ]
    return ", ".join(f"{repo}@{revision[:12]}" for repo, revision in sorted(used[0] - used[1]))


def hub(cache: Path, found: Mapping[str, Any]) -> dict[str, Piece]:
    """Return the answers of a model hub that has the models in use, by path."""
    pieces: dict[str, Piece] = {}
    for entry in found["snapshots"]:
        if not entry["used_as"]:
            continue
        repo, commit = str(entry["repo"]), str(entry["revision"])
        repository = cache / f"models--{repo.replace('/', '--')}"
        files = files_of(repository, commit)
        answer = json.dumps({"sha": commit, "siblings": [_sibling(file) for file in files]}).encode()
        for name in (commit, "main"):
            pieces[f"/api/models/{repo}/revision/{name}"] = Piece.of(answer, "application/json")
        for file in files:
            path = repository / "snapshots" / commit / file.path
            if path.is_file():
                pieces[f"/{repo}/resolve/{commit}/{file.path}"] = Piece.of(path)
    return pieces


def files_of(repository: Path, commit: str) -> list[File]:
    """List the files of a revision with their digests, which huggingface_hub's cache has as names of blobs."""
    listed = read_list(repository, commit)
    if listed is not None:
        return listed[0]
    snapshot = repository / "snapshots" / commit
    files = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
    found = [File(str(path.relative_to(snapshot)), path.stat().st_size, path.resolve().name) for path in files]
    if strange := [file.path for file in found if not _BLOB.fullmatch(file.digest)]:
        raise MachineError(
            "no-hashes",
            f"Nobody knows what {strange[0]} should be.",
            where=snapshot,
            why="It is a file of its own and no link to a blob, and there is no list with its SHA beside it.",
            fix="Download the model with the image: `docker run … IMAGE download` makes the list.",
        )
    return found


def _sibling(file: File) -> dict[str, Any]:
    large = {"lfs": {"sha256": file.digest, "size": file.size}} if len(file.digest) == 64 else {}  # noqa: PLR2004
    return {"rfilename": file.path, "size": file.size, "blobId": file.digest, **large}


def _download(machine: Machine, launch: Launch, say: Say) -> None:
    words = docker_once(launch, "download")
    last: list[str] = []
    with subprocess.Popen(  # noqa: S603 - ssh or docker
        machine.command(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            if line.startswith("[download] "):
                say(f"weights: {machine.name}: {clean(line.removeprefix('[download] '))}")
            else:
                last.append(line)
    said = "".join(last)
    machine.refuse(subprocess.CompletedProcess(words, process.returncode, "", said))
    if process.returncode:
        raise refusal(machine, "download", said)


def refusal(machine: Machine, command: str, said: str) -> MachineError:
    """Return the error for what the serve program refuses, in its own words."""
    told = re.search(r"^error\[[\w-]+\]: (.*)((?:\n {2}\w.*)*)", said, re.MULTILINE)
    if told is None:
        raise failed(machine, ("docker", "run", "…", command), said)
    remedy = re.search(r"^ {2}remedy: +(.*)", told[2], re.MULTILINE)
    return MachineError(
        "node-refuses",
        clean(told[1]),
        where=f"`{command}` on {machine.name}",
        why="The image's own program says so.",
        fix=clean(remedy[1]) if remedy else f"Look at the output of `{command}` there.",
    )
