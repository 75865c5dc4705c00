"""Looks up the commits that model repositories are at."""

from __future__ import annotations

import os
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote

import requests

from imagefactory.errors import NetworkError
from imagefactory.project.locks.files import LockedRevision
from imagefactory.store.digests import parse_json
from imagefactory.store.index_config import redact

TIMEOUT = (10, 30)


def hub_endpoint() -> str:
    """Return `HF_ENDPOINT` if it is set, as the hub's own clients do, otherwise the public hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def lock_revision(repo: str) -> LockedRevision:
    """Look up the commit that a model repository is at."""
    url = f"{hub_endpoint()}/api/models/{quote(repo)}/revision/main"
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = requests.get(url, headers=headers, timeout=TIMEOUT)
    except requests.RequestException as error:
        why = f"The hub does not answer ({type(error).__name__})."
    else:
        if answer.status_code == HTTPStatus.OK:
            why = "The hub's response contains no commit."
            with suppress(ValueError, KeyError, TypeError):
                return LockedRevision(repo=repo, commit=parse_json(answer.content)["sha"])
        elif answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            why = "The repository is private or gated, or does not exist. Gated repositories need HF_TOKEN."
        else:
            why = f"The hub answered {answer.status_code} {answer.reason}."
    raise NetworkError(
        "hub-unreachable",
        f"The revision of {repo} cannot be looked up.",
        where=redact(hub_endpoint()) or "HF_ENDPOINT",
        why=why,
        fix="Check the name in matrix.yaml and the network, or set HF_ENDPOINT to a mirror of the hub.",
    )
