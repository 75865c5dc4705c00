"""Audits the kernels of a library, a wheel, a target or a vLLM release."""

import json
import mmap
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from zipfile import ZipFile, ZipInfo, is_zipfile

from imagefactory.errors import CheckError, UsageError, unknown_name
from imagefactory.gpu_code.fatbins import NotUnderstoodError, containers
from imagefactory.lock.wheelhouse.keep import graft_of
from imagefactory.lock.wheelhouse.share import locate
from imagefactory.project.cells import first_of_release
from imagefactory.project.locks.files import Graft, LockedSource, LockedWheel
from imagefactory.project.locks.indexed_files import configured_indexes, open_in_place
from imagefactory.project.locks.kernels import (
    GpuCode,
    KernelVerdict,
    LibraryKernels,
    WheelKernels,
    audited_wheels,
    judge,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.servers.known import SERVERS
from imagefactory.project.targets import Selector, select_one
from imagefactory.store.atomic import writing
from imagefactory.store.digests import file_sha256, sha256_of
from imagefactory.store.downloads import fetch
from imagefactory.store.http import new_session

_PACKAGES = tuple(dict.fromkeys(glob for server in SERVERS.values() for glob in server.kernel_files))
"""Packages whose kernels an image is judged by; the libraries of CUDA and torch are left to their publishers."""
_LIBRARY = re.compile(r"\.so(\.|$)")
_BLOCK = 1 << 20  # bytes that are read at a time
_BEGINNING = 64  # code of any format, compressed or not, has something other than zeros there


@dataclass(frozen=True)
class GpuLibrary:
    """A shared library that is unpacked only when it has to be inspected."""

    name: str
    identity: str  # identifies the content, so that findings about it stay valid
    unpack: Callable[[Path], object]  # writes the library to a path


def is_library(name: str) -> bool:
    return bool(_LIBRARY.search(name)) and any(fnmatchcase(name, pattern) for pattern in _PACKAGES)


def from_file(path: Path) -> Iterator[GpuLibrary]:
    yield GpuLibrary(path.name, f"file:{file_sha256(path)}", partial(shutil.copyfile, path))


def from_wheel(archive: ZipFile, sha256: str) -> Iterator[GpuLibrary]:
    for info in archive.infolist():
        if is_library(info.filename):
            unpack = partial(_copy, archive, info)
            yield GpuLibrary(info.filename, f"wheel:{sha256}:{info.filename}", unpack)


def _copy(archive: ZipFile, info: ZipInfo, target: Path) -> None:
    with archive.open(info) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)


def read_kernels(library: Path) -> GpuCode:
    """Count the cubins and PTX modules of a library per GPU target; those that were overwritten do not count."""
    try:
        codes = list(_codes(library))
    except NotUnderstoodError as error:
        raise CheckError(
            "not-auditable",
            f"The GPU code of {library.name} is unreadable.",
            where=library,
            why=f"{error}.",
            fix="Check that the file is a complete shared library; if it is, report it with the name of its wheel.",
        ) from None
    cubins, ptx = (
        dict(sorted(Counter(target for its_kind, target in codes if its_kind == kind).items()))
        for kind in ("cubin", "ptx")
    )
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return GpuCode(cubins, ptx, fp4=content.find(b"nvfp4") >= 0)


