"""Checks: facts about a source file, read from its text and its syntax tree. Nothing is imported or run."""

from __future__ import annotations

import ast

from imagefactory.mods.manifest import Check


def failing(check: Check, text: str | None) -> str | None:
    """Say why a check does not hold, or None when it does."""
    if text is None:
        return "the file is missing"
    if check.function is None and check.class_ is None:
        return _failing_text(check, text)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return f"the file does not parse (line {error.lineno}: {error.msg})"
    name = check.function or check.class_ or ""
    node = _find(tree, name)
    if node is None:
        return f"there is no {name}"
    if check.base is not None:
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if check.base not in bases:
            return f"{name} has the bases {', '.join(bases) or 'none'}"
    if check.returns is not None:
        wanted = ast.unparse(ast.parse(check.returns, mode="eval"))
        returned = [
            ast.unparse(part.value)
            for part in ast.walk(node)
            if isinstance(part, ast.Return) and part.value is not None
        ]
        if wanted not in returned:
            return f"{name} returns {'; '.join(returned) or 'nothing'}"
    return _failing_text(check, ast.get_source_segment(text, node) or "")


def syntax_fault(path: str, text: str) -> str | None:
    """Say why a Python file no longer compiles, or None when it does."""
    if not path.endswith(".py"):
        return None
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return f"line {line}: {error.args[0]}" if line else str(error)
    return None


def _failing_text(check: Check, text: str) -> str | None:
    if check.contains is not None and check.contains not in text:
        return "the text is not there"
    if check.lacks is not None and check.lacks in text:
        return "the text is there"
    return None


def _find(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Find a class or function by its dotted name."""
    nodes: list[ast.stmt] = tree.body
    found: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None = None
    for part in name.split("."):
        found = next(
            (
                node
                for node in nodes
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == part
            ),
            None,
        )
        if found is None:
            return None
        nodes = found.body
    return found
