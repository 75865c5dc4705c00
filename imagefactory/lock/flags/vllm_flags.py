"""Reads vLLM's flags: its parser is made from the fields of configuration classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

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

ENGINE = "vllm.engine.arg_utils"
FRONTENDS = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.launchers.cli_args")
"""Where the flags of the API server are; they moved in 0.30."""
ELSEWHERE = {
    "--tool-call-parser": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    "--reasoning-parser": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    "--load-format": ("vllm.model_executor.model_loader", "LoadFormats"),
    "--quantization": ("vllm.model_executor.layers.quantization", "QuantizationMethods"),
}
"""Flags whose type is any text, with the tables that their values are looked up in."""


def read_flags(sources: Sources) -> Flags:
    """Return the flags of `vllm serve` and the variables that vLLM reads."""
    found = Flags()
    for name in (ENGINE, *FRONTENDS):
        module = sources.module(name)
        for function in _functions(module) if module else ():
            classes = _classes(function, sources, name)
            for call in calls_of(function, "add_argument"):
                _add(found, sources, call, NameScope(name, (function, *sources.scope(name).bodies)), classes)
        for field in sources.fields("FrontendArgs", sources.scope(name)) if module else ():
            _add_field(found, sources, [f"--{field.name.replace('_', '-')}"], field)
    for field in sources.fields("SpeculativeConfig", sources.scope("vllm.config.speculative")):
        found.add([f"--speculative-config.{field.name}"], sources.values(field.annotation, field.scope))
    for flag, (name, table) in ELSEWHERE.items():
        known = sources.find(table, sources.scope(name))
        if known is not None and flag in found.flags:
            found.add([flag], sources.values(*known))
    variables = sources.find("environment_variables", sources.scope("vllm.envs"))
    found.variables |= set(sources.values(*variables)) if variables else set()
    return found


def _functions(module: ast.Module) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))


def _classes(function: ast.FunctionDef, sources: Sources, module: str) -> Mapping[str, dict[str, Field]]:
    """Return the fields behind each `x_kwargs = get_kwargs(XConfig)` of a function."""
    found = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=config)]),
            ):
                fields = sources.fields(config, sources.scope(module))
                found[name] = {field.name: field for field in fields}
            case _:
                pass
    return found


def _add(
    found: Flags,
    sources: Sources,
    call: ast.Call,
    scope: NameScope,
    classes: Mapping[str, Mapping[str, Field]],
) -> None:
    names = [name for name in texts(call.args) if name.startswith("-")]
    spread: ast.AST | None = next((item.value for item in call.keywords if item.arg is None), None)
    if isinstance(spread, ast.Name):
        local = sources.find(spread.id, scope)
        spread = local[0] if local is not None else None
    # Some calls spread the keywords of a field together with others.
    for part in ast.walk(spread) if spread is not None else ():
        match part:
            case ast.Subscript(value=ast.Name(id=kwargs), slice=ast.Constant(value=str() as key)) if (
                key in classes.get(kwargs, {})
            ):
                _add_field(found, sources, names, classes[kwargs][key])
                return
            case _:
                pass
    choices, switch = keyword(call, "choices"), is_switch(call)
    found.add(names, sources.values(choices, scope) if choices else [], switch=switch)


def _add_field(found: Flags, sources: Sources, names: list[str], field: Field) -> None:
    switch = "bool" in names_in(field.annotation)
    found.add(names, [] if switch else sources.values(field.annotation, field.scope), switch=switch)
