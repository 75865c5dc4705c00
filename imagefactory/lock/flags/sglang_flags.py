"""Reads SGLang's flags: annotated fields of configuration classes, and some that are added by hand."""

from __future__ import annotations

import ast

from imagefactory.lock.flags.found_flags import Flags
from imagefactory.lock.flags.python_source import (
    Field,
    NameScope,
    Sources,
    calls_of,
    is_switch,
    keyword,
    names_in,
    texts,
)

ARGUMENTS = "sglang.srt.server_args"
FIELDS = "sglang.srt.arg_groups.fields"


def read_flags(sources: Sources) -> Flags:
    """Return the flags of `sglang serve` and the variables that SGLang reads."""
    found = Flags()
    module = sources.module(ARGUMENTS)
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{FIELDS}."):
            for alias in node.names:
                for field in sources.fields(alias.name, sources.scope(str(node.module))):
                    _add_field(found, sources, field)
        elif isinstance(node, ast.FunctionDef):
            scope = NameScope(ARGUMENTS, (node, *sources.scope(ARGUMENTS).bodies))
            for call in calls_of(node, "add_argument"):
                _add_call(found, sources, call, scope)
    # The program reads it before the parser does.
    found.add(["--model-type"], ["auto", "llm", "diffusion"])
    variables = sources.find("Envs", sources.scope("sglang.srt.environ"))
    for node in getattr(variables[0], "body", []) if variables else ():
        found.variables |= {
            target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)
        }
    return found


def _add_field(found: Flags, sources: Sources, field: Field) -> None:
    match field.annotation:
        case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[kind, about, *_])):
            names = [f"--{field.name.replace('_', '-')}"]
            values = sources.values(kind, field.scope)
            switch = "bool" in names_in(kind)
            if isinstance(about, ast.Call):
                no_cli = keyword(about, "no_cli")
                if isinstance(no_cli, ast.Constant) and no_cli.value is True:
                    return
                own, aliases = keyword(about, "cli_name"), keyword(about, "aliases")
                names = texts([own]) if own is not None else names
                names += texts(aliases.elts) if isinstance(aliases, ast.List) else []
                choices = keyword(about, "choices")
                values = sources.values(choices, field.scope) if choices is not None else values
            found.add(names, [] if switch else values, switch=switch)
        case _:
            pass


def _add_call(found: Flags, sources: Sources, call: ast.Call, scope: NameScope) -> None:
    names = [name for name in texts(call.args) if name.startswith("-")]
    choices, switch = keyword(call, "choices"), is_switch(call)
    found.add(names, sources.values(choices, scope) if choices is not None else [], switch=switch)
