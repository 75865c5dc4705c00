"""Traces what the programs of an image open, and lists what nothing touched: candidates for `leave_out`.

Three starts are traced: importing every module of the server, its help, and a served request. An audit hook in
every Python process notes what is opened, imported and started; the dynamic linker (LD_DEBUG) notes every library, also
those that C code loads. Not seen is what other programs read: headers for a compiler, data that a library opens itself.
"""

from __future__ import annotations

import json
import posixpath
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from imagefactory.environment.progress import Say
from imagefactory.errors.smoke import TraceError
from imagefactory.locks.project import Project
from imagefactory.oci.compare import merged, open_layout
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import ListedPath
from imagefactory.plan.built_layers import read_owners
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.image_paths import CACHES
from imagefactory.servers.known import server_of
from imagefactory.smoke import trace_hook
from imagefactory.smoke.containers import Container, ContainerError, Containers, docker
from imagefactory.smoke.on_cpu import on_cpu
from imagefactory.smoke.subject import Subject, bring_into_daemon, subject_of_target

FOLDER: Final = "/trace"
_PYTHON: Final = f"/{VENV}/bin/python3"
_BY_LINKER = re.compile(r"(?:calling init: |transferring control: |file=)(/\S+)")
_BYTECODE = re.compile(r"(?P<folder>.*/)(?P<module>[^/]+)\.cpython-\d+(\.opt-\d)?\.pyc")
_PREFIX = re.compile(rf"{CACHES}/pycache(?=/)")
"""PYTHONPYCACHEPREFIX; below it there is no __pycache__."""
_LINKS: Final = 40
"""As many links as Linux follows."""
_PATIENCE: Final = 1800
IMPORTS: Final = """
import importlib, json, os, signal, sys
server = sys.argv[1]
def late(*_):
    raise TimeoutError("it takes more than a minute")
signal.signal(signal.SIGALRM, late)  # some modules compile kernels when they are imported
root = os.path.dirname(importlib.import_module(server).__file__)
failed = {}
for folder, folders, files in sorted(os.walk(root)):
    for file in sorted(files):
        if file.endswith(".py") and file != "__main__.py":
            parts = [server, *os.path.relpath(f"{folder}/{file[:-3]}", root).split(os.sep)]
            name = ".".join(parts).removesuffix(".__init__")
            signal.alarm(60)
            try:
                importlib.import_module(name)
            except BaseException as error:
                failed[name] = f"{type(error).__name__}: {error}"[:200]
            signal.alarm(0)
with open(f"{os.environ['IMAGEFACTORY_TRACE']}/failed.json", "w") as out:
    json.dump(failed, out)
os._exit(0)
"""


@dataclass(frozen=True)
class Untouched:
    """A distribution or a file that nothing touched."""

    name: str
    """The wheel, or the file as `leave_out` names it."""
    owner: str
    files: int
    size: int
    """Unpacked."""


@dataclass(frozen=True)
class Trace:
    """What was seen, and what was not."""

    steps: Mapping[str, float]
    """The seconds of each traced start."""
    skipped: Mapping[str, str]
    """Starts that could not be traced, and why."""
    failed_imports: Mapping[str, str]
    touched: frozenset[str]
    """Paths of wheels in the image."""
    distributions: tuple[Untouched, ...]
    files: tuple[Untouched, ...]
    """Of distributions that were touched."""


