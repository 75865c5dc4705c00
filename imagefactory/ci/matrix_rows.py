"""Writes releases of servers and their overrides into matrix.yaml, as text: comments and order stay."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from packaging.version import Version

from imagefactory.errors import ConfigError
from imagefactory.project.server_versions import TITLES, VLLM, Override


def with_release(text: str, server: str, release: str, overrides: Sequence[Override], where: Path) -> str:
    """Return matrix.yaml with a release after the newest one of its server, and everything else as it was."""
    lines = text.splitlines(keepends=True)
    entries = list(_entries(lines, server))
    if not entries:
        raise ConfigError(
            "bad-release",
            f"{TITLES[server]} {release} cannot be added to the matrix.",
            where=where,
            why=f"It has no block `{server}:` with each release on its own line.",
            fix=f'Add `"{release}": {{release: "{release}"}}` by hand.',
        )
    _, last = max(entries)
    row = f'  "{release}": {{release: "{release}"}}\n'
    if overrides:
        row = f'  "{release}":\n    release: "{release}"\n    overrides:\n{"".join(map(_lines, overrides))}'
    lines.insert(last, row)
    return _ahead("".join(lines), Version(release)) if server == VLLM else "".join(lines)


def _lines(override: Override) -> str:
    first, *others = (f"{key}: {_plain(value)}\n" for key, value in override.model_dump(exclude_none=True).items())
    return f"      - {first}{''.join(f'        {line}' for line in others)}"


def without_override(text: str, server: str, key: str, requirement: str) -> str:
    """Return matrix.yaml without an override of a version, and everything else as it was."""
    block = row = ""
    dropping = False
    kept: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith(" "):
            block = line.rstrip()
        elif name := re.match(r'  "?([^\s":]+)"?:', line):
            row = name[1]
        here = (block, row) == (f"{server}:", key)
        # An override begins with a dash; what is indented further belongs to it.
        item = line.removeprefix("      - requirement: ")
        dropping = here and (
            yaml.safe_load(item) == requirement if item != line else dropping and line.startswith("        ")
        )
        kept += [] if dropping else [line]
    fewer = "".join(kept)
    if fewer == text:
        raise ConfigError(
            "bad-release",
            f"{requirement} cannot be taken out of the matrix.",
            where=f"{server}.{key}.overrides in matrix.yaml",
            why="No line there begins with `- requirement:` and names it.",
            fix="Take it out by hand, and run `./inv lock`.",
        )
    return re.sub(r"^    overrides:\n(?!      - )", "", fewer, flags=re.MULTILINE)


def _plain(text: str) -> str:
    # PyYAML ends a bare scalar with a line `...`; the width keeps the text on the first line.
    return str(yaml.safe_dump(text, width=1000, allow_unicode=True)).partition("\n")[0]


def _entries(lines: Sequence[str], server: str) -> Iterator[tuple[Version, int]]:
    """Iterate over the releases of a server's block, each with the number of the line after it."""
    inside, release = False, None
    # The added line ends an entry that the file ends with.
    for number, line in enumerate([*lines, "end"]):
        # Releases are indented by two; what is indented further belongs to the release above.
        if release is not None and not line.startswith("   "):
            yield release, number
            release = None
        if line.strip() and not line.startswith(" "):
            inside = line.rstrip() == f"{server}:"
        # One release may have several versions: 0.28.0 and 0.28.0-graft.
        entry = re.match(r'  "?([0-9.]+)(?:-[\w-]+)?"?:', line)
        if inside and entry:
            release = Version(entry[1])


def _ahead(text: str, release: Version) -> str:
    """Make `nightly` count as newer than the release that was added."""

    def bumped(match: re.Match[str]) -> str:
        if Version(match[2]) > release:
            return match[0]
        # PEP 440 sorts X.Y.0.dev0 after every release before X.Y.0, and before that one.
        return f"{match[1]}{release.major}.{release.minor + 1}.0.dev0"

    return re.sub(r"^(  nightly:.*counts_as: )([0-9][0-9a-z.]*)", bumped, text, flags=re.MULTILINE)
