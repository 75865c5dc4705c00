"""Downloads the model and its drafter into the cache that the servers read.

huggingface_hub, whose versions differ between images, has no resumption after a crash since 1.0, verifies no hash of
a file that comes by HTTP, and shows progress to terminals alone. This program keeps its cache's layout and its locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from io import BufferedRandom, IOBase
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote

from . import checkpoint, weights
from .errors import StartError
from .findings import LARGER_DISK, Start
from .hub import Lookup, Pace, Say, Source, find_hub, look_up, open_file, retried
from .weights import File, amount

EVERY = 10.0
"""Seconds between two lines about the progress."""
AT_ONCE = 8
BLOCK = 1 << 20
LOCKS = ".locks"


class _Stopped(Exception):  # noqa: N818 - no failure of its own
    """Another file could not be fetched."""


def download(start: Start, environment: Mapping[str, str], say: Say) -> list[str]:
    """Download the repositories of a start, verify their files, and return a line about each."""
    wants, cache, hub = weights.wanted(start), start.cache, find_hub(environment, start.settings.secrets.token)
    model = start.command.model
    lines = [f"{model} is a folder: it is not downloaded"] if checkpoint.is_path(model) else []
    if not wants:
        return lines
    try:
        Path(cache).mkdir(parents=True, exist_ok=True)
        lookups = [look_up(want, cache, start.server.name, hub, say) for want in wants]
        _Download(lookups, cache, hub, say).run()
        return lines + [_finish(lookup) for lookup in lookups]
    except OSError as error:
        raise _unwritable(cache, error) from None


def _try_lock(file: IOBase) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unwritable(place: str, error: OSError) -> StartError:
    return StartError("disk", f"{place} cannot be written: {error.strerror or error}.", remedy=LARGER_DISK)


class _Download:
    """Fetches the missing files of several repositories, some at a time."""

    def __init__(self, lookups: Sequence[Lookup], cache: str, hub: Source, say: Say) -> None:
        self.lookups, self.cache, self.hub, self.say = lookups, cache, hub, say
        self.total = sum(file.size for lookup in lookups for file in lookup.files)
        self.done = 0
        self.fetched = 0
        self.lock = threading.Lock()
        self.stopped = False

    def run(self) -> None:
        there = sum(self._there(lookup, file) for lookup in self.lookups for file in lookup.files)
        state = os.statvfs(self.cache)
        needed, free = self.total - there, state.f_bavail * state.f_frsize
        if needed > free:
            what = f"{amount(free)} are free in {self.cache}; the download needs {amount(needed)}."
            raise StartError("disk", what, remedy=LARGER_DISK)
        for lookup in self.lookups:
            self.say(
                f"{lookup.want.role} {lookup.want.repo}@{lookup.commit}: {len(lookup.files)} files, "
                f"{amount(sum(file.size for file in lookup.files))}"
            )
            if lookup.entries and not lookup.verified:
                _write_list(lookup, verified=False)
        pool = ThreadPoolExecutor(AT_ONCE)
        jobs = {pool.submit(self._have, lookup, file) for lookup in self.lookups for file in lookup.files}
        try:
            self._watch(jobs)
        finally:
            self.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)

    def _watch(self, jobs: set[Future[None]]) -> None:
        began, before = time.monotonic(), 0
        while jobs:
            ended, jobs = wait(jobs, EVERY, FIRST_EXCEPTION)
            for job in ended:
                job.result()
            if jobs:
                average = self.fetched / (time.monotonic() - began)
                rest = f", {timedelta(seconds=round((self.total - self.done) / average))} left" if average else ""
                share = f"{100 * self.done // max(self.total, 1)} %"
                speed = amount((self.fetched - before) / EVERY)
                self.say(f"{amount(self.done)} of {amount(self.total)} ({share}), {speed}/s{rest}")
                before = self.fetched

    @staticmethod
    def _there(lookup: Lookup, file: File) -> int:
        """Return how many bytes of a file are here."""
        blob = lookup.repository / "blobs" / file.digest
        sizes = [0]
        for path in (lookup.repository / "snapshots" / lookup.commit / file.path, blob, _part(blob)):
            with suppress(OSError):
                sizes.append(path.stat().st_size)
        return min(max(sizes), file.size)

    def _have(self, lookup: Lookup, file: File) -> None:
        """Fetch a file unless it is here, and link it into the snapshot."""
        blob = lookup.repository / "blobs" / file.digest
        link = lookup.repository / "snapshots" / lookup.commit / file.path
        if lookup.verified and weights.has_size(link, file):
            self._count(file.size)  # nothing is to be written: the folder may be mounted read-only
            return
        for folder in (blob.parent, link.parent):
            folder.mkdir(parents=True, exist_ok=True)
        # The servers' own downloads take this lock, too.
        lock = Path(self.cache, LOCKS, lookup.repository.name, f"{file.digest}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            while not _try_lock(held):
                if self.stopped:
                    raise _Stopped
                time.sleep(0.2)
            here = next((path for path in (link, blob) if weights.has_size(path, file)), None)
            if here is not None and (lookup.verified or _digest_of(here, file) == file.digest):
                self._count(file.size)
            else:
                for path in (link, blob):
                    path.unlink(missing_ok=True)
                self._fetch(lookup, file, blob)
            for rest in blob.parent.glob(f"{file.digest}.*.incomplete"):
                rest.unlink(missing_ok=True)  # huggingface_hub, killed, leaves them and never looks at them again
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(os.path.relpath(blob, link.parent))

    def _count(self, size: int, fetched: int = 0) -> None:
        with self.lock:
            self.done += size
            self.fetched += fetched

    def _fetch(self, lookup: Lookup, file: File, blob: Path) -> None:
        url = f"{self.hub.endpoint}/{quote(lookup.want.repo)}/resolve/{lookup.commit}/{quote(file.path)}"
        with _part(blob).open("a+b") as part:
            state = _State(part, file, self._count)
            resumed = state.size > 0
            while True:
                retried(lambda: self._pull(url, state), lambda: state.size, lookup.want, self.hub, self.say)
                if state.digest.hexdigest() == file.digest:
                    break
                state.forget()
                if not resumed:
                    Path(part.name).unlink()
                    what = (
                        f"{file.path} of {lookup.want.repo} does not have the SHA that the hub lists; it was removed."
                    )
                    remedy = "Run it again; if that does not help, a proxy or a mirror (HF_ENDPOINT) changes files."
                    raise StartError("damaged", what, remedy=remedy)
                resumed = False  # what was here may have been damaged
            os.fsync(part.fileno())
        _part(blob).replace(blob)

    def _pull(self, url: str, state: _State) -> None:
        if self.stopped:
            raise _Stopped
        if state.size == state.file.size:
            return
        pace = Pace()
        with open_file(url, self.hub, state.size) as response:
            if state.size and response.status != 206:  # noqa: PLR2004 - it sends the file from its beginning
                state.forget()
            while state.size < state.file.size:
                if self.stopped:
                    raise _Stopped
                block = response.read1(BLOCK)
                if not block:
                    raise ConnectionError(f"the connection was cut at {amount(state.size)} of {state.file.path}")
                state.add(block)
                pace.count(len(block))


class _State:
    """How far a file is; it begins with what an earlier download left."""

    def __init__(self, part: BufferedRandom, file: File, count: Callable[[int, int], None]) -> None:
        self.part, self.file, self.count = part, file, count
        part.seek(0)
        self.digest, self.size = hashlib.file_digest(part, lambda: _digest(file)), part.tell()
        count(self.size, 0)
        if self.size > file.size:
            self.forget()

    def add(self, block: bytes) -> None:
        try:
            self.part.write(block)
            self.part.flush()
        except OSError as error:
            raise _unwritable(self.part.name, error) from None
        self.digest.update(block)
        self.size += len(block)
        self.count(len(block), len(block))

    def forget(self) -> None:
        self.part.truncate(0)
        self.count(-self.size, 0)
        self.digest, self.size = _digest(self.file), 0


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _digest(file: File) -> hashlib._Hash:
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _digest_of(path: Path, file: File) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: _digest(file)).hexdigest()


def _write_list(lookup: Lookup, *, verified: bool) -> None:
    value = {"format_version": 1, "verified": verified, "files": lookup.entries}
    _write(lookup.repository / weights.LISTS[0] / f"{lookup.commit}.json", json.dumps(value, indent=1))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{token_hex(4)}")  # another container may write it, too
    new.write_text(text, "utf-8")
    new.replace(path)


def _finish(lookup: Lookup) -> str:
    folder = lookup.repository / "snapshots" / lookup.commit
    for file in lookup.files:
        if not weights.has_size(folder / file.path, file):
            what = f"{file.path} of {lookup.want.repo} is missing or was changed meanwhile."
            raise StartError("damaged", what, remedy="Run it again; nothing else may write to the folder of models.")
    if lookup.entries and not lookup.verified:
        _write_list(lookup, verified=True)
    main = lookup.repository / "refs" / "main"
    if not lookup.want.revision and not (main.is_file() and main.read_text("utf-8") == lookup.commit):
        _write(main, lookup.commit)
    return f"{lookup.want.repo}@{lookup.commit}: complete and verified, in {folder}"
