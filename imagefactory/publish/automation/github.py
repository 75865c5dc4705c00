"""A client for the parts of GitHub's REST API that the workflows use.

https://docs.github.com/en/rest. In a workflow, GitHub sets the variables for the repository and the address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import requests

from imagefactory.errors.ci import GitHubAnswerError, GitHubBusyError, GitHubError, NotOnGitHubError
from imagefactory.store.bounded import TooLargeError, read_bounded
from imagefactory.store.json_text import parse_json
from imagefactory.store.retry import Retry, judge, retry_after

API: Final = "https://api.github.com"
_VERSION: Final = "2022-11-28"
_TIMEOUT: Final = (10.0, 60.0)
_PAGE: Final = 100
_MOST_PAGES: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
"""More than any lock or page of a list has, in base64."""
_RETRY: Final = Retry(pause=1.0)
_BUSY: Final = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
Document = dict[str, Any]


@dataclass
class GitHub:
    """A repository on GitHub, and a token to access it."""

    repository: str
    token: str = field(repr=False)
    api: str
    retry: Retry = _RETRY
    _session: requests.Session = field(default_factory=requests.Session, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> GitHub:
        """Read GITHUB_REPOSITORY, GITHUB_TOKEN and GITHUB_API_URL; FACTORY_GITHUB_API overrides the last."""
        missing = [name for name in ("GITHUB_REPOSITORY", "GITHUB_TOKEN") if not environment.get(name)]
        if missing:
            raise NotOnGitHubError(
                "The GitHub repository or the token to use is not known.",
                where="the environment of this command",
                why=f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set.",
                fix="In a workflow, pass the job's token as GITHUB_TOKEN. Elsewhere, set GITHUB_REPOSITORY=OWNER/NAME "
                "and GITHUB_TOKEN; --dry-run needs neither.",
            )
        address = environment.get("FACTORY_GITHUB_API") or environment.get("GITHUB_API_URL") or API
        return cls(environment["GITHUB_REPOSITORY"], environment["GITHUB_TOKEN"], address.rstrip("/"))

    def get(self, path: str) -> Document:
        """Read something that must exist."""
        return self._ask("GET", path)

    def find(self, path: str) -> Document | None:
        """Read something; return None if it does not exist."""
        return self._ask("GET", path, optional=True) or None

    def pages(self, path: str) -> Iterator[Document]:
        """Iterate over a list, page by page."""
        separator = "&" if "?" in path else "?"
        for number in range(1, _MOST_PAGES + 1):
            page = f"{path}{separator}per_page={_PAGE}&page={number}"
            found: object = self._ask("GET", page)
            if not isinstance(found, list):
                raise _unusable(f"GET {page}", "It is not a list.")
            yield from found
            if len(found) < _PAGE:
                return
        raise _unusable(f"GET {path}", f"The list has more than {_MOST_PAGES:,} pages.")

    def post(self, path: str, data: Mapping[str, Any]) -> Document:
        """Create something."""
        return self._ask("POST", path, data)

    def patch(self, path: str, data: Mapping[str, Any]) -> Document:
        """Change something."""
        return self._ask("PATCH", path, data)

    def start_workflow(self, file: str) -> None:
        """Start a workflow on the default branch."""
        branch = self.get("")["default_branch"]
        self.post(f"actions/workflows/{file}/dispatches", {"ref": branch})

    def _ask(
        self, method: str, path: str, data: Mapping[str, Any] | None = None, *, optional: bool = False
    ) -> Document:
        """Return the JSON of an answer; empty if there is none, or if what is optional does not exist."""
        answer = self._send(method, path, data)
        if optional and answer.status_code == HTTPStatus.NOT_FOUND:
            return {}
        wait = retry_after(answer.headers) if answer.status_code in _BUSY else None
        if wait is not None and wait > self.retry.patience:
            raise GitHubBusyError(
                "GitHub is busy, and wants to be asked again much later.",
                where=f"{method} {path}",
                why=f"It asks for a wait of {wait:,.0f} s; a command waits {self.retry.patience:,.0f} s at most.",
                fix="Run the job again after that time, and let fewer jobs use the same token at once.",
            )
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            raise GitHubError(
                f"GitHub refused a request about {self.repository}.",
                where=f"{method} {path}",
                why=f"It answered {answer.status_code}: {_message(answer)}",
                fix=_remedy(answer.status_code),
            )
        try:
            found: Document = parse_json(answer.content) if answer.content else {}
        except ValueError as error:
            why = f"It is not JSON, or too much of it ({error}): {answer.text[:200]}"
            raise _unusable(f"{method} {path}", why) from None
        return found

    def _send(self, method: str, path: str, data: Mapping[str, Any] | None) -> requests.Response:
        url = f"{self.api}/repos/{self.repository}/{path}".rstrip("/")
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "X-GitHub-Api-Version": _VERSION,
        }
        try:
            return self.retry.run(
                lambda: read_bounded(
                    self._session.request(
                        method, url, headers=headers, json=data, timeout=_TIMEOUT, stream=True
                    ),
                    _MOST_BYTES,
                ),
                # Only reads are retried: a write that got through must not happen twice.
                later=judge if method == "GET" else lambda _: None,
            )
        except TooLargeError as error:
            raise _unusable(f"{method} {url}", f"{error}") from None
        except requests.RequestException as error:
            raise GitHubError(
                "GitHub does not answer.",
                where=f"{method} {url}",
                why=str(error),
                fix="Run the job again; https://www.githubstatus.com shows whether GitHub has an outage.",
            ) from None


def _unusable(where: str, why: str) -> GitHubAnswerError:
    return GitHubAnswerError(
        "GitHub's answer is unusable.",
        where=where,
        why=why,
        fix="GitHub sends no such answers: check FACTORY_GITHUB_API and GITHUB_API_URL, and the proxy in between.",
    )


def _message(answer: requests.Response) -> str:
    try:
        return str(parse_json(answer.content)["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]


def _remedy(status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
        return "Check the job's `permissions:` in the workflow, and the repository's name."
    return "Read GitHub's message; run the job again if the problem is on GitHub's side."
