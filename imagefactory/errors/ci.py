"""Automation on GitHub: 44 to 49."""

from __future__ import annotations

from imagefactory.errors import LibraryError


class GitHubError(LibraryError, exit_code=44):
    """GitHub does not respond, or rejects a request."""


class NotOnGitHubError(LibraryError, exit_code=45):
    """A command needs a GitHub repository and a token, and one of them is not set."""


class CellsFailedError(LibraryError, exit_code=46):
    """Some cells of a job failed; the others completed."""


class NoRoomError(LibraryError, exit_code=47):
    """The machine has less free disk space than a job needs."""


class RunFailedError(LibraryError, exit_code=48):
    """What a job needs is not available, or cannot be read: a commit, or another job's results."""


class ReleaseError(LibraryError, exit_code=49):
    """A new vLLM release cannot be added to the matrix."""
