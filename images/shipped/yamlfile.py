"""Reads YAML strictly, with the line of every key and item."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml
import yaml.reader
from yaml.constructor import SafeConstructor

from images.shipped.errors import ConfigError, Location

KeyPath = tuple[str | int, ...]

MAX_DEPTH = 50  # libyaml crashes on a few ten thousand levels

_TEXT_TAGS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:timestamp"}
_SCALARS = {
    "tag:yaml.org,2002:int": SafeConstructor.construct_yaml_int,
    "tag:yaml.org,2002:float": SafeConstructor.construct_yaml_float,
    "tag:yaml.org,2002:bool": SafeConstructor.construct_yaml_bool,
    "tag:yaml.org,2002:null": SafeConstructor.construct_yaml_null,
}


@dataclass(frozen=True)
class YamlFile:
    """The data of a YAML file, with the line of every key and item."""

    name: str
    data: object
    lines: dict[KeyPath, int] = field(repr=False)

    def location(self, path: KeyPath) -> Location:
        """Return the line of a path, or of its longest part that the file has."""
        known: KeyPath = ()
        for part in path:
            # Validators add names to a path, such as the member of a union.
            if (*known, part) in self.lines:
                known = (*known, part)
        return Location(file=self.name, line=self.lines.get(known))


def read_yaml(path: Path, name: str = "") -> YamlFile:
    """Read a document of plain mappings, lists and scalars; refuse duplicate keys, aliases and custom tags.

    `name` is the name in errors, if the file's own is ambiguous.
    """
    name = name or path.name
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise _syntax_error(name, line, f"it is not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise ConfigError(
            "bad-yaml",
            f"{name} cannot be read.",
            where=path,
            why=error.strerror or type(error).__name__,
            fix="Run from the repository's root folder, check permissions, or restore the file from git.",
        ) from None
    return parse_yaml(text, name)


def parse_yaml(text: str, name: str) -> YamlFile:
    """Parse YAML text; `name` is the file's name in errors."""
    # The C parser accepts the same text and is ten times as fast, but not available everywhere.
    loader = cast("type[yaml.SafeLoader]", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    try:
        _check_events(text, name, loader)
        root = yaml.compose(text, Loader=loader)
        lines: dict[KeyPath, int] = {(): 1}
        data = None if root is None else _construct(root, (), lines, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise _syntax_error(name, mark.line + 1 if mark else None, why) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise _syntax_error(name, line, f"it has an invalid character ({error.reason})") from None
    return YamlFile(name=name, data=data, lines=lines)


def _check_events(text: str, name: str, loader: type[yaml.SafeLoader]) -> None:
    """Refuse aliases and excessive nesting before any recursion."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise _syntax_error(name, line, "aliases (*name) are not supported")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _syntax_error(name, line, "it is nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _construct(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str) -> object:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return _construct_mapping(node, path, lines, name)
    if isinstance(node, yaml.SequenceNode):
        items: list[object] = []
        for index, item in enumerate(node.value):
            lines[*path, index] = item.start_mark.line + 1
            items.append(_construct(item, (*path, index), lines, name))
        return items
    if node.tag in _TEXT_TAGS:
        return str(node.value)
    if node.tag not in _SCALARS or not isinstance(node, yaml.ScalarNode):
        raise _syntax_error(name, line, f"the tag {node.tag} is not supported")
    try:
        return _SCALARS[node.tag](SafeConstructor(), node)
    except (ValueError, KeyError, IndexError, OverflowError):
        why = f"{node.value[:40]!r} is not a value; quote it if it is text"
        raise _syntax_error(name, line, why) from None


def _construct_mapping(
    node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int], name: str
) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _construct(key_node, (*path, "<key>"), {}, name)
        if not isinstance(key, str):
            raise _syntax_error(name, line, f"the key {key!r} is not text; put it in quotes")
        if key in result:
            raise ConfigError(
                "duplicate-key",
                f"{key!r} appears twice.",
                where=Location(file=name, line=line),
                why=f"It is also on line {lines[*path, key]}; YAML would keep only one.",
                fix="Rename one of them, or merge the two.",
            )
        lines[*path, key] = line
        result[key] = _construct(value_node, (*path, key), lines, name)
    return result


def _syntax_error(name: str, line: int | None, why: str) -> ConfigError:
    return ConfigError(
        "bad-yaml",
        f"{name} is not valid YAML.",
        where=Location(file=name, line=line),
        why=why,
        fix="Correct that line.",
    )
