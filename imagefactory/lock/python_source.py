"""Evaluates the parts of Python modules that name flags and their values, without importing anything."""

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Read = Callable[[str], str | None]  # returns the text of a file, or None if there is none
DEPTH = 20  # how many names and expressions lead to a value at most
WRAPPERS = ("list", "set", "sorted", "tuple", "get_args", "frozenset")
TRANSPARENT = ("Optional", "Union", "SkipValidation", "list", "List", "tuple", "set")


@dataclass(frozen=True)
class NameScope:
    """Where a name is looked up: in functions or classes from the inside out, then in their module."""

    module: str
    bodies: tuple[ast.AST, ...]


@dataclass(frozen=True)
class Field:
    """A field of a class, with its annotation."""

    name: str
    annotation: ast.expr
    scope: NameScope


@dataclass
class Sources:
    """The modules of a distribution, parsed when they are first needed."""

    read: Read
    _parsed: dict[str, ast.Module | None] = field(default_factory=dict)

    def module(self, name: str) -> ast.Module | None:
        if name not in self._parsed:
            path = name.replace(".", "/")
            text = self.read(f"{path}.py")
            text = text if text is not None else self.read(f"{path}/__init__.py")
            self._parsed[name] = ast.parse(text) if text is not None else None
        return self._parsed[name]

    def scope(self, name: str) -> NameScope:
        module = self.module(name)
        return NameScope(name, (module,) if module is not None else ())

    def find(self, name: str, scope: NameScope) -> tuple[ast.AST, NameScope] | None:
        """Return what a name stands for, following imports into other modules of the distribution."""
        for position, body in enumerate(scope.bodies):
            within = NameScope(scope.module, scope.bodies[position:])
            for node in _statements(body):
                if isinstance(node, ast.ImportFrom):
                    imported = self._imported(name, node, scope.module)
                    if imported is not None:
                        return imported
                elif (value := _bound(node, name)) is not None:
                    return value, within
        return None

    def _imported(self, name: str, node: ast.ImportFrom, module: str) -> tuple[ast.AST, NameScope] | None:
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                package = module.rsplit(".", node.level)[0] if node.level else ""
                origin = ".".join(part for part in (package, node.module) if part)
                if self.module(origin) is not None:
                    return self.find(alias.name, self.scope(origin))
        return None

    def values(self, node: ast.AST, scope: NameScope, depth: int = DEPTH) -> list[str]:
        """Return the texts that an expression or a type stands for; empty if it may be any."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.ClassDef):
            is_enum = any("Enum" in ast.unparse(base) for base in node.bases)
            return [name for statement in node.body for name in assigned(statement)] if is_enum else []
        if isinstance(node, ast.FunctionDef):
            scope = NameScope(scope.module, (node, *scope.bodies))
        parts = [(part, scope) for part in _parts(node)]
        if isinstance(node, ast.Name) and (definition := self.find(node.id, scope)) is not None:
            parts = [definition]
        # An alias may stand for itself.
        return [text for part, where in parts if depth for text in self.values(part, where, depth - 1)]

    def fields(self, name: str, scope: NameScope) -> Iterator[Field]:
        named = self.find(name, scope)
        definition, within = named or (None, scope)
        if not isinstance(definition, ast.ClassDef):
            return
        for base in definition.bases:
            if isinstance(base, ast.Name) and base.id != name:
                yield from self.fields(base.id, within)
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield Field(node.target.id, node.annotation, within)


def names_in(annotation: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


def is_switch(call: ast.Call) -> bool:
    """Whether a call of add_argument adds a flag without a value."""
    action = keyword(call, "action")
    named = ast.unparse(action).lower() if action is not None else ""
    return "store_" in named or "storetrue" in named or "boolean" in named


def calls_of(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def texts(nodes: Iterable[ast.AST]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _parts(node: ast.AST) -> Sequence[ast.AST]:  # noqa: PLR0911 - one for each kind
    """Return the parts of an expression, a type or a function whose texts are its own."""
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return list(parts)
        case ast.Starred(value=part) | ast.Subscript(value=ast.Name(id="Literal"), slice=part):
            return [part]
        case ast.BinOp(left=left, op=ast.Add() | ast.BitOr(), right=right):
            return [left, right]
        case ast.Dict(keys=keys):
            return [key for key in keys if key is not None]
        case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[part, *_])):
            return [part]
        case ast.Subscript(value=ast.Name(id=name), slice=part) if name in TRANSPARENT:
            return [part]
        case ast.Call(func=ast.Name(id=name), args=[part, *_]) if name in WRAPPERS:
            return [part]
        case ast.Call(func=ast.Name() as function, args=[]):
            return [function]
        case ast.FunctionDef(body=body):
            return [statement.value for statement in body if isinstance(statement, ast.Return) and statement.value][-1:]
        case _:
            return []


def _statements(body: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, class or function, and of the conditions in it."""
    for node in getattr(body, "body", []):
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node)
            yield from node.orelse


def _bound(node: ast.AST, name: str) -> ast.AST | None:
    match node:
        case ast.ClassDef(name=bound_name) | ast.FunctionDef(name=bound_name) if bound_name == name:
            return node
        case ast.Assign(targets=[ast.Name(id=bound_name)], value=value) if bound_name == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=bound_name), value=value) if bound_name == name:
            return value
        case _:
            return None


def assigned(node: ast.AST) -> list[str]:
    return [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
