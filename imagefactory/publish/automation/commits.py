"""Commits and pull requests through GitHub's API: no clone, no credentials in a checkout, signed by GitHub.

The branch `records` holds the locks of versions that move every night, the catalog and the history page.
https://docs.github.com/en/rest/git
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from imagefactory.errors.ci import RunFailedError
from imagefactory.publish.automation.github import GitHub
from imagefactory.store.atomic import write_text

RECORDS: Final = "records"
Files = Mapping[str, str | None]
"""Path -> text; None removes the file."""


def head(github: GitHub, branch: str) -> str | None:
    """Return the head of a branch; None if the branch does not exist."""
    found = github.find(f"git/ref/heads/{branch}")
    return None if found is None else str(found["object"]["sha"])


def commit(github: GitHub, branch: str, files: Files, message: str, *, base: str | None = None) -> str | None:
    """Commit files to a branch and return the commit; None if nothing differs.

    With `base`, the branch is reset to one commit on top of that branch. Without, a commit is added; a branch that
    does not exist starts empty.
    """
    parent = head(github, base or branch)
    tree = _tree_of(github, parent)
    wanted = _new_tree(github, tree, files)
    there = head(github, branch)
    if wanted == tree or (base and wanted == _tree_of(github, there)):
        return None
    parents = [parent] if parent else []
    sha = str(github.post("git/commits", {"message": message, "tree": wanted, "parents": parents})["sha"])
    if there is None:
        github.post("git/refs", {"ref": f"refs/heads/{branch}", "sha": sha})
    else:
        github.patch(f"git/refs/heads/{branch}", {"sha": sha, "force": base is not None})
    return sha


def read_files(github: GitHub, ref: str, under: str) -> dict[str, str]:
    """Read the files of a folder at a commit or branch."""
    found = github.find(f"git/trees/{ref}?recursive=1")
    if found is None:
        return {}
    if found.get("truncated"):
        raise RunFailedError(
            "GitHub does not list every file of a branch.",
            where=ref,
            why="The branch has more files than GitHub lists at once.",
            fix=f"Remove what is no longer needed from the branch {RECORDS}.",
        )
    return {
        str(entry["path"]): base64.b64decode(github.get(f"git/blobs/{entry['sha']}")["content"]).decode()
        for entry in found["tree"]
        if entry["type"] == "blob" and str(entry["path"]).startswith(f"{under}/")
    }


def take_locks(github: GitHub, root: Path, commit_: str = "") -> tuple[str, list[str]]:
    """Copy the locks of the records branch into a checkout; return the commit and the files written.

    Files that the checkout has stay: a committed lock was reviewed.
    """
    sha = commit_ or head(github, RECORDS) or ""
    written: list[str] = []
    for path, text in read_files(github, sha, "locks").items() if sha else ():
        if not (root / path).resolve().is_relative_to((root / "locks").resolve()):
            raise RunFailedError(
                "The records branch has a path that leads out of locks/.",
                where=path,
                why="The file would be written outside that folder.",
                fix=f"Find out who wrote to the branch {RECORDS}.",
            )
        if not (root / path).exists():
            write_text(root / path, text)
            written.append(path)
    return sha, written


def changed_files(root: Path) -> dict[str, str | None]:
    """List the files that differ from a checkout's commit, with their new content."""
    options = ["--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"]
    command = ["git", "-C", str(root), "status", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    paths = sorted(root / entry[3:] for entry in done.stdout.split("\0") if entry)
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8") if path.exists() else None
        for path in paths
    }


def propose(github: GitHub, branch: str, files: Files, *, title: str, body: str) -> tuple[int, str] | None:
    """Open a pull request with changed files, or update the open one; None if nothing changed.

    The result is its number and what happened: opened, updated or unchanged.
    """
    base = str(github.get("")["default_branch"])
    made = commit(github, branch, files, f"{title}\n", base=base)
    owner = github.repository.partition("/")[0]
    found = list(github.pages(f"pulls?state=open&head={owner}:{branch}"))
    if made is None and not found and head(github, branch) is None:
        return None
    if not found:
        opened = github.post("pulls", {"title": title, "body": body, "head": branch, "base": base})
        return int(opened["number"]), "opened"
    number = int(found[0]["number"])
    if made is None and found[0].get("body") == body:
        return number, "unchanged"
    github.patch(f"pulls/{number}", {"title": title, "body": body})
    return number, "updated"


def _tree_of(github: GitHub, commit_: str | None) -> str | None:
    return str(github.get(f"git/commits/{commit_}")["tree"]["sha"]) if commit_ else None


def _new_tree(github: GitHub, base: str | None, files: Files) -> str:
    entries: list[dict[str, Any]] = [
        {"path": path, "mode": "100644", "type": "blob"}
        | ({"sha": None} if text is None else {"content": text})
        for path, text in sorted(files.items())
    ]
    return str(github.post("git/trees", {"tree": entries} | ({"base_tree": base} if base else {}))["sha"])
