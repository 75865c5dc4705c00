"""Asks the model hub for revisions and files, with patience, and names what it refuses."""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from . import checkpoint, weights
from .errors import StartError
from .redaction import hide, keep_secret
from .weights import File, Wanted

PATIENCE = 30.0
"""Seconds without a byte that count as a stall; HF_HUB_DOWNLOAD_TIMEOUT overrides, as in huggingface_hub."""
LONGEST = 86400
RETRIES = 4
"""Attempts without a new byte before a download fails."""
PAUSE = 2.0
"""Seconds before the first of them; each later pause is longer by as much."""
LISTING, MOST_FILES = 1 << 25, 10_000
"""Bytes of the list of a repository's files, and files in it; the largest have some hundred kB and 2,000."""
PACE, WINDOW = 1024, 60.0
"""Bytes a second, over so many seconds, below which a transfer counts as stalled."""
_COMMIT = re.compile("[0-9a-f]{40}")
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
    verified: bool


class _Redirect(HTTPRedirectHandler):
    """Keeps the token from the hosts that the hub sends clients to."""

    def redirect_request(self, req: Request, *arguments: Any) -> Request | None:  # noqa: ANN401 - handed on
        new = super().redirect_request(req, *arguments)
        if new is not None and urlsplit(new.full_url).netloc != urlsplit(req.full_url).netloc:
            new.headers.pop("Authorization", None)
        return new


def find_hub(environment: Mapping[str, str], token: str) -> Source:
    """Find the hub and the token where huggingface_hub looks for them."""
    home = environment.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    path = environment.get("HF_TOKEN_PATH") or Path(home, "token")
    token = token or environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or ""
    if not token:
        with suppress(OSError, ValueError), Path(path).open(encoding="utf-8") as file:
            token = file.read(LONGEST)
    if len(token.split()) > 1 or not token.isascii():
        what, remedy = "The token for the model hub is not one word.", f"Correct HF_TOKEN, or the file {path}."
        raise StartError("bad-value", what, "HF_TOKEN", "", "one word", remedy=remedy)
    keep_secret(token.strip())
    endpoint = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    patience = 0.0
    with suppress(ValueError):
        patience = float(environment.get("HF_HUB_DOWNLOAD_TIMEOUT") or PATIENCE)
    return Source(endpoint.rstrip("/"), token.strip(), patience if 0 < patience < LONGEST else PATIENCE)


def look_up(want: Wanted, cache: str, server: str, hub: Source, say: Say) -> Lookup:
    """Ask the hub for the files of a revision, unless it is pinned and its list is here."""
    repository = checkpoint.repository(cache, want.repo)
    known = weights.read_list(repository, want.revision) if _COMMIT.fullmatch(want.revision) else None
    if known is not None and known[1]:
        return Lookup(want, repository, want.revision, {}, weights.needed(known[0], server), verified=True)
    url = f"{hub.endpoint}/api/models/{quote(want.repo)}/revision/{quote(want.revision or 'main', '')}?blobs=true"
    value = retried(lambda: _ask(url, hub), lambda: 0, want, hub, say)
    try:
        commit = str(value["sha"])
        entries = {str(entry["rfilename"]): _entry(entry) for entry in value["siblings"]}
        files = weights.files_of(entries)
        if not _COMMIT.fullmatch(commit) or len(files) > MOST_FILES:
            raise ValueError(commit)  # noqa: TRY301
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise _no_hub(hub, "its answer is not that of a model hub") from None
    known = weights.read_list(repository, commit)
    verified = known is not None and known[1]
    return Lookup(want, repository, commit, entries, weights.needed(files, server), verified)


def _entry(sibling: dict[str, Any]) -> dict[str, Any]:
    large = sibling.get("lfs")
    entry = {"size": int(sibling["size"]), "blob_id": str(sibling["blobId"])}
    return entry | ({"lfs_sha256": str(large["sha256"]), "lfs_size": int(large["size"])} if large else {})


