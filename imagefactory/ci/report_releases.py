"""What to report about releases that cannot be locked, with the resolver's words."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from imagefactory.ci.issues import Finding
from imagefactory.errors import InputError, LockError, clean
from imagefactory.store.digests import parse_json

PACKAGES: Final = "packages"
"""What stands for the newer packages of locks that exist, which are all upgraded or none."""
OVER: Final = "It is locked now, or a newer release has taken its place."
_TITLE = re.compile(r"[A-Za-z]+( [0-9][0-9A-Za-z.]*)?")
_WAIT = "If the package index lacks what it asks for, wait: each run of `news` tries again."
_OVERRIDE = (
    "Where the index has another version, `news` overrides the requirement itself. What it cannot, you can: add the "
    "release to matrix.yaml with a line of `overrides` that says why (`NAME==VERSION`, or `NAME ; python_version < "
    "'3'` to leave a package out), and run `./inv lock`."
)
_ONE_BY_ONE = "Otherwise upgrade what can be: `./inv lock --upgrade NAME`."


def read_refused(path: Path) -> dict[str, str]:
    """Read what `news --refused` wrote, perhaps on a machine that ran what nobody reviewed."""
    try:
        refused = parse_json(path.read_bytes())
    except ValueError:
        refused = None
    if isinstance(refused, dict) and all(_TITLE.fullmatch(title) for title in refused):
        return {title: clean(str(words)) for title, words in refused.items()}
    raise InputError(
        "bad-report",
        "The list of refused releases cannot be read.",
        where=path,
        why="It is no JSON object with the names of releases.",
        fix="Write it with `./inv news --branch NAME --refused FILE`.",
    )


def release_findings(refused: Mapping[str, str]) -> list[Finding]:
    """Describe each release for a maintainer; a new reason is a new finding."""

    def finding(title: str, words: str) -> Finding:
        # Nothing in an indented line is markup, a link or a mention.
        text = f"`./inv news` cannot lock {title}:\n\n    {clean(words)}\n\n{what_to_do(title)}"
        return Finding(title.lower().replace(" ", "-"), f"{title} cannot be locked", text, [words])

    return [finding(title, words) for title, words in refused.items()]


def what_to_do(title: str) -> str:
    return f"{_WAIT} {_ONE_BY_ONE if title == PACKAGES else _OVERRIDE}"


def not_locked(refused: Mapping[str, str], where: str) -> Iterator[LockError]:
    for title, words in refused.items():
        yield LockError("release-refused", f"{title} cannot be locked.", where=where, why=words, fix=what_to_do(title))
