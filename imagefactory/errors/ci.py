"""Automation on GitHub: 44 to 49."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class GitHubError(FactoryError):
    """GitHub does not answer, or refuses what it is asked for."""

    exit_code = 44


class NotOnGitHubError(FactoryError):
    """A command needs a GitHub repository and a token, and was told of none."""

    exit_code = 45


class CellsFailedError(FactoryError):
    """Some cells of a job failed; the others were done nevertheless."""

    exit_code = 46


class NoRoomError(FactoryError):
    """The machine has less free disk than a job is going to need."""

    exit_code = 47


class RunFailedError(FactoryError):
    """A job of the workflow failed or was cancelled, or what it handed on cannot be read."""

    exit_code = 48


class ReleaseError(FactoryError):
    """A release, or a new vLLM version, does not fit what the repository says of itself."""

    exit_code = 49
