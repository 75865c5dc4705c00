"""Asks the model hub which commit a repository is at, and which files it has there."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

import requests

from imagefactory.errors import FactoryError, NetworkError, clean
from imagefactory.project.locks.files import LockedRevision
from imagefactory.store.digests import parse_json
from imagefactory.store.http import Response, Retry, ask, judge, new_session, short_reason
from imagefactory.store.index_config import redact

RETRY = Retry(attempts=3)
PARALLEL = 8
_LARGEST_FILE = 1 << 60
_LARGEST = 16 * 1024 * 1024  # the longest answer of the hub in bytes: it lists the files of a model, or is a config


class HubFile(NamedTuple):
    """A file of a repository; large ones have a sha256, small ones the hash that Git gives them."""

    size: int
    hash: str


@dataclass(frozen=True)
class HubRevision:
    """A repository at one commit, and its files."""

    repo: str
    commit: str
    files: Mapping[str, HubFile]


def hub_endpoint() -> str:
    """Return `HF_ENDPOINT` if it is set, as the hub's own clients do, otherwise the public hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def ask_hub(repo: str, revision: str = "main") -> HubRevision:
    """Look a repository up: one answer has the commit and the files, so that they cannot disagree."""
    what = f"The revision of {repo} cannot be looked up."
    answer = _get(f"api/models/{quote(repo)}/revision/{quote(revision, '')}?blobs=true", what)
    with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return _read(repo, parse_json(answer))
    raise _unreachable(what, "The hub's response contains no commit with its files.")


def read_hub_file(revision: HubRevision, path: str) -> bytes:
    """Read a small file of a repository."""
    what = f"{path} of {revision.repo} cannot be read."
    if path not in revision.files:
        raise _unreachable(what, "The repository has no such file.")
    return _get(f"{quote(revision.repo)}/resolve/{revision.commit}/{quote(path)}", what)


def _get(path: str, what: str) -> bytes:
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with new_session() as session:
            url = f"{hub_endpoint()}/{path}"
            answer = RETRY.run(lambda: ask(session, "GET", url, headers=headers, limit=_LARGEST), later=judge)
    except requests.RequestException as error:
        raise _unreachable(what, f"The hub does not answer ({short_reason(error)}).") from None
    if answer.status != HTTPStatus.OK:
        raise _unreachable(what, _refusal(answer))
    return answer.body


def _unreachable(what: str, why: str) -> NetworkError:
    return NetworkError(
        "hub-unreachable",
        what,
        where=redact(hub_endpoint()) or "HF_ENDPOINT",
        why=why,
        fix="Check the name and the network, or set HF_ENDPOINT to a mirror of the hub.",
    )


def _refusal(answer: Response) -> str:
    code = answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo":
        return "The repository is gated: accept its terms on the hub, and set HF_TOKEN."
    if code == "RevisionNotFound":
        return "The repository no longer has this commit."
    if code == "RepoNotFound" or answer.status == HTTPStatus.NOT_FOUND:
        return "The hub has no such repository: it was removed or renamed, or is private and needs HF_TOKEN."
    if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "The repository is private or gated, or does not exist. Gated repositories need HF_TOKEN."
    return f"The hub answered {answer.status_line}."


def _read(repo: str, document: Mapping[str, Any]) -> HubRevision:
    files = {}
    for entry in document["siblings"]:
        large = entry.get("lfs") or {"size": entry["size"], "sha256": entry["blobId"]}
        if not 0 <= int(large["size"]) < _LARGEST_FILE:
            raise ValueError("no size of a file")
        files[clean(str(entry["rfilename"]))] = HubFile(int(large["size"]), str(large["sha256"]))
    return HubRevision(repo, LockedRevision(repo=repo, commit=document["sha"]).commit, files)


def ask_for_all(wanted: Iterable[tuple[str, str]]) -> list[HubRevision | NetworkError]:
    """Look repositories up, each at a revision; for one that cannot be, the error stands in the list."""

    def attempt(repo_and_revision: tuple[str, str]) -> HubRevision | NetworkError:
        try:
            return ask_hub(*repo_and_revision)
        except NetworkError as error:
            return error

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(attempt, wanted))


def refuse_unpinned(failures: Sequence[FactoryError]) -> None:
    """Raise an error that names every repository that could not be looked up."""
    if len(failures) > 1:
        raise NetworkError(
            "hub-unreachable",
            f"{len(failures)} revisions cannot be looked up; the others are.",
            where=failures[0].where,
            why=" ".join(f"{failure.what} {failure.why}" for failure in failures),
            fix=failures[0].fix,
        )
    for failure in failures:
        raise failure
