"""Runs somebody's script in a plain container, and reads back a diff of the packages before and after.

The script is not trusted. Docker's flags bound it, and the only thing that it hands on is a diff, which is read as any
other diff of a stranger is: a script that forges it could as well have been a file.
"""

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final
from zipfile import ZipFile

import requests
from docker.errors import DockerException
from docker.types import LogConfig

from imagefactory.assemble.engines.docker.daemon import client_for
from imagefactory.assemble.watch import Watcher
from imagefactory.compile.toolchain import CompileProject, provide, toolchain_plan
from imagefactory.errors import ModError, clean
from imagefactory.importing.attempts import Attempt, read_diffs, try_diffs
from imagefactory.importing.sources import SCRIPT
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.project.targets import host_machine
from imagefactory.store.signals import ending_in_order
from images.shipped.mods.manifest import IMAGE_FILES

LABEL: Final = "imagefactory.import"
# Where scripts for vLLM's own images expect packages.
PACKAGES: Final = "usr/local/lib/python3.12/dist-packages"
WORKSPACE: Final = "workspace"
SECONDS: Final = 300  # the time that a script gets
_GRACE: Final = 120  # for unpacking the packages, and for the diff
_LARGEST: Final = 4 * 1024**2  # the largest file of a wheel that is unpacked; larger ones are libraries
_PROCESSES: Final = 128
_MEMORY: Final = "2g"  # with the space below, which is memory too
_SPACE: Final = {f"/{PACKAGES}": "512m", f"/{WORKSPACE}": "64m", "/tmp": "512m"}  # noqa: S108 - of the container
_MOST_OUTPUT: Final = "32m"
_NOBODY: Final = 65534  # in place of root, which no script runs as
_KILLED: Final = (124, 137)  # by `timeout`, or for memory
_SHOWN_LINES, _SHOWN = 3, 300

# The tree is added with --force, or a .gitignore would hide changes. Git's own files are out of the script's way: a
# repository around the packages would change what `git apply` does in them.
_STEPS: Final = f"""
set -eu
packages=/{PACKAGES} workspace=/{WORKSPACE}
tree() {{
    git -c core.fileMode=false -c core.compression=0 -c core.quotePath=false --git-dir=/tmp/tree --work-tree=/ "$@"
}}
snapshot() {{
    tree add --all --force -- "$packages" "$workspace" ':(exclude,top)*.orig' ':(exclude,top){WORKSPACE}/mods' &&
        tree write-tree
}}
tar --extract --no-same-owner --file /factory/files.tar --directory /
mkdir /tmp/bin
ln -s /usr/bin/python3 /tmp/bin/python
tree init --quiet
before=$(snapshot)
cd "$workspace/mods/$1"
PATH=/tmp/bin:$PATH ./{SCRIPT} </dev/null >&2
cd /
after=$(snapshot)
tree diff --no-ext-diff --no-renames --full-index "$before" "$after"
"""


@dataclass(frozen=True)
class Ran:
    """How a script ended, and what it left; none of it can be trusted."""

    status: int
    output: str = ""
    diff: bytes = b""


@dataclass(frozen=True)
class ScriptRun:
    """What to run: a folder with a script, on the files of some wheels."""

    name: str
    files: Mapping[str, bytes]
    wheels: Iterable[Path]
    env: Mapping[str, str]


Run = Callable[[ScriptRun, Path], Ran]  # the folder is for files of that run


def provide_image(project: CompileProject, watch: Watcher) -> str:
    """Load the image that scripts run in into the Docker daemon, unless it is there; return its name."""
    cell = project.cell(project.matrix.defaults.vllm, f"linux/{host_machine()}")
    return provide(project, toolchain_plan(project, cell, bare=True), watch)


def running(provide: Callable[[], str], seconds: float = SECONDS) -> Run:
    """Return a way to run scripts in an image that is provided when the first one needs it."""
    image = cache(provide)
    return lambda script, folder: _run(image(), script, folder, seconds)


