"""Records the flags of every version of the matrix that has a wheel, read from the servers' sources.

vLLM's parser is made from the fields of configuration classes; SGLang's from annotated fields, and some added by hand.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final

from imagefactory.lock.python_source import (
    Field,
    NameScope,
    Read,
    Sources,
    assigned,
    calls_of,
    is_switch,
    keyword,
    names_in,
    texts,
)
from imagefactory.mods.source_files import ReleaseSource
from imagefactory.project.locks.files import Lock, LockedSource, LockedWheel, MadeFrom
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.server_versions import VLLM, server_name, version_key, version_title
from imagefactory.store.progress import Say


class FlagLock(Lock):
    """The flags of one version of a server, with the values that they take, and its environment variables."""

    header: ClassVar[str] = "The flags of one version of a server, as its sources define them."
    maker: ClassVar[str] = "lock --flags"
    file: ClassVar[str] = "{}/flags.toml"
    named_by: ClassVar[tuple[str, ...]] = ("version",)

    version: str
    flags: dict[str, str]
    """The values of each flag, separated by spaces; empty if it takes any. A key of a JSON value follows a dot."""
    switches: tuple[str, ...] = ()  # the flags that need no value
    variables: tuple[str, ...] = ()

    def refused(self, command: Sequence[str], variables: Iterable[str]) -> Iterator[str]:
        """Yield what the server does not know of a command and of the variables beside it."""
        # The `--` behind the last word shows that a flag there has no value, as any other flag does.
        for word, following in pairwise([*command, "--"]):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--"):
                continue
            spelled = flag if flag in self.flags else flag.replace("_", "-")
            # argparse.BooleanOptionalAction gives every switch a second flag, --no-NAME.
            off = f"--{spelled.removeprefix('--no-')}"
            spelled = off if spelled not in self.flags and off in self.switches else spelled
            value = value if equals else following
            if spelled not in self.flags:
                yield flag
            elif spelled in self.switches:
                continue
            elif not equals and following.startswith("--"):
                yield f"{flag} without a value"
            elif not self._accepts(spelled, value):
                yield f"{flag} {value}"
            elif flag == "--speculative-config":
                for key, setting in json.loads(value).items():
                    name = f"{flag}.{key}"
                    if name not in self.flags or not self._accepts(name, str(setting)):
                        yield f"{name} {setting}"
        prefix = f"{server_name(self.version).upper()}_"
        yield from (name for name in variables if name.startswith(prefix) and name not in self.variables)

    def _accepts(self, name: str, value: str) -> bool:
        choices = self.flags[name].split()
        return not choices or value in choices or value.upper() in choices


def recorded_version(project: Project, version: str) -> str:
    """Return the version whose flags stand for another's: the first of the same server and release."""
    versions = project.matrix.versions
    release = versions[version].release
    same = (
        name
        for name, candidate in versions.items()
        if release is not None and candidate.release == release and server_name(name) == server_name(version)
    )
    return next(same, version)


@dataclass
class Flags:
    """The flags found in a server's sources: their values, those without a value, and environment variables."""

    sources: Sources
    flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)

    def add(self, names: Iterable[str], values: Iterable[str], *, switch: bool = False) -> None:
        choices = () if switch else tuple(sorted(set(values)))
        for name in names:
            self.flags[name] = choices
            if switch:
                self.switches.add(name)

    def add_call(self, call: ast.Call, scope: NameScope) -> None:
        names = [name for name in texts(call.args) if name.startswith("-")]
        choices = keyword(call, "choices")
        self.add(names, self.sources.values(choices, scope) if choices else [], switch=is_switch(call))

    def add_field(self, names: Iterable[str], kind: ast.expr, scope: NameScope) -> None:
        self.add(names, self.sources.values(kind, scope), switch="bool" in names_in(kind))


def wheels_with_flags(project: Project) -> dict[str, LockedSource | LockedWheel]:
    """Return the wheel of each version whose flags can be recorded; versions of one release share a record."""
    wheels: dict[str, LockedSource | LockedWheel | None] = {}
    cells = locked_cells(project)
    for name, version in project.matrix.versions.items():
        if recorded_version(project, name) == name and server_name(name) == VLLM:
            wheels[name] = project.source_lock.find(version.release or "", ".whl")
        elif recorded_version(project, name) == name:
            locks = (project.wheel_lock(cell) for cell in cells if cell.version == name)
            of_server = (wheel for lock in locks for wheel in lock.wheels if wheel.name == server_name(name))
            wheels[name] = next(of_server, None)
    return {name: wheel for name, wheel in wheels.items() if wheel is not None}


def flags_made_from(project: Project) -> dict[str, MadeFrom]:
    wheels = wheels_with_flags(project).items()
    return {name: {f"{server_name(name)}.{version_key(name)}": wheel.sha256} for name, wheel in wheels}


def record_flags(project: Project, say: Say) -> Iterator[tuple[Path, bool]]:
    """Write the records that are missing or made from another wheel; yield each with whether it changed."""
    indexes, expected = configured_indexes(), flags_made_from(project)
    for name, wheel in wheels_with_flags(project).items():
        path = FlagLock.path(project.locks, name)
        made_from = expected[name]
        if path.exists() and FlagLock.read(path).made_from == made_from:
            yield path, False
            continue
        say(f"Reading the flags of {version_title(name)} from {wheel.file}")
        yield path, flag_lock(name, made_from, ReleaseSource(wheel, indexes, project.store).read).write(path)


