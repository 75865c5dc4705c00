"""A folder of files with parts of KV caches that never grows beyond its limit; the least recently used go first.

A file has a page with its name, size and checksum, and then the data. It is written under another name and renamed, so
what a killed process leaves is removed at the next start; the checksum shows what a crash of the host damaged. Nothing
is lost with a file but time: whoever misses it computes it again.

The time of a file's last change is that of its last use, to some minutes: it survives restarts. One process at a time
uses a folder.
"""  # noqa: INP001 - found by PYTHONPATH

import errno
import fcntl
import heapq
import mmap
import os
import re
import struct
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

PAGE = 4096
"""The size of the first part of a file; direct access to disks wants addresses and sizes in such steps."""
MAGIC = b"imagefactory-kv 1"
_HEAD = struct.Struct("<17s80sQI")
"""The magic word, the name, the size of the data and its checksum."""
_PLACE, _NAME = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{8,80}\.kv")
SPAN = 1 << 24
"""Nanoseconds: uses begin at multiples of it, and no conversation has more tokens."""
_STAMP = SPAN << 14
"""Nanoseconds between the times that files record: what was used in between records the same one, so that each file is
stamped every 4.6 minutes at most, and none of a conversation looks newer than those before it."""


def last_use(began: int, position: int) -> int:
    """Return the last use of a part of a conversation by a request, from when it began and the tokens up to its end.

    It is a nanosecond earlier for each token: the end, which is of no use without the beginning, goes first.
    """
    return began // SPAN * SPAN - min(position, SPAN - 1)


def _stamp(used: int) -> int:
    """Return the time that a file records."""
    position = -used % SPAN
    return (used + position) // _STAMP * _STAMP - position


class InUseError(Exception):
    """Another process uses the folder."""


class _File:
    __slots__ = ("path", "readers", "size", "stamped", "used")

    def __init__(self, path: str, size: int, used: int) -> None:
        self.path, self.size, self.used, self.stamped, self.readers = path, size, used, _stamp(used), 0


