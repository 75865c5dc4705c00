"""Reads what should become a mod: a script's folder, diffs, a range of commits, or a file; and where it comes from."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from imagefactory.errors import ModError
from imagefactory.mods.authoring import NAME

SCRIPT: Final = "run.sh"
_DIFFS = (".patch", ".diff")
_MOST_FILES, _MOST_BYTES = 500, 16 * 1024**2
_RANGE = re.compile(r"^(?P<folder>.+)@(?P<commits>[^@\s]+\.\.[^@\s]+)$")
_PROBLEM = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+")
_LICENCES = {
    "Apache-2.0": r"Apache License\s+Version 2\.0",
    "MIT": r"Permission is hereby granted, free of charge, to any person",
    "BSD-3-Clause": r"Redistribution and use in source and binary forms[\s\S]+Neither the name",
    "GPL-3.0-only": r"GNU GENERAL PUBLIC LICENSE\s+Version 3",
}
_SPDX = re.compile(r"SPDX-License-Identifier:\s*([A-Za-z0-9.+-]+)")
UNKNOWN: Final = "NOASSERTION"
"""What SPDX calls a licence that nobody has looked for."""


@dataclass(frozen=True)
class Source:
    """What should become a mod."""

    kind: Literal["script", "diffs", "file"]
    name: str
    files: Mapping[str, bytes]
    """All its files; for diffs in the order in which they are applied."""
    shown: str
    """How the source is called in mod.yaml."""
    licence: str = UNKNOWN
    link: str | None = None
    """Where it was published, as far as Git knows."""

    @property
    def texts(self) -> dict[str, str]:
        return {
            name: data.decode("utf-8", "replace") for name, data in self.files.items() if b"\0" not in data
        }

    @property
    def problem(self) -> str | None:
        """The issue or pull request that it names first."""
        found = (_PROBLEM.search(text) for text in self.texts.values())
        return next((match[0] for match in found if match), None)


def read_source(text: str, name: str = "") -> Source:
    """Read a source, or refuse what is none."""
    commits = _RANGE.match(text)
    path = Path(commits["folder"] if commits else text).expanduser()
    if not path.exists():
        raise _unusable(text, "Nothing of that name exists.")
    if commits is not None:
        return _of_range(path, commits["commits"], name)
    files = dict(_read_files(path)) if path.is_dir() else {path.name: _read(path)}
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
    options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--full-index")
    done = _git(folder, "diff", *options, commits, "--")
    if done is None:
        raise _unusable(f"{folder}@{commits}", "Git cannot compare these commits in that folder.")
    if not done.strip():
        raise _unusable(f"{folder}@{commits}", "The two commits have the same files.")
    shown, link = _published(folder)
    files = {f"{commits.replace('/', '-')}.diff": done}
    chosen = name or _name_for(Path(commits.rpartition("..")[2]))
    return Source("diffs", chosen, files, f"{shown}, {commits}", _licence(folder, {}), link)


def _read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Read the files of a folder; links, and more than a mod can have, are refused."""
    total = 0
    for count, path in enumerate(sorted(folder.rglob("*"))):
        relative = path.relative_to(folder)
        if ".git" in relative.parts or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink() or not path.is_file():
            raise _unusable(str(folder), f"{relative} is a link, or no file at all.")
        total += path.stat().st_size
        if count > _MOST_FILES or total > _MOST_BYTES:
            limit = f"{_MOST_FILES} files or {_MOST_BYTES // 1024**2} MiB"
            raise _unusable(str(folder), f"It has more than {limit}.")
        yield relative.as_posix(), _read(path)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _unusable(str(path), f"It has more than {_MOST_BYTES // 1024**2} MiB.")
        return path.read_bytes()
    except OSError as error:
        raise _unusable(str(path), f"It cannot be read: {error.strerror}.") from None


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
    folder = path if path.is_dir() else path.parent
    top, commit = _git_line(folder, "rev-parse", "--show-toplevel"), _git_line(folder, "rev-parse", "HEAD")
    remote = _git_line(folder, "remote", "get-url", "origin")
    if not top or not commit:
        return path.name, None
    inside = path.resolve().relative_to(Path(top).resolve()).as_posix()
    match = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$", remote)
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
    top = _git_line(folder, "rev-parse", "--show-toplevel")
    above = [one for one in folder.parents if top and one.is_relative_to(Path(top).resolve())]
    for place in (folder, *above):
        for file in sorted(place.glob("LICEN[CS]E*")):
            text = file.read_text("utf-8", "replace") if file.is_file() else ""
            known = (name for name, pattern in _LICENCES.items() if re.search(pattern, text))
            return next(known, UNKNOWN)
    return UNKNOWN


def _git_line(folder: Path, *words: str) -> str:
    return (_git(folder, *words) or b"").decode("utf-8", "replace").strip()


def _git(folder: Path, *words: str) -> bytes | None:
    """Ask Git; None if it cannot tell. Nothing that the repository configures is run."""
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    try:
        done = subprocess.run(  # noqa: S603
            ["git", *quiet, "-C", str(folder), *words],  # noqa: S607 - the user's own Git
            capture_output=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _unusable(source: str, why: str) -> ModError:
    return ModError(
        "bad-import-source",
        "This cannot be read as a mod.",
        where=source,
        why=why,
        fix=f"Name a folder with {SCRIPT}, a .patch or .diff file, a folder of them, REPOSITORY@A..B, or a text file.",
    )
