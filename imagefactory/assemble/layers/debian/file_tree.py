"""The file tree of an image under construction: every path once, with the package that ships it."""

import posixpath
from collections.abc import Iterator
from dataclasses import replace

from imagefactory.assemble.layers.debian.policy import folder
from imagefactory.errors import LockError
from imagefactory.oci.entry import Bytes, Entry, EntryKind, ImagePath, read_content

FACTORY = "the factory"  # the owner of files that no package ships, but its scripts would write

_MAX_LINKS = 40  # as many as Linux follows


class FileTree:
    """Paths with entries and owners. Conflicting additions are errors, whatever their order."""

    def __init__(self) -> None:
        self._entries: dict[ImagePath, Entry] = {}
        self._owners: dict[ImagePath, str] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over all entries in the order of a layer: by the bytes of their paths."""
        return iter(sorted(self._entries.values(), key=lambda entry: entry.path.encode()))

    def get(self, path: str) -> Entry | None:
        return self._entries.get(ImagePath(path))

    def owner(self, path: str) -> str:
        return self._owners[ImagePath(path)]

    def add(self, entry: Entry, owner: str = FACTORY) -> None:
        """Add a path. Packages that ship the same path must agree on it to the last byte."""
        earlier = self._entries.get(entry.path)
        if earlier is None:
            self._entries[entry.path] = entry
            self._owners[entry.path] = owner
        elif _differ(earlier, entry):
            first, second = sorted((self._owners[entry.path], owner))
            raise LockError(
                "path-conflict",
                f"{first} and {second} both own /{entry.path}, and they disagree.",
                where=f"/{entry.path}",
                why=f"They ship a {earlier.kind.value} and a {entry.kind.value}, with different content.",
                fix="Remove one of the two packages from the base's list in matrix.yaml.",
            )
        else:
            # Independent of the order of additions.
            self._owners[entry.path] = min(owner, self._owners[entry.path])

    def add_file(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        content = Bytes(data.encode() if isinstance(data, str) else data)
        self.add(Entry(ImagePath(path), EntryKind.FILE, mode, content))

    def add_link(self, path: str, target: str) -> None:
        self.add(Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target))

    def add_folder(self, path: str) -> None:
        mode, uid, gid = folder(path)
        self.add(Entry(ImagePath(path), EntryKind.DIRECTORY, mode, uid=uid, gid=gid))

    def replace_link(self, path: str, target: str) -> None:
        self._entries[ImagePath(path)] = Entry(ImagePath(path), EntryKind.SYMLINK, 0o777, target=target)
        self._owners[ImagePath(path)] = FACTORY

    def read(self, path: str) -> bytes:
        """Return the content of a file, following links."""
        real = self.resolve(path)
        entry = self._entries[real] if real is not None else None
        if entry is None or entry.kind is not EntryKind.FILE:
            raise FileNotFoundError(path)
        return read_content(entry.content, path)

    def resolve(self, path: str) -> ImagePath | None:
        """Return the real path, following links as the running image would, or None if there is nothing."""
        for _ in range(_MAX_LINKS):
            at = ""
            parts = [part for part in posixpath.normpath(f"/{path}").split("/") if part]
            for place, part in enumerate(parts):
                at = f"{at}/{part}" if at else part
                entry = self._entries.get(ImagePath(at))
                if entry is not None and entry.kind is EntryKind.SYMLINK:
                    below = "/".join(parts[place + 1 :])
                    path = posixpath.join("/", posixpath.dirname(at), entry.target, below).rstrip("/")
                    break
            else:
                return ImagePath(at) if at in self._entries else None
        return None

    def children(self) -> dict[str, list[Entry]]:
        children: dict[str, list[Entry]] = {}
        for entry in self:
            children.setdefault(posixpath.dirname(entry.path), []).append(entry)
        return children


def _differ(first: Entry, second: Entry) -> bool:
    same_shape = replace(first, content=None) == replace(second, content=None)
    return not same_shape or read_content(first.content) != read_content(second.content)
