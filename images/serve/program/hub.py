"""Downloads the model and its drafter from the model hub into the cache that the servers read.

huggingface_hub, whose versions differ between images, has no resumption after a crash since 1.0, verifies no hash of
a file that comes by HTTP, and shows progress to terminals alone. This program keeps its cache's layout and its locks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from . import weights
from .errors import StartError
from .hiding import hide
from .weights import File, Wanted, amount

EVERY = 10.0
"""Seconds between two lines about the progress."""
PATIENCE = 30.0
"""Seconds without a byte that count as a stall; HF_HUB_DOWNLOAD_TIMEOUT overrides, as in huggingface_hub."""
LONGEST = 86400
RETRIES = 4
"""Attempts without a new byte before a download fails."""
PAUSE = 2.0
"""Seconds before the first of them; each later pause is longer by as much."""
AT_ONCE = 8
"""Files that are fetched at the same time."""
BLOCK = 1 << 20
LOCKS = ".locks"
"""The folder of huggingface_hub's locks."""
_COMMIT = re.compile("[0-9a-f]{40}")
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)

Say = Callable[[str], None]
T = TypeVar("T")


class Source(NamedTuple):
    """The hub, and the token for it."""

    endpoint: str
    token: str
    patience: float


class Lookup(NamedTuple):
    """A revision of a repository, and its files."""

    want: Wanted
    repository: Path
    commit: str
    entries: dict[str, Any]
    """All files, in the format of huggingface_hub's list."""
    files: list[File]
    """Those to have."""
    verified: bool


class _Stopped(Exception):  # noqa: N818 - no failure of its own
    """Another file could not be fetched."""


class _Redirect(HTTPRedirectHandler):
    """Keeps the token from the hosts that the hub sends clients to."""

    def redirect_request(self, req: Request, *arguments: Any) -> Request | None:  # noqa: ANN401 - handed on
        new = super().redirect_request(req, *arguments)
        if new is not None and urlsplit(new.full_url).netloc != urlsplit(req.full_url).netloc:
            new.headers.pop("Authorization", None)
        return new


def source(environment: dict[str, str] | os._Environ[str], token: str) -> Source:
    """Find the hub and the token where huggingface_hub looks for them."""
    home = environment.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    path = environment.get("HF_TOKEN_PATH") or Path(home, "token")
    token = token or environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token:
        with suppress(OSError, ValueError):
            token = Path(path).read_text("utf-8")
    endpoint = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    patience = 0.0
    with suppress(ValueError):
        patience = float(environment.get("HF_HUB_DOWNLOAD_TIMEOUT") or PATIENCE)
    return Source(endpoint.rstrip("/"), token.strip(), patience if 0 < patience < LONGEST else PATIENCE)


def download(wants: Sequence[Wanted], cache: str, server: str, hub: Source, say: Say) -> list[str]:
    """Download repositories, verify their files, and return a line about each."""
    try:
        with _alone(Path(cache), " and ".join(want.repo for want in wants), say):
            lookups = [_look_up(want, cache, server, hub, say) for want in wants]
            _Download(lookups, cache, hub, say).run()
            return [_finish(lookup) for lookup in lookups]
    except OSError as error:
        raise _unwritable(cache, error) from None


@contextmanager
def _alone(cache: Path, what: str, say: Say) -> Iterator[None]:
    """Wait until no other container downloads into the same folder; the lock of one that was killed is free."""
    (cache / LOCKS).mkdir(parents=True, exist_ok=True)
    with (cache / LOCKS / "imagefactory.lock").open("a+", encoding="utf-8") as file:
        tell = 0.0
        while not _try_lock(file):
            if time.monotonic() >= tell:
                file.seek(0)
                say(f"waits for another download into {cache}: {file.read(1000)}")
                tell = time.monotonic() + 60
            time.sleep(0.2)
        if tell:
            say("goes on: the other download has ended")
        file.seek(0)
        file.truncate()
        file.write(f"{what}, by {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}")
        file.flush()
        yield


