"""A client for the parts of GitHub's REST API that the factory uses: commits, issues, and the packages of GHCR.

https://docs.github.com/en/rest. In a workflow, GitHub sets the variables for the repository and the address. Commits
need no clone and no credentials in a checkout, and GitHub signs them. Images on GHCR are listed and deleted here, since
GHCR does not support DELETE: deleting a version deletes its tags, but nothing that it refers to.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import quote

import requests

from imagefactory.errors import NetworkError, RegistryError, UsageError, clean
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.reference import Reference, is_digest
from imagefactory.store.digests import Digest, parse_json
from imagefactory.store.http import Retry, ask, judge, new_session, reason_of

API: Final = "https://api.github.com"
RECORDS: Final = "records"
"""The branch with the history page and the notes of each night."""
_VERSION: Final = "2022-11-28"
"""Of the REST API: https://docs.github.com/en/rest/about-the-rest-api/api-versions"""
_PAGE: Final = 100
"""Entries of one page; GitHub gives no more."""
_MOST_PAGES: Final = 10_000
_SHOWN: Final = 200  # characters of what it says
_LARGEST: Final = 64 * 1024 * 1024
"""The longest answer in bytes; GitHub itself sends less."""
_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
Document = dict[str, Any]


def api_address(environment: Mapping[str, str] = os.environ) -> str:
    address = environment.get("FACTORY_GITHUB_API") or environment.get("GITHUB_API_URL") or API
    return address.rstrip("/")


