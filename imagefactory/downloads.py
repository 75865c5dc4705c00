"""Fetching what the locks name: in parallel, resumable, each file once, and right only when its sha256 is."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests
from filelock import FileLock

from imagefactory.content import Sha256
from imagefactory.errors import DigestMismatchError, DownloadError
from imagefactory.resolve.index import redact
from imagefactory.store import Store, translating_disk_full

PARALLEL = 6
ATTEMPTS = 4
TIMEOUT = (10, 60)
_CHUNK = 1024 * 1024

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Wanted:
    """A locked file, and how to find out where it may be."""

    file: str
    sha256: Sha256
    size: int
    locations: Callable[[], Sequence[str]]


class Downloader:
    """Fetches several files at once; leaving it stops what has not started."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._session = requests.Session()
        self._session.mount("https://", requests.adapters.HTTPAdapter(pool_maxsize=PARALLEL, max_retries=2))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._session.close()

    def submit(self, wanted: Wanted, progress: Progress) -> Future[Path]:
        """Fetch a file in the background."""
        return self._pool.submit(fetch, wanted, self._store, self._session, progress)


def fetch(wanted: Wanted, store: Store, session: requests.Session, progress: Progress) -> Path:
    """Give the path of a locked file, downloading it when it is not in the store yet."""
    target = store.download(wanted.sha256)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_suffix(".lock")):
        # Another build may have fetched it while this one waited.
        if not target.exists():
            _fetch_from_anywhere(wanted, target, store, session, progress)
    return target


def _fetch_from_anywhere(
    wanted: Wanted, target: Path, store: Store, session: requests.Session, progress: Progress
) -> None:
    partial = target.with_suffix(".part")
    failures: list[str] = []
    mismatch = False
    for location in wanted.locations():
        for _ in range(ATTEMPTS):
            try:
                with translating_disk_full(partial):
                    _transfer(location, partial, session, progress)
            except (requests.RequestException, OSError) as error:
                failures.append(f"{redact(location)}: {type(error).__name__}")
                if _is_final(error):
                    break
                continue
            if _hash(partial) == wanted.sha256:
                store.adopt(partial, target)
                return
            # What was resumed may have been another file's beginning; from here on start afresh.
            partial.unlink()
            mismatch = True
            failures.append(f"{redact(location)}: other content than the lock names")
    if mismatch:
        raise DigestMismatchError(
            f"{wanted.file} is not the file that was locked.",
            where=wanted.file,
            why=f"Its sha256 is not {wanted.sha256}. {_tried(failures)}",
            fix="Do not use this source; check the index or mirror that is configured (`invoke doctor`).",
        )
    raise DownloadError(
        f"{wanted.file} cannot be fetched.",
        where=wanted.file,
        why=_tried(failures) if failures else "No configured index, folder or mirror has a file of this name.",
        fix="Check the network and the configured index (`invoke doctor`), or put the file into a folder "
        "that PIP_FIND_LINKS names.",
    )


def _transfer(location: str, partial: Path, session: requests.Session, progress: Progress) -> None:
    """Bring the rest of a file; what an interrupted transfer left is kept and continued."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        shutil.copyfile(url2pathname(parts.path) if parts.scheme else location, partial)
        progress(partial.stat().st_size)
        return
    done = partial.stat().st_size if partial.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with session.get(location, headers=headers, timeout=TIMEOUT, stream=True) as answer:
        if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing; the hash will tell whether it is right
        answer.raise_for_status()
        resumed = answer.status_code == HTTPStatus.PARTIAL_CONTENT
        if not resumed:
            done = 0
        expected = int(answer.headers.get("Content-Length", -1))
        received = 0
        with partial.open("ab" if resumed else "wb") as file:
            for chunk in answer.iter_content(_CHUNK):
                file.write(chunk)
                received += len(chunk)
                progress(done + received)
        if expected >= 0 and received < expected:
            raise requests.ConnectionError("the connection ended early")


def _is_final(error: Exception) -> bool:
    """True when asking the same place again would not help."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, FileNotFoundError | PermissionError)


def _hash(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tried(failures: Sequence[str]) -> str:
    return f"Tried: {'; '.join(dict.fromkeys(failures))}."
