"""Publishes releases of the factory itself, whose tag, version and changelog must agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from imagefactory.errors.ci import ReleaseError
from imagefactory.publish.automation.github import GitHub


def release_notes(root: Path, tag: str) -> str:
    """Return the changelog entry of a tag; raise ReleaseError if tag, version and changelog do not agree."""
    declared = str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])
    if tag != f"v{declared}":
        raise ReleaseError(
            f"The tag {tag} is not the version of this commit.",
            where="pyproject.toml, project.version",
            why=f"It says {declared}, so the tag must be v{declared}.",
            fix="Tag the commit that raises the version, or raise the version first.",
        )
    changelog = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(
        rf"^## \[{re.escape(declared)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise ReleaseError(
            f"The changelog has no entry for {declared}.",
            where="CHANGELOG.md",
            why=f"There is no section `## [{declared}]`, or it is empty.",
            fix=f"Give the unreleased entries the heading `## [{declared}] - DATE`.",
        )
    return found[1].strip() + "\n"


def publish_release(github: GitHub, tag: str, notes: str) -> str:
    """Create the release on GitHub, once; return its address."""
    there = github.find(f"releases/tags/{tag}")
    release = {"tag_name": tag, "name": tag.removeprefix("v"), "body": notes}
    made = there or github.post("releases", release)
    return str(made["html_url"])
