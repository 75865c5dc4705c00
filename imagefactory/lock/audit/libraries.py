"""Finds the libraries of files, wheels and images, and reads their GPU code with NVIDIA's cuobjdump."""

from __future__ import annotations

import mmap
import re
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from zipfile import ZipFile, ZipInfo

from isal import igzip

from imagefactory.errors import CheckError
from imagefactory.gpu_code.fatbins import NotUnderstoodError, containers
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import cached_listing
from imagefactory.project.locks.kernels import GpuCode
from imagefactory.project.servers.known import SERVERS
from imagefactory.store.cache import Store
from imagefactory.store.digests import file_sha256

_LIBRARIES = ("*.so", "*.so.*")
_PACKAGES = tuple(dict.fromkeys(glob for server in SERVERS.values() for glob in server.kernel_files))
"""Packages whose kernels an image is judged by; the libraries of CUDA and torch are left to their publishers."""
_SITE = "/site-packages/"
_PIECE = re.compile(r"^Fatbin (elf|ptx) code:\n=+\narch = (sm_\d+)([af]?)$", re.MULTILINE)
_NOTHING = "does not contain device code"
_BLOCK = 1 << 20
_BEGINNING = 64  # code of any format, compressed or not, has something other than zeros there


@dataclass(frozen=True)
class GpuLibrary:
    """A shared library that is unpacked only when it has to be inspected."""

    name: str
    identity: str  # identifies the content, so that findings about it stay valid
    unpack: Callable[[Path], object]  # writes the library to a path


def is_library(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _LIBRARIES) and any(
        fnmatchcase(name, pattern) for pattern in _PACKAGES
    )


def from_file(path: Path) -> Iterator[GpuLibrary]:
    yield GpuLibrary(path.name, f"file:{file_sha256(path)}", partial(shutil.copyfile, path))


def from_wheel(archive: ZipFile, sha256: str) -> Iterator[GpuLibrary]:
    for info in archive.infolist():
        if is_library(info.filename):
            unpack = partial(_copy, archive, info)
            yield GpuLibrary(info.filename, f"wheel:{sha256}:{info.filename}", unpack)


def from_layout(layout: Layout, store: Store) -> Iterator[GpuLibrary]:
    """Yield the libraries in an image; layers without any are not unpacked."""
    for digest in layout.layer_digests():
        blob = layout.blob(digest)
        for entry in cached_listing(blob, digest, store):
            name = entry.path.partition(_SITE)[2]
            if entry.kind == "file" and is_library(name):
                yield GpuLibrary(name, f"file:{entry.sha256}", partial(_from_layer, blob, entry.path))


def _from_layer(blob: Path, path: str, target: Path) -> None:
    with (
        igzip.open(blob, "rb") as stream,  # type: ignore[no-untyped-call]
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        for member in archive:
            content = archive.extractfile(member) if member.name == path else None
            if content is not None:
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file, _BLOCK)
                return


def _copy(archive: ZipFile, info: ZipInfo, target: Path) -> None:
    with archive.open(info) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)


def read_kernels(library: Path, cuobjdump: Path) -> GpuCode:
    """Count the cubins and PTX modules of a library per GPU target; those that were overwritten do not count.

    What we cannot read ourselves, NVIDIA's program reads; it gives up on overwritten ones. This uses its plain dump,
    not --list-elf: the list prints sm_120 for both 120 and 120f, and that difference decides whether the code runs on
    other GPUs of the family.
    """
    try:
        found = list(_codes(library))
    except NotUnderstoodError:
        listed = _PIECE.findall(run_cuobjdump(cuobjdump, library))
        found = [(kind, chip + suffix) for kind, chip, suffix in listed]
    cubins, ptx = (
        dict(sorted(Counter(target for its_kind, target in found if its_kind == kind).items()))
        for kind in ("elf", "ptx")
    )
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return GpuCode(cubins, ptx, fp4=content.find(b"nvfp4") >= 0)


def _codes(library: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the target of every cubin and PTX module that was not overwritten."""
    with library.open("rb") as file:
        found = [code for codes in containers(iter(partial(file.read, _BLOCK), b"")) for code in codes]
        for code in found:
            file.seek(code.offset)
            if code.size and not any(file.read(min(code.size, _BEGINNING))):
                continue
            if code.kind == "cubin":
                yield "elf", code.target
            elif code.kind == "ptx":
                yield "ptx", f"sm_{code.chip}{code.suffix}"


def run_cuobjdump(program: Path, library: Path, *options: str) -> str:
    done = subprocess.run(  # noqa: S603 - a pinned program on a file of ours
        [program, *options, library], capture_output=True, text=True, errors="replace", check=False
    )
    said = done.stderr.strip() or done.stdout.strip()
    if done.returncode and _NOTHING not in done.stdout + done.stderr:
        raise CheckError(
            "not-auditable",
            f"{library.name} cannot be inspected.",
            where=library,
            why=said[:200] or f"cuobjdump ended with {done.returncode}",
            fix="Check that the file is a complete shared library.",
        )
    return done.stdout