@dataclass
class Recording:
    """The traced containers of one image."""

    image: str
    python: str
    work: Path
    containers: Containers = field(default_factory=lambda: Containers(uuid4().hex[:12]))

    def options(self) -> tuple[str, ...]:
        """Return options of `docker run` that trace every program in the container."""
        hook = f"{FOLDER}/hook/trace_hook.py"
        start = self.work / "start.pth"
        # Python runs these lines in every process of the environment, however it is started.
        start.write_text(
            f"import os; exec(open('{hook}').read(), {{}}) if os.path.exists('{hook}') else None\n"
        )
        site = f"/{VENV}/lib/python{self.python}/site-packages"
        return (
            *("--volume", f"{trace_hook.__file__}:{hook}:ro", "--volume", f"{start}:{site}/0-trace.pth:ro"),
            *("--env", "LD_DEBUG=files,libs", "--env", f"LD_DEBUG_OUTPUT={FOLDER}/ld"),
            *("--env", f"IMAGEFACTORY_TRACE={FOLDER}"),
        )

    def run(self, name: str, *words: str) -> None:
        """Run the image's Python with arguments and keep what was noted."""
        options = ("--network", "none", "--entrypoint", _PYTHON, *self.options())
        container = self.containers.start(self.image, *words, options=options)
        try:
            ended = docker("wait", container.name, timeout=_PATIENCE)
            if ended.stdout.strip() != "0":
                last = "\n".join(container.log.strip().splitlines()[-5:])
                raise ContainerError(f"{name}: {ended.stdout.strip() or ended.stderr.strip()}: {last}")
            self._keep(name, container)
        finally:
            container.remove()

    def serve(self, options: Iterable[str], arguments: Iterable[str] = ()) -> None:
        """Serve a request and keep what was noted."""
        own = (*self.options(), *options)
        with self.containers.serve(self.image, self.work, *arguments, options=own) as server:
            server.wait_until_healthy(_PATIENCE)
            model = server.get("/v1/models").json()["data"][0]["id"]
            answer = server.post("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})
            if not answer.ok:
                raise ContainerError(f"the server answered {answer.status_code}: {answer.text[:200]}")
            server.container.stop(60)
            self._keep("serve", server.container)

    def _keep(self, name: str, container: Container) -> None:
        done = docker("cp", f"{container.name}:{FOLDER}", str(self.work / name), timeout=600)
        if done.returncode:
            raise ContainerError(f"{name}: what was noted cannot be read: {done.stderr.strip()}")


def trace_target(project: Project, target: str, *, gpus: str, at_least: int, say: Say) -> Trace:
    """Trace the starts of a target's image; `at_least` is the size of files to list, in bytes."""
    subject = subject_of_target(project, target)
    needs_gpu = project.matrix.archs[subject.arch].gpu is not None
    server = server_of(subject.cell)
    blind = needs_gpu and not gpus
    why = f"{server.title} does not start without a GPU (--gpus all)"
    skipped = dict.fromkeys(("help",) if server.on_cpu else ("help", "serve"), why) if blind else {}
    with tempfile.TemporaryDirectory(prefix="imagefactory-trace-") as folder:
        image, loaded = bring_into_daemon(subject)
        recording = Recording(image, project.wheel_lock(subject.cell).python, Path(folder))
        serving: tuple[tuple[str, ...], ...] = (("--gpus", gpus),) if gpus else ((),)
        if blind and server.on_cpu:
            serving = on_cpu(project.root, Path(folder) / "model", server.on_cpu)
        steps: dict[str, Callable[[], None]] = {
            "import": lambda: recording.run("import", "-c", IMPORTS, server.name),
            "help": lambda: recording.run("help", f"/{VENV}/bin/{server.name}", "serve", "--help"),
            "serve": lambda: recording.serve(*serving),
        }
        seconds: dict[str, float] = {}
        try:
            for name, step in steps.items():
                if name not in skipped:
                    say(f"tracing {name}")
                    seconds[name] = _timed(step)
        except ContainerError as error:
            raise TraceError(
                f"{subject.cell} cannot be traced.",
                where=subject.name,
                why=str(error),
                fix=f"Run `invoke smoke --target {subject.cell}`, which tests the same starts one by one.",
            ) from None
        finally:
            recording.containers.remove_all()
            if loaded:
                docker("rmi", loaded)
        noted = noted_paths(Path(folder))
        failures = [json.loads(path.read_text("utf-8")) for path in Path(folder).glob("*/failed.json")]
    listed, owners = _files(project, subject)
    touched = resolve(noted, listed)
    distributions, files = untouched(owners, listed, touched, at_least)
    failed = {name: why for one in failures for name, why in one.items()}
    return Trace(seconds, skipped, failed, touched & owners.keys(), distributions, files)


def noted_paths(folder: Path) -> set[str]:
    """Read the notes of all processes: absolute paths, as the programs wrote them."""
    found: set[str] = set()
    for path in folder.glob("*/opened.*"):
        found |= set(path.read_text("utf-8", "replace").splitlines())
    for path in folder.glob("*/ld.*"):
        found |= set(_BY_LINKER.findall(path.read_text("utf-8", "replace")))
    return found


def resolve(paths: Iterable[str], listed: Mapping[str, ListedPath]) -> frozenset[str]:
    """Return the files of an image that paths mean: links followed, bytecode traced back to its source."""
    found: set[str] = set()
    for path in paths:
        real = _real(_PREFIX.sub("", path), listed)
        bytecode = _BYTECODE.fullmatch(real)
        source = real
        if bytecode:
            source = f"{bytecode['folder'].removesuffix('__pycache__/')}{bytecode['module']}.py"
        found |= {real, source} & listed.keys()
    return frozenset(found)


def untouched(
    owners: Mapping[str, str], listed: Mapping[str, ListedPath], touched: frozenset[str], at_least: int
) -> tuple[tuple[Untouched, ...], tuple[Untouched, ...]]:
    """List distributions that nothing touched, and large files of the others, largest first.

    Metadata does not count: looking for entry points reads that of every distribution.
    """
    of_owner: dict[str, list[str]] = {}
    for path, owner in owners.items():
        if path in listed and ".dist-info/" not in path:
            of_owner.setdefault(owner, []).append(path)
    distributions: list[Untouched] = []
    files: list[Untouched] = []
    for owner, paths in of_owner.items():
        if touched.isdisjoint(paths):
            size = sum(listed[path].size for path in paths)
            distributions.append(Untouched(owner, owner, len(paths), size))
        else:
            large = [path for path in paths if path not in touched and listed[path].size >= at_least]
            files += [Untouched(_pattern(path), owner, 1, listed[path].size) for path in large]
    return _largest(distributions), _largest(files)


def _pattern(path: str) -> str:
    """Return the path below site-packages, or below the environment."""
    return path.partition("/site-packages/")[2] or path.removeprefix(f"{VENV}/")


def _largest(found: Iterable[Untouched]) -> tuple[Untouched, ...]:
    return tuple(sorted(found, key=lambda one: (-one.size, one.name)))


def _real(path: str, listed: Mapping[str, ListedPath]) -> str:
    """Follow the links of an image."""
    rest, done = posixpath.normpath(path).strip("/").split("/"), ""
    for _ in range(_LINKS):
        done = ""
        for number, part in enumerate(rest):
            done = posixpath.normpath(posixpath.join(done, part))
            entry = listed.get(done)
            if entry is not None and entry.kind == "symlink":
                target = posixpath.join("/", posixpath.dirname(done), entry.target, *rest[number + 1 :])
                rest = posixpath.normpath(target).strip("/").split("/")
                break
        else:
            return done
    return done


def _files(project: Project, subject: Subject) -> tuple[dict[str, ListedPath], dict[str, str]]:
    """Return everything in an image, and which wheel each file is from."""
    if subject.layout is None:
        raise ValueError("a target has a layout")
    listed = merged(open_layout(Layout(subject.layout), project.store).layers)
    wheels = {wheel.file for wheel in project.wheel_lock(subject.cell).wheels}
    owners = dict(_owned(project, subject, wheels))
    return listed, owners


def _owned(project: Project, subject: Subject, wheels: set[str]) -> Iterator[tuple[str, str]]:
    for layer in make_plan(project, subject.cell).layers:
        for path, owner in read_owners(layer.key, project.store).items():
            if owner in wheels:
                yield path, owner


def _timed(step: Callable[[], None]) -> float:
    started = time.monotonic()
    step()
    return time.monotonic() - started