def _codes(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the target of every cubin and PTX module that was not overwritten."""
    with library.open("rb") as file:
        codes = [code for container in containers(iter(partial(file.read, _BLOCK), b"")) for code in container]
        for code in codes:
            file.seek(code.offset)
            if code.size and not any(file.read(min(code.size, _BEGINNING))):
                continue
            if code.kind == "cubin":
                yield "cubin", code.target
            elif code.kind == "ptx":
                yield "ptx", f"sm_{code.chip}{code.suffix}"


FACTS = "kernels-2"  # a new number when the same library would be read differently


def open_subject(project: Project, name: str) -> tuple[str, Iterable[GpuLibrary], frozenset[str]]:
    """Find a library, a wheel, a target or a vLLM release: its own arch, its libraries, and which were compiled."""
    path, matrix = Path(name), project.matrix
    if name in matrix.vllm:
        return "", _of_release(project, name), frozenset()
    if path.is_file():
        if not is_zipfile(path):
            return "", from_file(path), frozenset()
        return "", from_wheel(ZipFile(path), file_sha256(path)), _replaced(graft_of(path))
    _refuse_path(name)
    Selector.parse(name)  # an empty subject does not mean the default target
    cell = select_one(matrix, name)
    lock = project.wheel_lock(cell)
    wheels = audited_wheels(lock, matrix.archs[cell.arch])
    libraries = (library for wheel in wheels for library in _of_wheel(project, wheel))
    return cell.arch, libraries, _replaced(*(wheel.graft for wheel in lock.wheels))


def _replaced(*grafts: Graft | None) -> frozenset[str]:
    return frozenset(file.path for graft in grafts if graft for file in graft.replaced)


def _of_release(project: Project, name: str) -> Iterator[GpuLibrary]:
    published = first_of_release(project.matrix, name)
    locked = project.source_lock.find(name, ".whl")
    if published != name or locked is None:
        raise CheckError(
            "not-auditable",
            f"vLLM {name} has no published wheel of its own.",
            where="the audit's argument",
            why=f"It is compiled from the same release as {published}, differently for every arch."
            if published != name
            else "locks/sources.toml has none of this version.",
            fix=f"Name a target such as MODEL@{name}, a wheel (`./inv wheels.list`), or a release.",
        )
    return _of_wheel(project, locked)


def _refuse_path(subject: str) -> None:
    folder = bool(subject) and Path(subject).is_dir()
    if folder or subject.startswith(("/", ".", "~")) or subject.endswith((".whl", ".so", ".zip", ".tar")):
        raise UsageError(
            "bad-subject",
            f"There is no library or wheel {subject}.",
            where="the audit's argument",
            why="It is a folder." if folder else "Nothing is there.",
            fix="Name a library or a wheel, relative to this folder; `./inv smoke` judges what is in an image.",
        )


@dataclass(frozen=True)
class Audited:
    """A subject, how its libraries fare, and which of them were compiled in place of published ones."""

    subject: str
    verdicts: tuple[KernelVerdict, ...]
    grafted: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        return Path(self.subject).name if Path(self.subject).exists() else self.subject

    def about(self, library: str) -> str:
        """Return what there is to say about a library, or nothing if the subject has no GPU code in it."""
        for verdict in self.verdicts:
            if verdict.library == library:
                whose = "compiled, " if library in self.grafted else ""
                return f"{whose}{verdict.outcome}: {verdict.why}"
        return ""


def audit(project: Project, name: str, arch: str = "") -> Audited:
    """Judge libraries for an arch, by default the target's own, else the matrix's; also name the compiled ones."""
    its_arch, libraries, grafted = open_subject(project, name)
    verdicts = judge_libraries(project, libraries, arch or its_arch or project.matrix.defaults.arch)
    return Audited(name, tuple(verdicts), grafted)


def refuse_failing(subject: str, verdicts: Sequence[KernelVerdict]) -> None:
    failing = [verdict for verdict in verdicts if not verdict.passes]
    if failing:
        raise CheckError(
            "audit-failed",
            f"{len(failing)} librar{'ies' if len(failing) > 1 else 'y'} of {subject} would not run.",
            where=", ".join(verdict.library for verdict in failing),
            why="; ".join(f"{verdict.library}: {verdict.why}" for verdict in failing),
            fix="Choose a version whose wheels fit, or compile it for this arch.",
        )


def judge_libraries(project: Project, libraries: Iterable[GpuLibrary], arch: str) -> list[KernelVerdict]:
    if arch not in project.matrix.archs:
        raise unknown_name("arch", arch, project.matrix.archs, "the --arch option")
    settings = project.matrix.archs[arch]
    if settings.cubins is None or settings.capability is None:
        raise CheckError(
            "not-auditable",
            f"{arch} has no GPU, so there are no kernels to look into.",
            where=f"matrix.yaml, archs.{arch}",
            why="An arch with a GPU says which (`capability`), and what runs on it (`cubins`).",
            fix=f"Name a target for another arch, or --arch: {', '.join(_with_gpu(project.matrix))}.",
        )
    python = project.matrix.bases[settings.base].python
    verdicts = [judge(library.name, _kernels(project, library), settings, python) for library in libraries]
    return [verdict for verdict in verdicts if verdict is not None]


def _with_gpu(matrix: Matrix) -> list[str]:
    return [name for name, arch in matrix.archs.items() if arch.cubins and arch.capability] or ["none has one"]


def look_into(project: Project, wheel: LockedWheel) -> WheelKernels:
    """Inspect the GPU code in a wheel; only its libraries are downloaded, and only once."""
    inspected = [(library.name, _kernels(project, library)) for library in _of_wheel(project, wheel)]
    libraries = tuple(
        LibraryKernels(name=name, **asdict(kernels))
        for name, kernels in sorted(inspected, key=lambda entry: entry[0])
        if kernels.cubins or kernels.ptx
    )
    return WheelKernels(file=wheel.file, sha256=wheel.sha256, libraries=libraries)


def _of_wheel(project: Project, wheel: LockedWheel | LockedSource) -> Iterator[GpuLibrary]:
    local = project.store.whole_download(wheel.sha256)
    with new_session() as session:
        published = not (isinstance(wheel, LockedWheel) and wheel.compiled)
        in_place = open_in_place(wheel, configured_indexes(), session) if published and local is None else None
        # Only the libraries of a published wheel are fetched, if its index allows that.
        with in_place or ZipFile(
            local or fetch(locate(project, wheel), project.store, session, lambda _: None)
        ) as opened:
            yield from from_wheel(opened, wheel.sha256)


def _kernels(project: Project, library: GpuLibrary) -> GpuCode:
    """Inspect a library, or return what was found in the same content before."""
    memory = project.store.facts(FACTS, sha256_of(library.identity.encode()))
    # If the record is missing or damaged, inspect the library again.
    with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):
        return GpuCode(**json.loads(memory.read_text("utf-8")))
    with project.store.scratch() as scratch:
        file = scratch / Path(library.name).name
        library.unpack(file)
        kernels = read_kernels(file)
    with writing(memory) as target:
        target.write(json.dumps(asdict(kernels), sort_keys=True).encode())
    return kernels