def flag_lock(name: str, made_from: Mapping[str, str], read: Read) -> FlagLock:
    record = READERS[server_name(name)](Sources(read))
    return FlagLock(
        made_from=dict(made_from),
        version=name,
        flags={flag: " ".join(values) for flag, values in sorted(record.flags.items())},
        switches=tuple(sorted(record.switches)),
        variables=tuple(sorted(record.variables)),
    )


ENGINE = "vllm.engine.arg_utils"
FRONTENDS = tuple(f"vllm.entrypoints.{place}.cli_args" for place in ("openai", "launchers", "common"))
"""Where the flags of the API server are; they moved in 0.30 and in 0.33."""
ELSEWHERE = {
    "--tool-call-parser": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    "--reasoning-parser": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    "--load-format": ("vllm.model_executor.model_loader", "LoadFormats"),
    "--quantization": ("vllm.model_executor.layers.quantization", "QuantizationMethods"),
}
"""Flags whose type is any text, with the tables that their values are looked up in."""


def read_vllm(sources: Sources) -> Flags:
    record = Flags(sources)
    for name in (ENGINE, *FRONTENDS):
        scope = sources.scope(name)
        for function in (node for body in scope.bodies for node in ast.walk(body)):
            if isinstance(function, ast.FunctionDef):
                configs = _configs(function, sources, scope)
                for call in calls_of(function, "add_argument"):
                    _add_argument(record, call, NameScope(name, (function, *scope.bodies)), configs)
        for option in sources.fields("FrontendArgs", scope):
            record.add_field([f"--{option.name.replace('_', '-')}"], option.annotation, option.scope)
    for option in sources.fields("SpeculativeConfig", sources.scope("vllm.config.speculative")):
        record.add([f"--speculative-config.{option.name}"], sources.values(option.annotation, option.scope))
    for flag, (name, table) in ELSEWHERE.items():
        listed = sources.find(table, sources.scope(name))
        if listed is not None and flag in record.flags:
            record.add([flag], sources.values(*listed))
    variables = sources.find("environment_variables", sources.scope("vllm.envs"))
    record.variables |= set(sources.values(*variables)) if variables else set()
    return record


def _configs(function: ast.FunctionDef, sources: Sources, scope: NameScope) -> Mapping[str, Mapping[str, Field]]:
    """Return the fields behind each `x_kwargs = get_kwargs(XConfig)` of a function."""
    fields = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=config)]),
            ):
                fields[name] = {option.name: option for option in sources.fields(config, scope)}
            case _:
                pass
    return fields


def _add_argument(record: Flags, call: ast.Call, scope: NameScope, configs: Mapping[str, Mapping[str, Field]]) -> None:
    spread: ast.AST | None = next((argument.value for argument in call.keywords if argument.arg is None), None)
    if isinstance(spread, ast.Name):
        local = record.sources.find(spread.id, scope)
        spread = local[0] if local is not None else None
    # Some calls spread the keywords of a field together with others.
    for part in ast.walk(spread) if spread is not None else ():
        match part:
            case ast.Subscript(value=ast.Name(id=kwargs), slice=ast.Constant(value=str() as key)) if key in configs.get(
                kwargs, {}
            ):
                names = [name for name in texts(call.args) if name.startswith("-")]
                record.add_field(names, configs[kwargs][key].annotation, configs[kwargs][key].scope)
                return
            case _:
                pass
    record.add_call(call, scope)


ARGUMENTS = "sglang.srt.server_args"
FIELDS = "sglang.srt.arg_groups.fields"


def read_sglang(sources: Sources) -> Flags:
    record = Flags(sources)
    scope = sources.scope(ARGUMENTS)
    for node in (node for body in scope.bodies for node in ast.walk(body)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{FIELDS}."):
            for alias in node.names:
                for option in sources.fields(alias.name, sources.scope(str(node.module))):
                    _add_annotated(record, option)
        elif isinstance(node, ast.FunctionDef):
            for call in calls_of(node, "add_argument"):
                record.add_call(call, NameScope(ARGUMENTS, (node, *scope.bodies)))
    # The program reads it before the parser does.
    record.add(["--model-type"], ["auto", "llm", "diffusion"])
    variables = sources.find("Envs", sources.scope("sglang.srt.environ"))
    for node in getattr(variables[0], "body", []) if variables else ():
        record.variables |= {*assigned(node)}
    return record


def _add_annotated(record: Flags, option: Field) -> None:
    match option.annotation:
        case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[kind, about, *_])):
            names = [f"--{option.name.replace('_', '-')}"]
            values = record.sources.values(kind, option.scope)
            if isinstance(about, ast.Call):
                no_cli = keyword(about, "no_cli")
                if isinstance(no_cli, ast.Constant) and no_cli.value is True:
                    return
                cli_name, aliases = keyword(about, "cli_name"), keyword(about, "aliases")
                names = texts([cli_name]) if cli_name is not None else names
                names += texts(aliases.elts) if isinstance(aliases, ast.List) else []
                choices = keyword(about, "choices")
                values = record.sources.values(choices, option.scope) if choices is not None else values
            record.add(names, values, switch="bool" in names_in(kind))
        case _:
            pass


READERS: Final = {VLLM: read_vllm, "sglang": read_sglang}
