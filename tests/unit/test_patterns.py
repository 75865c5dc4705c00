"""Every pattern ends soon, whatever text somebody sends: no time grows with the square of its size."""

import ast
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from types import FrameType

import pytest

from tests.fixtures.checkouts import REPOSITORY

SIZE = 60_000
"""Characters of a text. What takes quadratic time needs 1,800,000,000 steps for it: seconds."""
LIMIT = 2
"""Seconds of this process for all texts of a seed, however busy the machine is; linear time is milliseconds."""
COMMON = (*'a 0"-./\n=:([{\\_,', "<a ", "a.", "a-", "a ", "a=")
ANYWHERE = frozenset({"search", "sub", "subn", "split", "findall", "finditer"})
FUNCTIONS = ANYWHERE | {"compile", "match", "fullmatch"}
FLAGS = {"IGNORECASE": re.IGNORECASE, "MULTILINE": re.MULTILINE, "DOTALL": re.DOTALL, "VERBOSE": re.VERBOSE}
SOURCES = {
    path: path.read_text("utf-8")
    for room in ("imagefactory", "images")
    for path in sorted((REPOSITORY / room).rglob("*.py"))
    if "images/compile" not in path.as_posix()  # it reads the headers of its own compiler
}


def patterns() -> Iterator[tuple[str, tuple[re.Pattern[str], bool]]]:
    """List the patterns, each with whether it is looked for anywhere in a text."""
    for path, source in SOURCES.items():
        tree = ast.parse(source)
        names = dict(_names(tree))
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=function),
                    args=[written, *_],
                ) if function in FUNCTIONS and (text := _text(written, path)):
                    flags = sum(flag for name, flag in FLAGS.items() if f"re.{name}" in ast.unparse(node))
                    used = {function} if function != "compile" else _uses(names.get(id(node), ""))
                    anywhere = not used or bool(used & ANYWHERE)
                    yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", (re.compile(text, flags), anywhere)


def _text(written: ast.expr, path: Path) -> str:
    """Return a pattern as it is written, with constants of its module in place; something else that varies is an x."""
    if isinstance(written, ast.Constant):
        return written.value if isinstance(written.value, str) else ""
    if not isinstance(written, ast.JoinedStr):
        return ""
    known = vars(import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts)))
    text = ""
    for part in written.values:
        if isinstance(part, ast.FormattedValue):
            try:
                text += str(eval(ast.unparse(part.value), dict(known)))  # noqa: S307 - of our own modules
            except NameError:
                text += "x"
        elif isinstance(part, ast.Constant):
            text += str(part.value)
    return text


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield id(node.value), ast.unparse(target)


def _uses(name: str) -> set[str]:
    """Return how a constant is used, in whatever module."""
    pattern = re.compile(rf"\b{re.escape(name)}\.(\w+)")
    found = {str(match[1]) for source in SOURCES.values() for match in pattern.finditer(source) if name}
    return found & FUNCTIONS


PATTERNS = dict(patterns())


@contextmanager
def ends_soon(seed: str) -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        pytest.fail(f"still busy after {LIMIT} s with {seed!r} repeated")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def seeds(pattern: re.Pattern[str]) -> list[str]:
    """Return what texts are made of that a pattern nearly matches: its own literal parts, and common characters."""
    literals = sorted({part for part in re.split(r"\\.|[\[\](){}?*+|^$.]+", pattern.pattern) if part})
    return sorted({*literals, *COMMON, *("".join(pair) for pair in product(literals[:3], repeat=2))})


@pytest.mark.parametrize("place", PATTERNS)
def test_time_does_not_grow_with_the_square_of_a_text(place: str) -> None:
    pattern, anywhere = PATTERNS[place]
    for seed in seeds(pattern):
        text = seed * (SIZE // len(seed)) + "\0"
        with ends_soon(seed):
            if anywhere:
                for _ in pattern.finditer(text):
                    """Each is taken."""
            else:
                pattern.match(text)
                pattern.fullmatch(text)
