"""Renders the templates beside it; each value is quoted as its format requires, without the template's doing."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER: Final = Path(__file__).with_name("templates")
Form = Literal["unit", "shell"]


class _Quoted(str):
    """What a filter has quoted already."""

    __slots__ = ()


def render_yaml(template: str, **values: object) -> dict[str, Any]:
    """Render a template of YAML, and return what it says."""
    document: dict[str, Any] = yaml.safe_load(_environments()["yaml"].get_template(template).render(values))
    return document


def render_text(template: str, form: Form = "unit", **values: object) -> str:
    """Render a template of a systemd unit, of a shell's file, or of a text without values."""
    return _environments()[form].get_template(template).render(values)


def yaml_text(document: Mapping[str, Any], style: str, width: int) -> str:
    """Write YAML with texts of several lines in a style, and repeat parts instead of naming them."""

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, _data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style if "\n" in value else None)

    Dumper.add_representer(str, text)
    return yaml.dump(document, Dumper=Dumper, sort_keys=False, width=width)


@cache
def _environments() -> dict[str, Environment]:
    """Return the environment of each format. What `finalize` quotes is every value that a template puts in."""
    environments = {
        name: Environment(
            loader=FileSystemLoader(FOLDER),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            finalize=finalize,
            autoescape=False,  # noqa: S701 - none of it is HTML
        )
        for name, finalize in (("yaml", _yaml_value), ("unit", _without_specifiers), ("shell", _shell_word))
    }
    environments["yaml"].filters["literal"] = _literal
    environments["unit"].filters |= {"in_quotes": _in_quotes, "word": _word}
    environments["shell"].filters |= {"words": _shell_words, "at_home": _at_home}
    return environments


def _yaml_value(value: object) -> str:
    """Write a value for any place of a YAML document: in a list on one line, less the brackets of that."""
    value = list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=sys.maxsize)[1:-2]


def _literal(value: Any) -> Any:  # noqa: ANN401 - a text, or a mapping of texts
    """Keep compose and Kubernetes from taking a dollar for the beginning of a variable."""
    if isinstance(value, Mapping):
        return {name: _literal(text) for name, text in value.items()}
    return value.replace("$", "$$")


def _without_specifiers(value: object) -> str:
    """Systemd replaces %h and its like in any value (systemd.unit(5), Specifiers)."""
    return str(value).replace("%", "%%")


def _in_quotes(value: str) -> str:
    """Quote one word for systemd, which knows C's escapes in quotes, and variables (systemd.syntax(7))."""
    # The backslash first: the others add some.
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("$", "$$"), ("\n", "\\n"), ("\t", "\\t")):
        value = value.replace(plain, escaped)
    return f'"{value}"'


def _word(value: str) -> str:
    return value if re.fullmatch(r"[\w@%+=:,./-]+", value, re.ASCII) else _in_quotes(value)


def _shell_word(value: object) -> str:
    return value if isinstance(value, _Quoted) else shlex.quote(str(value))


def _shell_words(values: Iterable[str]) -> _Quoted:
    return _Quoted(shlex.join(values))


def _at_home(path: str) -> _Quoted:
    """Quote a path whose ~ is the home of whoever runs the file."""
    return _Quoted('"$HOME"' + shlex.quote(path[1:]) if path.startswith("~/") else shlex.quote(path))