def _ask(url: str, hub: Source) -> dict[str, Any]:
    text, pace = b"", Pace()
    with open_file(url, hub) as response:
        while block := response.read1(1 << 16):
            text += block
            pace.count(len(block))
            if len(text) > LISTING:
                raise _no_hub(hub, f"its list of files has more than {LISTING:,} bytes")
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    return value if isinstance(value, dict) else {}


class Pace:
    """Refuses what arrives too slowly: a byte now and then keeps every other limit from being reached."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def count(self, size: int) -> None:
        self._bytes += size
        if time.monotonic() - self._since > WINDOW:
            if self._bytes < PACE * WINDOW:
                raise TimeoutError
            self._since, self._bytes = time.monotonic(), 0


def open_file(url: str, hub: Source, first: int = 0) -> HTTPResponse:
    request = Request(url, headers={"User-Agent": "imagefactory"})  # noqa: S310 - HF_ENDPOINT is the user's choice
    if hub.token:
        request.add_header("Authorization", f"Bearer {hub.token}")
    if first:
        request.add_header("Range", f"bytes={first}-")
    response: HTTPResponse = build_opener(_Redirect).open(request, timeout=hub.patience)
    return response


def retried(work: Callable[[], T], size: Callable[[], int], want: Wanted, hub: Source, say: Say) -> T:
    """Do work that may fail; an attempt that added much to the size counts as the first."""
    failures, before = 0, size()
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
        failures, before = 1 if size() - before >= PACE * WINDOW else failures + 1, size()
        reason = failure if isinstance(failure, HTTPError) else getattr(failure, "reason", failure)
        stalled = isinstance(reason, TimeoutError)
        why = (
            f"no byte in {hub.patience:g} s, or few in {WINDOW:g}"
            if stalled
            else hide(str(reason) or type(reason).__name__)
        )
        if failures > RETRIES:
            if stalled:
                what = f"The download of {want.repo} stalled {failures} times: {why}."
                remedy = "Check the network, and run it again: it resumes where it stopped."
                raise StartError("stalled", what, remedy=remedy)
            raise _no_hub(hub, why)
        say(f"{want.repo}: {why}; attempt {failures + 1} of {RETRIES + 1}")
        time.sleep(PAUSE * failures)


def _refuse(error: HTTPError, want: Wanted, hub: Source) -> NoReturn:
    code = error.headers.get("X-Error-Code", "")
    setting = "MODEL" if want.role == "model" else "DFLASH_DRAFTER"
    if code == "RevisionNotFound":
        what = f"{want.repo} has no revision {want.revision or 'main'}."
        remedy = "Use a newer image: the owner of the model has removed this revision."
        raise StartError("unknown-revision", what, setting, want.repo, remedy=remedy) from None
    if code == "GatedRepo" or (error.code in {401, 403} and code != "RepoNotFound"):
        problem = "this token has no access to it" if hub.token else "there is no token"
        what, allowed = f"{want.repo} is gated or private, and {problem}.", "a read token of an account with access"
        remedy = f"Accept the terms on {hide(hub.endpoint)}/{want.repo}, and hand the token on with -e HF_TOKEN."
        raise StartError("gated", what, "HF_TOKEN", "", allowed, remedy=remedy) from None
    if code == "RepoNotFound" or error.code == 404:  # noqa: PLR2004
        what = (
            f"The hub has no {want.repo}, or hides it from {'this account' if hub.token else 'users without a token'}."
        )
        remedy = "Correct the name; for a private model, hand a token on with -e HF_TOKEN."
        raise StartError("unknown-model", what, setting, want.repo, remedy=remedy) from None
    raise _no_hub(hub, f"it answers {error.code} {error.reason}") from None


def _no_hub(hub: Source, why: str) -> StartError:
    remedy = "Look at the container's network, DNS and HTTPS_PROXY, or copy the model into the cache from elsewhere."
    what = f"The model hub cannot be used: {why}."
    return StartError("no-hub", what, "HF_ENDPOINT", hide(hub.endpoint), remedy=remedy)
