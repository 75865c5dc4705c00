"""Parses unified diffs strictly: unknown lines are refused, not skipped."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_UNWANTED = re.compile(
    r"^(rename |copy |deleted file |old mode |new mode |GIT binary |Binary files |new file mode (?!100))"
)
NOWHERE = "/dev/null"


@dataclass(frozen=True)
class Hunk:
    """Lines of a file, and their replacement."""

    path: str
    line: int  # the first of the old lines; 0 if the file is new
    old: tuple[str, ...]
    new: tuple[str, ...]


def parse_diff(text: str) -> list[Hunk]:
    """Parse a diff; raise ValueError with the line that is wrong."""
    return list(_Reader(split_lines(text)).hunks())


def split_lines(text: str) -> list[str]:
    """Split at line feeds only; other breaks, such as form feeds, belong to lines."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def hunks(self) -> Iterator[Hunk]:
        old_path = path = ""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if _UNWANTED.match(line):
                raise self._fault("only the text of a file can be changed")
            if line.startswith("--- "):
                old_path = _path(line)
            elif line.startswith("+++ "):
                path = _path(line)
                if path.startswith('"'):
                    raise self._fault("the name has characters that Git quotes")
                if path == NOWHERE or old_path not in (path, NOWHERE):
                    raise self._fault("a file cannot be removed or renamed")
            elif line.startswith("@@"):
                if not path:
                    raise self._fault("there is no +++ line before it")
                yield self._hunk(line, path, is_new=old_path == NOWHERE)
            elif path and line[0] in "+- ":
                raise self._fault("it is outside any hunk")

    def _hunk(self, head: str, path: str, *, is_new: bool) -> Hunk:
        match = _HUNK.match(head)
        if match is None:
            raise self._fault("it is not a hunk header")
        counts = {"old": int(match[2] or 1), "new": int(match[4] or 1)}
        sides: dict[str, list[str]] = {"old": [], "new": []}
        while len(sides["old"]) < counts["old"] or len(sides["new"]) < counts["new"]:
            if self._at == len(self._lines):
                raise self._fault("the hunk is cut off")
            line = self._lines[self._at]
            self._at += 1
            # Some editors strip the space that marks an empty line as unchanged.
            kind, text = (" ", line) if line == "\n" else (line[0], line[1:])
            touched = {" ": ("old", "new"), "-": ("old",), "+": ("new",)}.get(kind)
            if touched is None:
                raise self._fault("it does not start with a space, + or -")
            no_newline = self._at < len(self._lines) and self._lines[self._at].startswith("\\")
            for side in touched:
                sides[side].append(text.removesuffix("\n") if no_newline else text)
            if any(len(sides[side]) > counts[side] for side in sides):
                raise self._fault("the hunk is longer than its header says")
            self._at += no_newline
        first = int(match[1])
        if is_new != (first == 0) or bool(sides["old"]) is is_new:
            raise self._fault("a hunk needs old lines, unless the file is new")
        return Hunk(path, first, tuple(sides["old"]), tuple(sides["new"]))

    def _fault(self, why: str) -> ValueError:
        text = self._lines[self._at - 1].rstrip("\n")[:60]
        return ValueError(f"line {self._at} of the diff ({text!r}): {why}")


def _path(line: str) -> str:
    path = line[4:].split("\t", maxsplit=1)[0].strip()
    return path if path == NOWHERE else re.sub(r"^[ab]/", "", path)
