"""Reads what should become a mod: a script's folder or diffs; and where it comes from.

Git itself never runs: any option of somebody else's repository may name a program. Its files are read instead.
"""

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
from imagefactory.store.paths import expand_home

SCRIPT: Final = "run.sh"
_DIFFS = (".patch", ".diff")
_MOST_FILES, _MOST_BYTES = 500, 16 * 1024**2
_ORIGIN = re.compile(
    r'^\[remote "origin"\]\n(?:[ \t].*\n)*?[ \t]*url *= *\S*github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?$',
    re.MULTILINE,
)
_PROBLEM = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+")


@dataclass(frozen=True)
class Source:
    """What should become a mod."""

    kind: Literal["script", "diffs"]
    name: str
    files: Mapping[str, bytes]  # all its files; for diffs in the order in which they are applied
    shown: str  # how the source is called in mod.yaml
    link: str | None = None  # where it was published, as far as Git knows

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that may name a package: folders in paths, and what is imported."""
        named: set[str] = set()
        for line in "\n".join(self.texts.values()).splitlines():
            words = re.findall(r"\w+/?", line)
            imports = "import" in words or "from" in words or "-packages/" in line
            named |= {word.rstrip("/") for word in words if imports or word.endswith("/")}
        return frozenset(named)

    @cached_property
    def texts(self) -> dict[str, str]:
        return {name: data.decode("utf-8", "replace") for name, data in self.files.items() if b"\0" not in data}

    @property
    def problem(self) -> str | None:
        links = (_PROBLEM.search(text) for text in self.texts.values())
        return next((match[0] for match in links if match), None)


def read_source(text: str, name: str = "") -> Source:
    path = expand_home(text, "the source to import")
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists raises for a name that is too long
        if re.match(r"https?://", text):
            download = f"Download it first: `curl -LO {text}`."
            raise _unusable(text, "It is an address; an import reads files of this machine.", download)
        raise _unusable(text, "Nothing of that name exists.")
    files = dict(_read_files(path)) if path.is_dir() else {path.name: read_file(path)}
    diffs = {key: data for key, data in files.items() if key.endswith(_DIFFS) and "/" not in key}
    kind: Literal["script", "diffs"] = "script"
    if not path.is_dir() or SCRIPT not in files:
        kind, files = "diffs", dict(sorted(diffs.items()))
    if not files:
        raise _unusable(text, f"It has no {SCRIPT}, and no .patch or .diff file.")
    shown, link = _published(path)
    return Source(kind, name or _name_for(path), files, shown, link)


def _read_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Read the files of a folder; links, and more than a mod can have, are refused."""
    limit = f"It has more than {_MOST_FILES} files or {_MOST_BYTES // 1024**2} MiB."
    paths: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        paths += [Path(root, name) for name in (*names, *folders)]
        if len(paths) > _MOST_FILES:
            raise _unusable(str(folder), limit)
    total = 0
    for path in sorted(paths):
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


def _name_for(path: Path) -> str:
    stem = path.resolve().name if path.is_dir() else path.name.partition(".")[0]
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")
    if not re.fullmatch(NAME, name):
        raise _unusable(str(path), "No name for the mod can be made of that: give one with --name.")
    return name


def _published(path: Path) -> tuple[str, str | None]:
    """Return how a source is called, and its web page: its repository, commit and path, where they are known."""
    top, git = _repository(path.resolve())
    shared = git / _text(git / "commondir").strip()  # a second work tree has a HEAD of its own alone
    head = _text(git / "HEAD").strip()
    if branch := head.partition("ref: ")[2]:
        packed = re.search(rf"^(\w+) {re.escape(branch)}$", _text(shared / "packed-refs"), re.MULTILINE)
        head = _text(shared / branch).strip() or (packed[1] if packed else "")
    if not re.fullmatch(r"[0-9a-f]{40,64}", head):
        return printable(path.name), None
    inside = printable(path.resolve().relative_to(top).as_posix())
    origin = _ORIGIN.search(_text(shared / "config"))
    if origin is None:
        return f"{inside} at {head}", None
    return f"{inside} of {origin[1]} at {head}", f"https://github.com/{origin[1]}/tree/{head}/{inside}"


def _repository(path: Path) -> tuple[Path, Path]:
    """Return the work tree around a path, and the folder where Git keeps its files; the path itself if it has none."""
    for top in (path, *path.parents):
        git = top / ".git"
        if pointer := _text(git):  # of a submodule, or of a second work tree
            git = top / pointer.removeprefix("gitdir:").strip()
        if _text(git / "HEAD"):
            return top, git
    return path, path


def _text(file: Path) -> str:
    """Read a file; empty if there is none."""
    exists = os.path.isfile(file)  # noqa: PTH113 - Path.is_file raises for a name that is too long
    return read_file(file).decode("utf-8", "replace") if exists else ""


def _unusable(source: str, why: str, fix: str = "") -> ModError:
    return ModError(
        "bad-import-source",
        "This cannot be read as a mod.",
        where=printable(source),
        why=printable(why),
        fix=printable(fix) or f"Name a folder with {SCRIPT}, a .patch or .diff file, or a folder of them.",
    )
