"""Lists and deletes images on GHCR through GitHub's packages API, since GHCR does not support DELETE.

https://docs.github.com/en/rest/packages/packages. Deleting a version deletes its tags, but nothing that it refers to.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Self
from urllib.parse import quote

from imagefactory.errors import RegistryError
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.reference import Reference, is_digest
from imagefactory.publish.github import GitHub, api_address
from imagefactory.store.digests import Digest


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    created: datetime
    tagged: bool
    """Or perhaps tagged: GitHub does not say."""


class GitHubPackages:
    """The versions of one package of the container registry."""

    def __init__(self, reference: Reference, token: str, api: str) -> None:
        owner, _, package = reference.repository.partition("/")
        versions = f"{owner}/packages/container/{quote(package, safe='')}/versions"
        organisation = GitHub(f"orgs/{versions}", token, api)
        # An owner is a user or an organisation; only the right folder exists.
        is_user = organisation.get("?per_page=1", optional=True) is None
        self._github = GitHub(f"users/{versions}", token, api) if is_user else organisation

    @classmethod
    def of(cls, reference: Reference) -> Self | None:
        """Find the package behind a repository; None for every other registry."""
        if reference.registry != "ghcr.io":
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
        return cls(reference, found.secret, api_address())

    def untagged(self) -> dict[Digest, datetime]:
        """List every manifest without a tag, with the time of its upload."""
        return {digest: row.created for digest, row in self._listed.items() if not row.tagged}

    def delete(self, digest: Digest) -> None:
        if digest in self._listed:
            self._github.delete(str(self._listed[digest].number))

    @cached_property
    def _listed(self) -> dict[Digest, _Version]:
        rows = (row for row in self._github.pages("") if is_digest(str(row.get("name"))))
        return {
            Digest(row["name"]): _Version(
                int(row["id"]),
                datetime.fromisoformat(row["created_at"]),
                tagged=row.get("metadata", {}).get("container", {}).get("tags") != [],
            )
            for row in rows
        }