def _try_lock(file: IO[Any]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _look_up(want: Wanted, cache: str, server: str, hub: Source, say: Say) -> Lookup:
    """Ask the hub for the files of a revision, unless it is pinned and its list is here."""
    repository = want.folder(cache)
    known = weights.read_list(repository, want.revision) if _COMMIT.fullmatch(want.revision) else None
    if known is not None and known[1]:
        return Lookup(want, repository, want.revision, {}, weights.needed(known[0], server), verified=True)
    url = f"{hub.endpoint}/api/models/{quote(want.repo)}/revision/{quote(want.revision or 'main', '')}?blobs=true"
    value = _retried(lambda: _ask(url, hub), lambda: False, want, hub, say)
    try:
        commit = str(value["sha"])
        entries = {str(entry["rfilename"]): _entry(entry) for entry in value["siblings"]}
        files = [weights.file_of(path, entry) for path, entry in entries.items()]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _no_hub(hub, "its answer is not that of a model hub") from None
    names = [file for file in files if ".." in file.path.split("/") or file.path.startswith("/")]
    if names or not _COMMIT.fullmatch(commit) or not all(_DIGEST.fullmatch(file.digest) for file in files):
        raise _no_hub(hub, "its answer is not that of a model hub")
    known = weights.read_list(repository, commit)
    verified = known is not None and known[1]
    return Lookup(want, repository, commit, entries, weights.needed(files, server), verified)


def _entry(sibling: dict[str, Any]) -> dict[str, Any]:
    large = sibling.get("lfs")
    entry = {"size": int(sibling["size"]), "blob_id": str(sibling["blobId"])}
    return entry | ({"lfs_sha256": str(large["sha256"]), "lfs_size": int(large["size"])} if large else {})


def _ask(url: str, hub: Source) -> dict[str, Any]:
    with _open(url, hub) as response:
        value = json.loads(response.read())
    return value if isinstance(value, dict) else {}


def _open(url: str, hub: Source, first: int = 0) -> HTTPResponse:
    """Request a file from a byte on."""
    request = Request(url, headers={"User-Agent": "imagefactory"})  # noqa: S310 - HF_ENDPOINT is the user's choice
    if hub.token:
        request.add_header("Authorization", f"Bearer {hub.token}")
    if first:
        request.add_header("Range", f"bytes={first}-")
    response: HTTPResponse = build_opener(_Redirect).open(request, timeout=hub.patience)
    return response


def _retried(work: Callable[[], T], moved: Callable[[], bool], want: Wanted, hub: Source, say: Say) -> T:
    """Do work that may fail; `moved` tells whether the failed attempt brought anything."""
    failures = 0
    while True:
        try:
            return work()
        except HTTPError as error:
            error.close()
            if error.code not in _TEMPORARY:
                _refuse(error, want, hub)
            failure: Exception = error
        except (OSError, HTTPException, ValueError) as error:
            failure = error
        failures = 1 if moved() else failures + 1
        reason = failure if isinstance(failure, HTTPError) else getattr(failure, "reason", failure)
        stalled = isinstance(reason, TimeoutError)
        why = f"no byte in {hub.patience:g} s" if stalled else hide(str(reason) or type(reason).__name__)
        if failures > RETRIES:
            if stalled:
                raise StartError(
                    "stalled",
                    f"The download of {want.repo} stalled {failures} times: {why}.",
                    remedy="Look at the network, and run it again: it goes on where it stopped.",
                )
            raise _no_hub(hub, why)
        say(f"{want.repo}: {why}; attempt {failures + 1} of {RETRIES + 1}")
        time.sleep(PAUSE * failures)


def _refuse(error: HTTPError, want: Wanted, hub: Source) -> NoReturn:
    """Name the reason of a refusal."""
    code = error.headers.get("X-Error-Code", "")
    setting = "MODEL" if want.role == "model" else "DFLASH_DRAFTER"
    if code == "RevisionNotFound":
        raise StartError(
            "unknown-revision",
            f"{want.repo} has no revision {want.revision or 'main'}.",
            setting=setting,
            value=want.repo,
            remedy="Use a newer image: the owner of the model has removed this revision.",
        ) from None
    if code == "GatedRepo" or (error.code in {401, 403} and code != "RepoNotFound"):
        problem = "this token has no access to it" if hub.token else "there is no token"
        raise StartError(
            "gated",
            f"{want.repo} is gated or private, and {problem}.",
            setting="HF_TOKEN",
            allowed="a read token of an account with access",
            remedy=f"Accept the terms on {hide(hub.endpoint)}/{want.repo}, and hand the token on with -e HF_TOKEN.",
        ) from None
    if code == "RepoNotFound" or error.code == 404:  # noqa: PLR2004
        raise StartError(
            "unknown-model",
            f"The hub has no {want.repo}, or does not show it to {'this account' if hub.token else 'strangers'}.",
            setting=setting,
            value=want.repo,
            remedy="Correct the name; for a private model, hand a token on with -e HF_TOKEN.",
        ) from None
    raise _no_hub(hub, f"it answers {error.code} {error.reason}") from None


def _no_hub(hub: Source, why: str) -> StartError:
    return StartError(
        "no-hub",
        f"The model hub cannot be used: {why}.",
        setting="HF_ENDPOINT",
        value=hide(hub.endpoint),
        remedy="Look at the container's network, DNS and HTTPS_PROXY, or copy the model into the cache from elsewhere.",
    )


def _unwritable(cache: str, error: OSError) -> StartError:
    return StartError(
        "disk",
        f"{cache} cannot be written: {error.strerror or error}.",
        remedy="Free space there, or mount a larger disk: -v /path/on/the/host:/root/.cache/huggingface",
    )


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
        free = os.statvfs(self.cache)
        self._refuse_small_disk(self.total - there, free.f_bavail * free.f_frsize)
        for lookup in self.lookups:
            self.say(
                f"{lookup.want.role} {lookup.want.repo}@{lookup.commit}: {len(lookup.files)} files, "
                f"{amount(sum(file.size for file in lookup.files))}"
            )
            if lookup.entries:
                _write_list(lookup, verified=lookup.verified)
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
                rest = f", {_duration((self.total - self.done) / average)} left" if average else ""
                share = f"{100 * self.done // max(self.total, 1)} %"
                speed = amount((self.fetched - before) / EVERY)
                self.say(f"{amount(self.done)} of {amount(self.total)} ({share}), {speed}/s{rest}")
                before = self.fetched

    def _refuse_small_disk(self, needed: int, free: int) -> None:
        if needed > free:
            raise StartError(
                "disk",
                f"{amount(free)} are free in {self.cache}; the download needs {amount(needed)}.",
                remedy="Free space there, or mount a larger disk: -v /path/on/the/host:/root/.cache/huggingface",
            )

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
            here = next((path for path in (link, blob) if _has_size(path, file)), None)
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
            state.resume()
            resumed = state.size > 0
            while True:
                state.mark = state.size
                _retried(lambda: self._pull(url, state), state.moved, lookup.want, self.hub, self.say)
                if state.digest.hexdigest() == file.digest:
                    break
                state.forget()
                if not resumed:
                    Path(part.name).unlink()
                    raise StartError(
                        "damaged",
                        f"{file.path} of {lookup.want.repo} does not have the SHA that the hub lists; it was removed.",
                        remedy="Run it again; if that does not help, a proxy or a mirror (HF_ENDPOINT) changes files.",
                    )
                resumed = False  # what was here may have been damaged
            os.fsync(part.fileno())
        _part(blob).replace(blob)

    def _pull(self, url: str, state: _State) -> None:
        if self.stopped:
            raise _Stopped
        if state.size == state.file.size:
            return
        with _open(url, self.hub, state.size) as response:
            if state.size and response.status != 206:  # noqa: PLR2004 - it sends the file from its beginning
                state.forget()
            while state.size < state.file.size:
                if self.stopped:
                    raise _Stopped
                block = response.read1(BLOCK)
                if not block:
                    raise ConnectionError(f"the connection was cut at {amount(state.size)} of {state.file.path}")
                state.add(block)


class _State:
    """How far a file is."""

    def __init__(self, part: IO[bytes], file: File, count: Callable[[int, int], None]) -> None:
        self.part, self.file, self.count = part, file, count
        self.digest, self.size, self.mark = _digest(file), 0, 0

    def resume(self) -> None:
        """Take what an earlier download left."""
        self.part.seek(0)
        while block := self.part.read(BLOCK):
            self.digest.update(block)
            self.size += len(block)
        self.count(self.size, 0)
        if self.size > self.file.size:
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
        self.digest, self.size, self.mark = _digest(self.file), 0, 0

    def moved(self) -> bool:
        """Whether there is more than at the last question."""
        before, self.mark = self.mark, self.size
        return self.size > before


def _part(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _has_size(path: Path, file: File) -> bool:
    with suppress(OSError):
        return path.stat().st_size == file.size
    return False


def _digest(file: File) -> hashlib._Hash:
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def _digest_of(path: Path, file: File) -> str:
    digest = _digest(file)
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return str(digest.hexdigest())


def _write_list(lookup: Lookup, *, verified: bool) -> None:
    value = {"format_version": 1, "verified": verified, "files": lookup.entries}
    _write(lookup.repository / weights.LISTS[0] / f"{lookup.commit}.json", json.dumps(value, indent=1))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)


def _finish(lookup: Lookup) -> str:
    if lookup.entries:
        _write_list(lookup, verified=True)
    if not lookup.want.revision:
        _write(lookup.repository / "refs" / "main", lookup.commit)
    folder = lookup.repository / "snapshots" / lookup.commit
    return f"{lookup.want.repo}@{lookup.commit}: complete and verified, in {folder}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
