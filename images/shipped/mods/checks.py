"""Evaluates the checks of mods on text and syntax trees, without importing or running code."""

import ast
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from images.shipped.mods.manifest import UNPARSABLE, Check

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WARNINGS = threading.Lock()  # warning filters are global to the process


def failing(check: Check, text: str | None) -> str | None:
    """Return why a check fails; None if it passes."""
    if text is None:
        return "the file is missing"
    name = check.function or check.class_
    if name is None:
        return _failing_text(check, text)
    try:
        node = _find(_parsed(text), name)
        if node is None or isinstance(node, ast.ClassDef) is (check.class_ is None):
            return f"there is no {'class' if check.class_ else 'function'} {name}"
        return _failing_fact(check, name, node, text)
    except UNPARSABLE as error:
        return f"the file does not parse ({_fault(error)})"


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    with _without_warnings():
        return ast.parse(text)


def _failing_fact(check: Check, name: str, node: Definition, text: str) -> str | None:
    if check.base is not None and isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        return None if check.base in bases else f"{name} has the bases {', '.join(bases) or 'none'}"
    if check.returns is not None:
        returned = [ast.unparse(part.value) for part in _own(node) if isinstance(part, ast.Return) and part.value]
        return None if check.returns in returned else f"{name} returns {'; '.join(returned) or 'nothing'}"
    return _failing_text(check, ast.get_source_segment(text, node) or "")


def syntax_fault(path: str, text: str) -> str | None:
    """Return why a Python file does not compile; None if it does."""
    if not path.endswith(".py"):
        return None
    try:
        with _without_warnings():
            compile(text, path, "exec", dont_inherit=True)
    except UNPARSABLE as error:
        return _fault(error)
    return None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore warnings about the code, such as invalid escape sequences."""
    with _WARNINGS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _fault(error: Exception) -> str:
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply"
    line, text = getattr(error, "lineno", None), (getattr(error, "text", None) or "").strip()[:100]
    return f"line {line}: {error.args[0]}{f': {text!r}' if text else ''}" if line else str(error)


def _failing_text(check: Check, text: str) -> str | None:
    if check.contains is not None and check.contains not in text:
        return "it does not contain the text"
    if check.lacks is not None and check.lacks in text:
        return "it contains the text"
    return None


def _find(tree: ast.Module, name: str) -> Definition | None:
    """Find a class or function by its dotted name; of several, the last, as Python does."""
    found: ast.Module | Definition = tree
    for part in name.split("."):
        named = [node for node in _own(found) if isinstance(node, _DEFINITIONS) and node.name == part]
        if not named:
            return None
        found = named[-1]
    return None if isinstance(found, ast.Module) else found


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a node, but not into nested definitions."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*_DEFINITIONS, ast.Lambda)):
            yield from _own(child)