def _run(image: str, script: ScriptRun, folder: Path, seconds: float) -> Ran:
    files = _write_tar(folder / "files.tar", script)
    files.chmod(0o644)  # the container's user is not this one, and a umask may have closed it
    user, group = os.getuid() or _NOBODY, os.getgid() or _NOBODY
    # Owner and mode: runc gives a tmpfs those of the folder below it.
    space = {
        place: f"rw,nosuid,nodev,exec,mode=755,uid={user},gid={group},size={size}" for place, size in _SPACE.items()
    }
    client = client_for(
        "docker run",
        "The Docker daemon cannot run the script.",
        "Start Docker and check DOCKER_HOST, or run the script by hand and import the diff, which needs no Docker.",
        timeout=int(seconds) + _GRACE,
    )
    with ending_in_order(), client as docker:
        container = docker.containers.create(
            image,
            ["timeout", "--signal=KILL", str(seconds), "bash", "-c", _STEPS, "bash", script.name],
            labels={LABEL: str(folder)},
            user=f"{user}:{group}",
            working_dir="/",
            environment={
                **script.env,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": "/tmp",  # noqa: S108 - of the container
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": f"/{PACKAGES}",
                "WORKSPACE_DIR": f"/{WORKSPACE}",
            },
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=_PROCESSES,
            mem_limit=_MEMORY,
            memswap_limit=_MEMORY,  # of memory and swap together: no swap
            # Not json-file, which turns bytes that are not UTF-8 into others.
            log_config=LogConfig(type="local", config={"max-size": _MOST_OUTPUT, "max-file": "1", "compress": "false"}),
            tmpfs=space,
            volumes={str(files): {"bind": "/factory/files.tar", "mode": "ro"}},
        )
        try:
            container.start()
            status = int(container.wait(timeout=seconds + _GRACE)["StatusCode"])
            diff, output = container.logs(stderr=False), container.logs(stdout=False, tail=200)
        except (requests.Timeout, requests.ConnectionError):
            return Ran(_KILLED[0])
        finally:
            with suppress(DockerException, requests.RequestException):
                container.remove(force=True, v=True)
    return Ran(status, output.decode("utf-8", "replace"), diff)


def _write_tar(path: Path, script: ScriptRun) -> Path:
    with tarfile.open(path, "w") as archive:

        def add(name: str, data: bytes, mode: int = 0o644) -> None:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))

        for wheel in script.wheels:
            with ZipFile(wheel) as packed:
                for info in packed.infolist():
                    large = info.file_size > _LARGEST or info.filename.endswith(".so")
                    if not (large or info.is_dir() or ".data/" in info.filename):
                        add(f"{PACKAGES}/{info.filename}", packed.read(info))
        for name, data in script.files.items():
            mode = 0o755 if name == SCRIPT or data.startswith(b"#!") else 0o644
            add(f"{WORKSPACE}/mods/{script.name}/{name}", data, mode)
    return path


def judge(version: str, ran: Ran, distributions: list[ReleaseSource]) -> Attempt:
    """Turn what a script left into an attempt; what it says is shown where nothing came of it."""
    if ran.status:
        limits = f"{SECONDS} seconds, {_PROCESSES} processes and {_MEMORY} of memory"
        how = f"was killed, for it may use {limits}" if ran.status in _KILLED else f"ends with code {ran.status}"
        return Attempt(version, "fails", f"it {how}: {_end(ran.output)}")
    try:
        [(_, sections)] = read_diffs({SCRIPT: ran.diff.decode()}) if ran.diff else [(SCRIPT, [])]
    except UnicodeDecodeError:  # Git takes bytes without a zero for text
        return Attempt(version, "fails", "it writes something that is not text")
    except ModError as error:
        return Attempt(version, "fails", f"{error.what} {error.why}")
    rejects = [section.path for section in sections if section.path.endswith(".rej")]
    changes = [
        replace(section, path=IMAGE_FILES + PurePosixPath(section.path).name)
        if section.path.startswith(f"{WORKSPACE}/")
        else section
        for section in sections
        if section.path not in rejects
    ]
    if not changes:  # a patch that a version has already leaves a reject and nothing else
        return Attempt(version, "nothing", _end(ran.output))
    fault = f"a patch that does not fit: {', '.join(rejects[:3])}" if rejects else ""
    if fuzzy := re.search(r"^Hunk #\d+ succeeded at .* with fuzz \d.*$", ran.output, re.MULTILINE):
        fault = f"a patch that fits only roughly: {clean(fuzzy[0])}"
    if "Traceback (most recent call last):\n" in ran.output:
        fault = f"an exception: {_end(ran.output)}"
    if fault:
        return Attempt(version, "fails", f"it goes on after {fault}")
    return try_diffs(version, [(SCRIPT, changes)], distributions, leave_out=False)


def _end(output: str) -> str:
    """Return the last lines of a script's output, as one."""
    lines = [clean(line.strip()) for line in output.splitlines() if line.strip()]
    words = " / ".join(lines[-_SHOWN_LINES:])
    return (words if len(words) <= _SHOWN else f"…{words[-_SHOWN:]}") or "it says nothing"