@contextmanager
def understood() -> Iterator[None]:
    """Name the failure of a block or a function that found something else in an answer than GitHub documents."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        why = f"It lacks something that its API promises ({type(error).__name__}: {clean(str(error))[:_SHOWN]})."
        fix = "Check that GITHUB_API_URL or FACTORY_GITHUB_API, if it is set, is GitHub's API; then run it again."
        raise _failed("An answer of GitHub cannot be understood.", api_address(), why, fix) from None


@dataclass
class GitHub:
    """A folder of GitHub's API, such as that of a repository, and a token to access it."""

    folder: str
    token: str = field(repr=False)
    api: str
    retry: Retry = field(default_factory=lambda: Retry(pause=1.0))
    _session: requests.Session = field(default_factory=new_session, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read GITHUB_REPOSITORY, GITHUB_TOKEN and GITHUB_API_URL; FACTORY_GITHUB_API overrides the last."""
        missing = [name for name in ("GITHUB_REPOSITORY", "GITHUB_TOKEN") if not environment.get(name)]
        if missing:
            raise UsageError(
                "not-on-github",
                "The GitHub repository or the token to use is not known.",
                where="the environment of this command",
                why=f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set.",
                fix="In a workflow, pass the job's token as GITHUB_TOKEN. Elsewhere, set GITHUB_REPOSITORY=OWNER/NAME "
                "and GITHUB_TOKEN.",
            )
        folder = f"repos/{environment['GITHUB_REPOSITORY']}"
        return cls(folder, environment["GITHUB_TOKEN"], api_address(environment))

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the repository that a command writes to; None outside of a workflow, unless the variables name one."""
        named = environment.get("GITHUB_REPOSITORY") and environment.get("GITHUB_TOKEN")
        return cls.from_environment(environment) if named or environment.get("GITHUB_ACTIONS") else None

    def get(self, path: str, *, optional: bool = False) -> Any:  # noqa: ANN401 - JSON
        """Read something that must exist, or may (then None means that it does not)."""
        return self._ask("GET", path, optional=optional)

    def pages(self, path: str) -> Iterator[Document]:
        before: list[Document] = []
        for number in range(1, _MOST_PAGES + 1):
            entries = self.get(f"{path}{'&' if '?' in path else '?'}per_page={_PAGE}&page={number}")
            with understood():
                rows = [dict(entry) for entry in entries]
                if rows and rows == before:  # else there would be thousands
                    raise ValueError("a page is the one before")
            yield from rows
            if len(rows) < _PAGE:
                return
            before = rows
        where, why = f"{self.api}/{self.folder}/{path}", f"There are more than {_MOST_PAGES * _PAGE:,} entries."
        fix = "Delete old ones: `./inv prune` reads this list, and GitHub's pages and API delete without it."
        raise _failed("GitHub lists more than can be read.", where, why, fix)

    def post(self, path: str, data: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        return self._ask("POST", path, data)

    def patch(self, path: str, data: Mapping[str, Any]) -> None:
        self._ask("PATCH", path, data)

    def delete(self, path: str) -> None:
        """Delete something that may be gone already."""
        self._ask("DELETE", path, optional=True)

    @understood()
    def propose(self, branch: str, files: Mapping[str, str], title: str, text: str) -> str | None:
        """Open a pull request with one commit on the default branch, or renew it; None if nothing differs."""
        base = self.get("")["default_branch"]
        commit = self.commit(branch, files, f"{title}\n", onto=base)
        owner = self.folder.split("/")[1]
        if commit and not self.get(f"pulls?state=open&head={owner}:{branch}"):
            self.post("pulls", {"head": branch, "base": base, "title": title, "body": text})
        return commit

    @understood()
    def commit(self, branch: str, files: Mapping[str, str], message: str, *, onto: str = "") -> str | None:
        """Commit files to a branch and return the commit; None if nothing differs. A new branch starts empty.

        With `onto`, the branch is replaced: it has the commits of that branch, and this one.
        """
        tip, tip_tree = self._head(branch)
        parent, tree = self._head(onto) if onto else (tip, tip_tree)
        entries = [
            {"path": path, "mode": "100644", "type": "blob", "content": text} for path, text in sorted(files.items())
        ]
        # Tree, commit, branch: nobody sees anything of it before the last request.
        new_tree = self.post("git/trees", {"tree": entries} | ({"base_tree": tree} if tree else {}))["sha"]
        if new_tree in (tree, tip_tree):
            return None
        parents = [parent] if parent else []
        created = self.post("git/commits", {"message": message, "tree": new_tree, "parents": parents})
        if tip:
            self.patch(f"git/refs/heads/{branch}", {"sha": created["sha"], "force": bool(onto)})
        else:
            self.post("git/refs", {"ref": f"refs/heads/{branch}", "sha": created["sha"]})
        return str(created["sha"])

    def _head(self, branch: str) -> tuple[str | None, str | None]:
        """Return the commit and the tree of a branch, or neither if it does not exist."""
        ref = self.get(f"git/ref/heads/{branch}", optional=True)
        if not ref:
            return None, None
        commit = ref["object"]["sha"]
        return commit, self.get(f"git/commits/{commit}")["tree"]["sha"]

    def _ask(self, method: str, path: str, data: Mapping[str, Any] | None = None, *, optional: bool = False) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON of an answer; None if there is none, or if what is optional does not exist."""
        url = f"{self.api}/{self.folder}/{path}".rstrip("/").replace("/?", "?")
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "X-GitHub-Api-Version": _VERSION,
        }
        try:
            answer = self.retry.run(
                lambda: ask(self._session, method, url, headers=headers, json=data, limit=_LARGEST),
                # Only reads are retried: a write that got through must not happen twice.
                later=judge if method == "GET" else lambda _: None,
            )
            if optional and answer.status == HTTPStatus.NOT_FOUND:
                return None
            if answer.ok:
                return parse_json(answer.body) if answer.body else None
        except (requests.RequestException, ValueError) as error:  # the latter for what is no JSON
            fix = "Run the job again; https://www.githubstatus.com shows whether GitHub has an outage."
            raise _failed("GitHub does not answer.", f"{method} {url}", reason_of(error), fix) from None
        fix = "Read GitHub's message; run the job again if the problem is on GitHub's side."
        if answer.status in _REFUSED:
            fix = "Check what the token may do (a job's `permissions:`; `delete:packages` for `prune`), and the name."
        why = f"It answered {answer.status}: {clean(answer.body[:200].decode('utf-8', 'replace'))}"
        raise _failed(f"GitHub refused a request about {self.folder}.", f"{method} {url}", why, fix)


def _failed(what: str, where: str, why: str, fix: str) -> NetworkError:
    return NetworkError("github-failed", what, where=where, why=why, fix=fix)


class GitHubPackages:
    """The versions of one package of the container registry."""

    @understood()
    def __init__(self, reference: Reference, token: str, api: str) -> None:
        owner, _, package = reference.repository.partition("/")
        # A package's name may have slashes, which the API takes only escaped.
        versions = f"{owner}/packages/container/{quote(package, safe='')}/versions"
        organisation = GitHub(f"orgs/{versions}", token, api)
        # An owner is a user or an organisation; only the right folder exists.
        is_user = organisation.get("?per_page=1", optional=True) is None
        self._github = GitHub(f"users/{versions}", token, api) if is_user else organisation
        self._numbers: dict[Digest, int] = {}
        self.untagged: dict[Digest, datetime] = {}
        """Every manifest without a tag, with the time of its upload."""
        for row in self._github.pages(""):
            if is_digest(str(row.get("name"))):
                digest = Digest(row["name"])
                self._numbers[digest] = int(row["id"])
                # Where GitHub does not say, there may be a tag.
                if row.get("metadata", {}).get("container", {}).get("tags") == []:
                    self.untagged[digest] = datetime.fromisoformat(row["created_at"])

    @classmethod
    def of(cls, reference: Reference) -> Self | None:
        """Find the package behind a repository; None for every other registry."""
        if reference.registry != "ghcr.io":
            return None
        credentials = find_credentials(reference.registry)
        if credentials is None:
            raise RegistryError(
                "access-denied",
                "GitHub lists the versions of a package only for users who are logged in.",
                where=reference.name,
                why="There are no credentials for ghcr.io.",
                fix="Set GITHUB_TOKEN, or run `docker login ghcr.io` with a token that may delete packages.",
            )
        return cls(reference, credentials.secret, api_address())

    def delete(self, digest: Digest) -> None:
        if digest in self._numbers:
            self._github.delete(str(self._numbers[digest]))
