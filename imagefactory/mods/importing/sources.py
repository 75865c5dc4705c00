"""Reads what should become a mod: a script's folder, diffs, a range of commits, or a file; and where it comes from."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from imagefactory.errors import ModError
from imagefactory.mods.authoring import NAME, printable
from imagefactory.mods.importing.foreign_git import ForeignRepository
from imagefactory.store.paths import expand_home

SCRIPT: Final = "run.sh"
_DIFFS = (".patch", ".diff")
_MOST_FILES, _MOST_BYTES = 500, 16 * 1024**2
_RANGE = re.compile(r"^(?P<folder>.+)@(?P<commits>[^@\s]+\.\.[^@\s]+)$")
_PROBLEM = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+")
_LICENCES = {
    "Apache-2.0": ["Apache License Version 2.0"],
    "MIT": ["Permission is hereby granted, free of charge, to any person"],
    "BSD-3-Clause": ["Redistribution and use in source and binary forms", "Neither the name"],
    "GPL-3.0-only": ["GNU GENERAL PUBLIC LICENSE Version 3"],
}
"""What the texts of licences say, with one space for any others."""
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][A-Za-z0-9.+-]{0,60})")
UNKNOWN: Final = "NOASSERTION"  # what SPDX calls a licence that nobody has looked for


@dataclass(frozen=True)
class Source:
    """What should become a mod."""

    kind: Literal["script", "diffs", "file"]
    name: str
    files: Mapping[str, bytes]  # all its files; for diffs in the order in which they are applied
    shown: str  # how the source is called in mod.yaml
    licence: str = UNKNOWN
    link: str | None = None  # where it was published, as far as Git knows

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that may name a package: folders in paths, and what is imported."""
        found: set[str] = set()
        for line in "\n".join(self.texts.values()).splitlines():
            words = re.findall(r"\w+/?", line)
            imports = "import" in words or "from" in words or "-packages/" in line
            found |= {word.rstrip("/") for word in words if imports or word.endswith("/")}
        return frozenset(found)

    @cached_property
    def texts(self) -> dict[str, str]:
        return {name: data.decode("utf-8", "replace") for name, data in self.files.items() if b"\0" not in data}

    @property
    def problem(self) -> str | None:
        found = (_PROBLEM.search(text) for text in self.texts.values())
        return next((match[0] for match in found if match), None)


def read_source(text: str, name: str = "") -> Source:
    commits = _RANGE.match(text)
    path = expand_home(commits["folder"] if commits else text, "the source to import")
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        raise _unusable(text, "Nothing of that name exists.")
    if commits is not None:
        return _of_range(path, commits["commits"], name)
    files = dict(_read_files(path)) if path.is_dir() else {path.name: read_file(path)}
    diffs = {key: data for key, data in files.items() if key.endswith(_DIFFS) and "/" not in key}
    kind: Literal["script", "diffs", "file"] = "file"
    if path.is_dir() and SCRIPT in files:
        kind = "script"
    elif diffs:
        kind, files = "diffs", _in_series(diffs, files.get("series"))
    elif path.is_dir():
        raise _unusable(text, f"The folder has no {SCRIPT}, and no .patch or .diff file.")
    else:
        try:
            files[path.name].decode()
        except UnicodeDecodeError:
            raise _unusable(text, "It is not text, which is all that a mod can bring.") from None
    shown, link = _published(path)
    return Source(kind, name or _name_for(path), files, shown, _licence(path, files), link)


def _of_range(folder: Path, commits: str, name: str) -> Source:
    if commits.startswith("-"):
        raise _unusable(commits, "A range of commits begins with a commit.")
    repository = ForeignRepository.around(folder)
    done = repository.diff(commits) if repository is not None else None
    if done is None:
        limit = f"or they differ in more than {_MOST_BYTES // 1024**2} MiB"
        raise _unusable(f"{folder}@{commits}", f"Git cannot compare these commits in that folder, {limit}.")
    if not done.strip():
        raise _unusable(f"{folder}@{commits}", "The two commits have the same files.")
    shown, link = _published(folder)
    files = {f"{commits.replace('/', '-')}.diff": done}
    chosen = name or _name_for(Path(commits.rpartition("..")[2]))
    return Source("diffs", chosen, files, f"{shown}, {commits}", _licence(folder, {}), link)


