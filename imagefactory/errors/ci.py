"""Automation on GitHub: 44 to 49, 214 and 218."""

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
    """A job of the workflow failed or was cancelled, or its output cannot be read."""


class ReleaseError(LibraryError, exit_code=49):
    """A release or a new vLLM version contradicts the repository's own files."""


class GitHubAnswerError(GitHubError, exit_code=214):
    """What answers in GitHub's place sends no JSON, or more than a client should read."""


class GitHubBusyError(GitHubError, exit_code=218):
    """GitHub asks for a longer wait than a command grants."""
