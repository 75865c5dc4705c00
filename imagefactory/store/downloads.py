"""Downloads locked files: in parallel, resumable, each file once, never more than its size, checked by sha256."""

import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
from filelock import FileLock, Timeout

from imagefactory.errors import FactoryError, InputError, NetworkError
from imagefactory.store.atomic import adopt, is_disk_full, translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, file_sha256
from imagefactory.store.http import (
    TIMEOUT,
    Retry,
    TooLargeError,
    content_length,
    judge,
    new_session,
    pieces_of,
    short_reason,
    time_for,
)
from imagefactory.store.index_config import redact
from imagefactory.store.progress import Progress

PARALLEL = 6
RETRY = Retry()


@dataclass(frozen=True)
class Wanted:
    """A locked file, a way to find its locations, and the remedy if it has none."""

    file: str
    sha256: Sha256
    size: int
    locations: Callable[[], Sequence[str]]
    remedy: str = (
        "Check the network and the configured index (`./inv doctor`), or put the file into a folder in PIP_FIND_LINKS."
    )


class Downloader:
    """Downloads files in parallel. An exception stops them; partial files are continued next time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._session = new_session(PARALLEL)
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stopped.set()
        # A silent server must not delay an interruption.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        self._session.close()

    def submit(self, wanted: Wanted, progress: Progress) -> Future[Path]:
        return self._pool.submit(fetch, wanted, self._store, self._session, progress, self._stopped)


def fetch(
    wanted: Wanted,
    store: Store,
    session: requests.Session,
    progress: Progress,
    stopped: threading.Event | None = None,
) -> Path:
    target = store.download(wanted.sha256)
    if not target.exists():
        with translating_disk_full(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _Transfer(wanted, target, session, progress, stopped or threading.Event()).run()
    return target


@dataclass
class _Transfer:
    """The download of one file."""

    wanted: Wanted
    target: Path
    session: requests.Session
    progress: Progress
    stopped: threading.Event

    def __post_init__(self) -> None:
        self.partial = self.target.with_suffix(".part")
        self.failures: list[str] = []
        self.mismatch = False

    def run(self) -> None:
        lock = FileLock(self.target.with_suffix(".lock"))
        try:
            alone = lock.acquire(poll_interval=0.2, cancel_check=self.stopped.is_set)
        except Timeout:
            raise CancelledError from None
        with alone:
            # Another build may have downloaded it meanwhile.
            if not self.target.exists() and not any(map(self._fetch_from, self.wanted.locations())):
                raise self._failure()

    def _fetch_from(self, location: str) -> bool:
        """Try one location, with retries where they may help; return whether the file arrived."""
        try:
            return RETRY.run(lambda: self._attempt(location), later=judge, stopped=self.stopped)
        except OSError as error:  # including the errors of requests
            if is_disk_full(error):
                raise
            return False

    def _attempt(self, location: str) -> bool:
        continued = self.partial.exists()
        try:
            fits = self._transfer(location)
        except OSError as error:
            self.failures.append(f"{redact(location)}: {short_reason(error)}")
            raise
        if fits and self.partial.exists() and file_sha256(self.partial) == self.wanted.sha256:
            adopt(self.partial, self.target)
            return True
        self.partial.unlink(missing_ok=True)
        # A continued file may have had another file's beginning. Otherwise, the content is simply wrong.
        if continued:
            return self._attempt(location)
        self.mismatch = True
        problem = "not the locked content" if fits else f"more than the locked {self.wanted.size:,} bytes"
        self.failures.append(f"{redact(location)}: {problem}")
        return False

    def _transfer(self, location: str) -> bool:
        """Transfer a file, continuing an interrupted transfer; return whether it is no larger than it should be."""
        parts = urlsplit(location)
        if parts.scheme in ("", "file"):
            local = Path(url2pathname(parts.path) if parts.scheme else location)
            if local.stat().st_size > self.wanted.size:
                return False
            shutil.copyfile(local, self.partial)
            self.progress(self.partial.stat().st_size)
            return True
        done = self.partial.stat().st_size if self.partial.exists() else 0
        # identity: a compressed answer would have another size and other offsets.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with self.session.get(location, headers=headers, timeout=TIMEOUT, stream=True) as answer:
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return True  # nothing is missing; the caller checks the hash
            answer.raise_for_status()
            resumed = answer.status_code == HTTPStatus.PARTIAL_CONTENT
            if not resumed:  # a server may ignore the range, and send everything (RFC 9110, 14.2)
                done = 0
            length = content_length(answer.headers)
            expected = self.wanted.size - done if length is None else length
            if done + expected > self.wanted.size:
                return False
            received, left = 0, self.wanted.size - done
            with self.partial.open("ab" if resumed else "wb") as file:
                try:
                    for piece in pieces_of(answer, left, time_for(left)):
                        if self.stopped.is_set():
                            raise CancelledError
                        received += file.write(piece)
                        self.progress(done + received)
                except TooLargeError:
                    return False
            if received < expected:
                raise requests.ConnectionError("the connection ended early")
            return True

    def _failure(self) -> FactoryError:
        tried = f"Tried: {'; '.join(dict.fromkeys(self.failures))}."
        if self.mismatch:
            return InputError(
                "wrong-digest",
                f"{self.wanted.file} is not the file that was locked.",
                where=self.wanted.file,
                why=f"It does not have the sha256 {self.wanted.sha256}. {tried}",
                fix="Do not use this source; check the configured index or mirror (`./inv doctor`).",
            )
        return NetworkError(
            "download-failed",
            f"{self.wanted.file} cannot be downloaded.",
            where=self.wanted.file,
            why=tried if self.failures else "No configured index, folder or mirror has a file of this name.",
            fix=self.wanted.remedy,
        )