def _read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Read the files of a folder; links, and more than a mod can have, are refused."""
    limit = f"It has more than {_MOST_FILES} files or {_MOST_BYTES // 1024**2} MiB."
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        found += [Path(root, name) for name in (*names, *folders)]
        if len(found) > _MOST_FILES:
            raise _unusable(str(folder), limit)
    total = 0
    for path in sorted(found):
        relative = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise _unusable(str(folder), f"{relative} is a link, or no file at all.")
        if path.is_file():
            data = read_file(path)
            total += len(data)
            if total > _MOST_BYTES:
                raise _unusable(str(folder), limit)
            yield relative, data


def read_file(path: Path) -> bytes:
    """Read a file; refuse pipes, devices, folders, and more than a mod can have."""
    try:
        # Opening a pipe would wait for somebody to write to it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unusable(str(path), "It is no regular file.")
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unusable(str(path), f"It cannot be read: {error.strerror}.") from None
    if len(data) > _MOST_BYTES:
        raise _unusable(str(path), f"It has more than {_MOST_BYTES // 1024**2} MiB.")
    return data


def _in_series(diffs: Mapping[str, bytes], series: bytes | None) -> dict[str, bytes]:
    """Order diffs as the file `series` says, else by name."""
    if series is None:
        return dict(sorted(diffs.items()))
    names = [line.split("#")[0].strip() for line in series.decode("utf-8", "replace").splitlines()]
    return {name: diffs[name] for name in names if name in diffs}


def _name_for(path: Path) -> str:
    stem = path.resolve().name if path.is_dir() else path.name.partition(".")[0]
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")
    if not re.fullmatch(NAME, name):
        raise _unusable(str(path), "No name for the mod can be made of that: give one with --name.")
    return name


def _published(path: Path) -> tuple[str, str | None]:
    """Return how a source is called, and its web page: its repository, commit and path, where Git knows them."""
    name = printable(path.name)
    repository = ForeignRepository.around(path if path.is_dir() else path.parent)
    commit = repository.head() if repository is not None else ""
    if repository is None or not commit:
        return name, None
    inside = printable(path.resolve().relative_to(repository.top).as_posix())
    match = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", repository.origin())
    if match is None:
        return f"{inside} at {commit}", None
    link = f"https://github.com/{match[1]}/tree/{commit}/{inside}"
    return f"{inside} of {match[1]} at {commit}", link


def _licence(path: Path, files: Mapping[str, bytes]) -> str:
    """Find the licence of a source: in its files, or in a licence file beside it or above it in its repository."""
    for data in files.values():
        match = _SPDX.search(data.decode("utf-8", "replace"))
        if match is not None:
            return match[1]
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    repository = ForeignRepository.around(folder)
    above = [one for one in folder.parents if repository and one.is_relative_to(repository.top)]
    for place in (folder, *above):
        for file in sorted(place.glob("LICEN[CS]E*")):
            text = " ".join(read_file(file).decode("utf-8", "replace").split()) if file.is_file() else ""
            known = (name for name, parts in _LICENCES.items() if all(part in text for part in parts))
            return next(known, UNKNOWN)
    return UNKNOWN


def _unusable(source: str, why: str) -> ModError:
    return ModError(
        "bad-import-source",
        "This cannot be read as a mod.",
        where=printable(source),
        why=printable(why),
        fix=f"Name a folder with {SCRIPT}, a .patch or .diff file, a folder of them, REPOSITORY@A..B, or a text file.",
    )
