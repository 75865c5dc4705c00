"""GitHub's REST interface, as far as the workflows need it: issues, commits, pull requests, releases, dispatches.

https://docs.github.com/en/rest. In a workflow, GitHub itself sets the variables that say where and who.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import requests

from imagefactory.errors.ci import GitHubError, NotOnGitHubError
from imagefactory.store.retry import Retry, judge

API: Final = "https://api.github.com"
_VERSION: Final = "2022-11-28"
_TIMEOUT: Final = (10.0, 60.0)
_PAGE: Final = 100
_RETRY: Final = Retry(pause=1.0)
Document = dict[str, Any]


@dataclass
class GitHub:
    """One repository on GitHub, seen by whoever holds a token."""

    repository: str
    token: str = field(repr=False)
    api: str = API
    retry: Retry = _RETRY
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> GitHub:
        """Read the environment of a workflow: GITHUB_REPOSITORY, GITHUB_TOKEN, GITHUB_API_URL.

        FACTORY_GITHUB_API names another address than the one that GitHub sets.
        """
        missing = [name for name in ("GITHUB_REPOSITORY", "GITHUB_TOKEN") if not environment.get(name)]
        if missing:
            raise NotOnGitHubError(
                "It is not known which repository on GitHub is meant, or as whom to speak.",
                where="the environment of this command",
                why=f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set.",
                fix="In a workflow, hand the job's token on as GITHUB_TOKEN. By hand, set GITHUB_REPOSITORY=OWNER/NAME "
                "and GITHUB_TOKEN; --dry-run needs neither.",
            )
        address = environment.get("FACTORY_GITHUB_API") or environment.get("GITHUB_API_URL") or API
        return cls(environment["GITHUB_REPOSITORY"], environment["GITHUB_TOKEN"], address.rstrip("/"))

    def get(self, path: str) -> Document:
        """Read something that has to be there."""
        return self._read(self._ask("GET", path, None), "GET", path)

    def find(self, path: str) -> Document | None:
        """Read something; None when it is not there."""
        answer = self._ask("GET", path, None)
        return None if answer.status_code == HTTPStatus.NOT_FOUND else self._read(answer, "GET", path)

    def pages(self, path: str) -> Iterator[Document]:
        """Go through a list, page by page."""
        number = 1
        while True:
            page = f"{path}{'&' if '?' in path else '?'}per_page={_PAGE}&page={number}"
            found: list[Document] = self._parsed(self._ask("GET", page, None), "GET", page)
            yield from found
            if len(found) < _PAGE:
                return
            number += 1

    def post(self, path: str, data: Mapping[str, Any]) -> Document:
        """Create something."""
        return self._read(self._ask("POST", path, data), "POST", path)

    def patch(self, path: str, data: Mapping[str, Any]) -> Document:
        """Change something."""
        return self._read(self._ask("PATCH", path, data), "PATCH", path)

    def start_workflow(self, file: str) -> None:
        """Start a workflow on the default branch."""
        branch = self.get("")["default_branch"]
        self.post(f"actions/workflows/{file}/dispatches", {"ref": branch})

    def _ask(self, method: str, path: str, data: Mapping[str, Any] | None) -> requests.Response:
        url = f"{self.api}/repos/{self.repository}/{path}".rstrip("/")
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "X-GitHub-Api-Version": _VERSION,
        }
        try:
            return self.retry.run(
                lambda: self._session.request(method, url, headers=headers, json=data, timeout=_TIMEOUT),
                # What was made once must not be made twice: only questions are asked again.
                later=judge if method == "GET" else lambda _: None,
            )
        except requests.RequestException as error:
            raise GitHubError(
                "GitHub does not answer.",
                where=f"{method} {url}",
                why=str(error),
                fix="Run the job again; https://www.githubstatus.com says whether others have trouble, too.",
            ) from None

    def _read(self, answer: requests.Response, method: str, path: str) -> Document:
        found: Document = self._parsed(answer, method, path)
        return found

    def _parsed(self, answer: requests.Response, method: str, path: str) -> Any:  # noqa: ANN401 - whatever JSON holds
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise GitHubError(
                f"GitHub refused a request about {self.repository}.",
                where=f"{method} {path}",
                why=f"It answered {answer.status_code}: {_message(answer)}",
                fix=_remedy(answer.status_code),
            )
        if answer.status_code == HTTPStatus.NO_CONTENT or not answer.content:
            return {}
        try:
            return answer.json()
        except ValueError:
            raise GitHubError(
                "GitHub answered with something that is not JSON.",
                where=f"{method} {path}",
                why=answer.text[:200],
                fix="Check GITHUB_API_URL.",
            ) from None


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def _remedy(status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return "Check the job's `permissions:` in the workflow, and the repository's name."
    return "Look at the message; run the job again if it is about GitHub itself."
