"""Paths of an image: which of them tests read, where links lead, and what bytecode is compiled from."""

from __future__ import annotations

import _imp
import csv
import io
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import dirname, join, normpath

from imagefactory.assemble.applied_mods import image_path
from imagefactory.lock.auditing import is_library
from imagefactory.oci.format import VENV
from imagefactory.oci.listing import ListedPath
from imagefactory.plan.bytecode import listed_paths, module_lists
from imagefactory.plan.plan import Plan
from imagefactory.project.servers.known import SERVERS

OWN_FILES = ("usr/share/imagefactory/", "opt/models/")
PROGRAMS_AND_SETTINGS = (*(f"{VENV}/bin/{server}" for server in SERVERS), f"{VENV}/pyvenv.cfg")
METADATA = re.compile(rf"{VENV}/lib/python[^/]+/site-packages/[^/]+\.dist-info/(RECORD|METADATA)")


def is_text(path: str) -> bool:
    return (
        path.startswith(OWN_FILES)
        or path.endswith(".pyc")
        or path in PROGRAMS_AND_SETTINGS
        or METADATA.fullmatch(path) is not None
    )


def is_gpu_library(path: str) -> bool:
    return is_library(path.partition("/site-packages/")[2])


def site_of(plan: Plan) -> str:
    return next(layer.settings.site for layer in plan.layers if layer.kind == "base")


def checked_files(plan: Plan) -> set[str]:
    """The files that the checks of mods read."""
    site = site_of(plan)
    return {image_path(check.file, site) for mod in plan.mods for check in mod.manifest.variants[0].checks}


def compiled_sources(root: Path, plan: Plan) -> Callable[[str], bool]:
    """Return whether a path is a module whose bytecode the image has; mods' changes of others are few."""
    environment = next(layer.settings for layer in plan.layers if layer.kind == "base")
    listed = set(listed_paths(root, environment, module_lists(root, plan.cell.server)))
    patterns = [path for path in listed if "*" in path]
    return lambda path: path in listed or any(fnmatchcase(path, pattern) for pattern in patterns)


def source_of(compiled: str) -> str:
    """Return the path of the source of bytecode."""
    # __pycache__/NAME.cpython-312.opt-1.pyc (PEP 3147, PEP 488), or NAME.pyc beside its source.
    return re.sub(r"(?<![^/])(?:__pycache__/)?([^/]+?)(?:\.cpython-\d+)?(?:\.opt-\d)?\.pyc$", r"\1.py", compiled)


def hash_of_source(magic: bytes, source: bytes) -> bytes:
    """Return the hash of a source as bytecode of a version of Python has it (PEP 552)."""
    return _imp.source_hash(int.from_bytes(magic, "little"), source)


def some(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def brings_nothing(record: bytes) -> bool:
    """Whether a package consists only of metadata."""
    rows = csv.reader(io.StringIO(record.decode()))
    return all(".dist-info/" in row[0] for row in rows if row)


def recorded_hash(entry: ListedPath) -> str:
    # RECORD has URL-safe base64 without padding (PEP 427).
    digest = urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
    return f"sha256={digest}" if digest else ""


def resolved(files: Mapping[str, ListedPath], path: str, depth: int = 0) -> ListedPath | None:
    """Follow links, including links of parent folders."""
    if depth > 20:  # a circle of links; Linux gives up after 40
        return None
    done = ""
    parts = path.strip("/").split("/")
    for number, part in enumerate(parts, 1):
        current = f"{done}/{part}".lstrip("/")
        entry = files.get(current)
        if entry is None:
            return None
        if entry.kind == "symlink":
            rest = "/".join(parts[number:])
            target = entry.target if entry.target.startswith("/") else join("/", dirname(current), entry.target)
            return resolved(files, normpath(join(target, rest)).lstrip("/"), depth + 1)
        done = current
    return files.get(done)
