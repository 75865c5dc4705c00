"""Lists and deletes images on GHCR through GitHub's packages API, since GHCR does not support DELETE.

https://docs.github.com/en/rest/packages/packages. Deleting a version deletes its tags, but nothing that it refers to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import quote

import requests

from imagefactory.errors import RegistryError
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.reference import Reference, is_digest
from imagefactory.store.digests import Digest, TooDeepError, parse_json
from imagefactory.store.http import TooLargeError, read_bounded

GHCR: Final = "ghcr.io"
_PAGE = 100
_MOST_PAGES = 1000
_MOST_BYTES = 16 * 1024 * 1024
"""More than a page of versions has, with all their tags."""
_TIMEOUT = (10, 60)


class GitHubPackages:
    """The versions of one package of the container registry."""

    def __init__(self, reference: Reference, token: str, api: str) -> None:
        owner, _, package = reference.repository.partition("/")
        self._reference = reference
        self._folders = [
            f"{api.rstrip('/')}/{kind}/{owner}/packages/container/{quote(package, safe='')}/versions"
            for kind in ("orgs", "users")
        ]
        self._session = requests.Session()
        self._session.headers.update(
            {
                "Authorization": f"Bearer {token}",
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": "2022-11-28",
            }
        )

    @classmethod
    def of(cls, reference: Reference) -> Self | None:
        """Find the package behind a repository; None for every other registry."""
        if reference.registry != GHCR:
            return None
        found = find_credentials(reference.registry)
        if found is None:
            raise RegistryError(
                "access-denied",
                "GitHub lists the versions of a package only for users who are logged in.",
                where=reference.name,
                why="There are no credentials for ghcr.io.",
                fix="Set GITHUB_TOKEN, or run `docker login ghcr.io` with a token that may delete packages.",
            )
        return cls(reference, found.secret, os.environ.get("GITHUB_API_URL") or "https://api.github.com")

    def versions(self) -> dict[Digest, datetime]:
        """List every manifest, tagged or not, with the time of its upload."""
        return {digest: created for digest, (_, created) in self._listed.items()}

    def delete(self, digest: Digest) -> bool:
        """Delete a manifest; return whether it was there."""
        if digest not in self._listed:
            return False
        number, _ = self._listed[digest]
        answer = self._ask("DELETE", f"{self._folders[0]}/{number}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return False
        if not answer.ok:
            raise self._failure(answer, "delete a version")
        return True

    @cached_property
    def _listed(self) -> dict[Digest, tuple[int, datetime]]:
        try:
            return {
                Digest(row["name"]): (int(row["id"]), datetime.fromisoformat(row["created_at"]))
                for row in self._rows()
                if is_digest(str(row.get("name")))
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryError(
                "registry-failed",
                "GitHub's list of versions cannot be read.",
                where=self._folders[0],
                why=f"It is not a list of versions in JSON ({type(error).__name__}).",
                fix="Check GITHUB_API_URL, and the proxy in between.",
            ) from None

    def _rows(self) -> Iterator[dict[str, Any]]:
        page = 1
        while page <= _MOST_PAGES:
            answer = self._ask("GET", f"{self._folders[0]}?per_page={_PAGE}&page={page}")
            if answer.status_code == HTTPStatus.NOT_FOUND and len(self._folders) > 1:
                self._folders.pop(0)  # the owner is a user, not an organisation
                continue
            if not answer.ok:
                raise self._failure(answer, "list its versions")
            try:
                rows = parse_json(answer.content)
            except TooDeepError as error:
                raise self._unbounded(f"{error}") from None
            yield from rows
            if len(rows) < _PAGE:
                return
            page += 1
        raise self._unbounded(f"the list has more than {_MOST_PAGES:,} pages")

    def _ask(self, method: str, url: str) -> requests.Response:
        try:
            return read_bounded(
                self._session.request(method, url, timeout=_TIMEOUT, stream=True), _MOST_BYTES
            )
        except TooLargeError as error:
            raise self._unbounded(f"{error}") from None
        except requests.RequestException as error:
            raise RegistryError(
                "registry-unreachable",
                "GitHub's packages API does not answer.",
                where=url,
                why=f"{type(error).__name__}.",
                fix="Check the network and run the command again; GITHUB_API_URL names another address.",
            ) from None

    def _unbounded(self, why: str) -> RegistryError:
        return RegistryError(
            "oversized-answer",
            "GitHub's packages API sent an answer without bounds.",
            where=self._folders[0],
            why=f"About this answer: {why}.",
            fix="GitHub sends no such answers: check GITHUB_API_URL, and the proxy in between. Nothing was deleted.",
        )

    def _failure(self, answer: requests.Response, doing: str) -> RegistryError:
        denied = answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        try:
            said = str(parse_json(answer.content).get("message", ""))
        except (ValueError, AttributeError):
            said = ""
        return RegistryError(
            "access-denied" if denied else "registry-failed",
            f"GitHub does not {doing} of {self._reference.name}.",
            where=self._reference.name,
            why=f"It answered {answer.status_code}: {said or answer.reason}.",
            fix="Use a token that may read and delete packages (`read:packages`, `delete:packages`), or give the "
            "workflow's repository the admin role on the package. A version with over 5000 downloads stays.",
        )