class Files:
    """The files of one place in a folder, and the limit of all places together.

    A place is for what fits together: files of another model, or another version of a server, are in another place.
    """

    def __init__(self, root: str, place: str, limit: int) -> None:
        self.root, self.place, self.limit = root, place, limit
        self._known: dict[str, _File] = {}
        self._order: list[tuple[int, str]] = []
        self._total, self._lock, self._thread = 0, threading.Lock(), threading.local()
        Path(root).mkdir(parents=True, exist_ok=True)
        self._held = _hold(root)
        self._scan()
        with suppress(OSError):  # a full disk keeps no server from starting
            Path(root, place).mkdir(exist_ok=True)
        self._direct = os.O_DIRECT if self._takes_direct() else 0
        with self._lock:
            self._make_room(0, None)

    @property
    def total(self) -> int:
        """The bytes of all files, with those that are being written."""
        return self._total

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        found = self._known.get(f"{self.place}/{name}")
        return found is not None and found.size > 0

    def write(self, name: str, data: memoryview, used: int, keep: int | None = None) -> bool:
        """Write a file, unless it is there; return whether it is there now.

        To make room, files go whose last use was before `keep`; if those do not suffice, nothing is written.
        """
        key, size = f"{self.place}/{name}", PAGE + data.nbytes
        with self._lock:
            if key in self._known:
                return self._known[key].size > 0
            if not self._make_room(size, keep):
                return False
            # Until it is written, it has no size for readers, but takes its room.
            self._known[key] = _File(self._path(name), 0, used)
            self._total += size
        done = False
        try:
            done = self._write(self._known[key].path, name, data, used)
        finally:
            with self._lock:
                if done:
                    self._known[key].size = size
                    heapq.heappush(self._order, (used, key))
                else:
                    del self._known[key]
                    self._total -= size
        return done

    def read(self, name: str, into: memoryview) -> bool:
        """Read a file; return whether it was there and undamaged. If not, it is gone, and `into` has no meaning."""
        with self._lock:
            found = self._known.get(f"{self.place}/{name}")
            if found is None or not found.size:
                return False
            found.readers += 1
        right = False
        try:
            right = self._read(found, name, into)
        finally:
            with self._lock:
                found.readers -= 1
                if not right:
                    self._drop(f"{self.place}/{name}", found)
        return right

    def touch(self, names: list[tuple[str, int]]) -> None:
        """Note when files were last used, if later than known."""
        late: list[_File] = []
        with self._lock:
            for name, used in names:
                key = f"{self.place}/{name}"
                found = self._known.get(key)
                if found is None or not found.size or used <= found.used:
                    continue
                found.used = used
                heapq.heappush(self._order, (used, key))
                if found.stamped != (stamp := _stamp(used)):
                    found.stamped = stamp
                    late.append(found)
            if len(self._order) > 64 + 2 * len(self._known):
                self._order = [(found.used, key) for key, found in self._known.items() if found.size]
                heapq.heapify(self._order)
        for found in late:
            with suppress(OSError):
                os.utime(found.path, ns=(found.stamped, found.stamped))

    def close(self) -> None:
        os.close(self._held)

    def _path(self, name: str) -> str:
        return f"{self.root}/{self.place}/{name[:2]}/{name}.kv"

    def _scan(self) -> None:
        """Learn which files there are; remove what killed processes left."""
        for place in _folders(self.root):
            if not _PLACE.fullmatch(place.name):
                continue
            for folder in _folders(place.path):
                with os.scandir(folder.path) as entries:
                    for entry in entries:
                        self._learn(place.name, entry)
                with suppress(OSError):
                    Path(folder.path).rmdir()  # if it is empty
            if place.name != self.place:
                with suppress(OSError):
                    Path(place.path).rmdir()
        heapq.heapify(self._order)

    def _learn(self, place: str, entry: os.DirEntry[str]) -> None:
        if entry.name.endswith(".kv.tmp"):
            with suppress(OSError):
                Path(entry.path).unlink()
        elif _NAME.fullmatch(entry.name):
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                # A clock that was wrong must not keep a file for ever.
                file = _File(entry.path, max(1, found.st_size), min(found.st_mtime_ns, time.time_ns()))
                key = f"{place}/{entry.name.removesuffix('.kv')}"
                self._known[key] = file
                self._order.append((file.used, key))
                self._total += file.size

    def _make_room(self, size: int, keep: int | None) -> bool:
        """Remove the least recently used files until there is room; the lock is held."""
        if size > self.limit:
            return False
        aside: list[tuple[int, str]] = []
        while self._total + size > self.limit and self._order:
            used, key = self._order[0]
            found = self._known.get(key)
            if found is not None and found.used == used and keep is not None and used >= keep:
                break
            heapq.heappop(self._order)
            if found is None or found.used != used or not found.size:
                continue  # it is gone, or has been used since
            if found.readers:
                aside.append((used, key))
            else:
                self._drop(key, found)
        for entry in aside:
            heapq.heappush(self._order, entry)
        return self._total + size <= self.limit

    def _drop(self, key: str, found: _File) -> None:
        if self._known.get(key) is not found or found.readers:
            return
        del self._known[key]
        try:
            Path(found.path).unlink(missing_ok=True)
        except OSError:
            return  # it stays, takes room, and is not used
        self._total -= found.size

    def _write(self, path: str, name: str, data: memoryview, used: int) -> bool:
        head = self._head()
        head[: _HEAD.size] = _HEAD.pack(MAGIC, name.encode(), data.nbytes, zlib.crc32(data))
        partial = f"{path}.tmp"
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | self._direct, 0o600)
            try:
                if os.writev(opened, [head, data]) != PAGE + data.nbytes:
                    raise OSError(errno.ENOSPC, "short write")
                if not self._direct:
                    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
                os.utime(opened, ns=(_stamp(used), _stamp(used)))
            finally:
                os.close(opened)
            os.rename(partial, path)  # noqa: PTH104
        except OSError as error:
            with suppress(OSError):
                Path(partial).unlink()
            if error.errno == errno.ENOSPC:
                # Somebody else fills the disk: give back as much as was wanted.
                with self._lock:
                    self._shrink(data.nbytes)
            return False
        return True

    def _shrink(self, size: int) -> None:
        limit, self.limit = self.limit, self._total - size
        self._make_room(0, None)
        self.limit = limit

    def _read(self, found: _File, name: str, into: memoryview) -> bool:
        head = self._head()
        try:
            opened = os.open(found.path, os.O_RDONLY | os.O_NOFOLLOW | self._direct)
        except OSError:
            return False
        try:
            if os.fstat(opened).st_size != PAGE + into.nbytes or os.readv(opened, [head, into]) != PAGE + into.nbytes:
                return False
            if not self._direct:
                os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            return False
        finally:
            os.close(opened)
        magic, named, size, checksum = _HEAD.unpack_from(head)
        right = (magic, named.rstrip(b"\0"), size) == (MAGIC, name.encode(), into.nbytes)
        return right and zlib.crc32(into) == checksum

    def _head(self) -> mmap.mmap:
        """Return this thread's page for the first part of a file; its address suits direct access."""
        if not hasattr(self._thread, "head"):
            self._thread.head = mmap.mmap(-1, PAGE)
        head: mmap.mmap = self._thread.head
        return head

    def _takes_direct(self) -> bool:
        """Whether the file system lets data bypass the page cache, which would take memory from the GPU of a Spark."""
        path = f"{self.root}/{self.place}/direct"
        try:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                os.write(opened, self._head())
            finally:
                os.close(opened)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                Path(path).unlink()
        return True


def _folders(path: str) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]


def _hold(root: str) -> int:
    """Keep other processes from using the folder, as long as this one lives."""
    held = os.open(f"{root}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise InUseError(f"another server uses {root}") from error
    return held
