"""Writes mod.yaml: a new one, or one more variant in a text whose comments stay."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import yaml

from images.shipped.mods.manifest import Manifest, Mod, NotNeeded, Variant

SCHEMA = "# yaml-language-server: $schema=../../docs/schemas/mod.schema.json"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and indents lists as people do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, False)  # noqa: FBT003


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def manifest_text(manifest: Manifest, comments: Sequence[str]) -> str:
    """Return the text of a new mod.yaml."""
    return "\n".join([SCHEMA, *(f"# {line}" for line in comments), _dump(_plain(manifest))])


def with_variant(text: str, mod: Mod, variant: Variant, narrowed: tuple[Variant, str] | None) -> str:
    """Add a variant at the end of a mod's variants; `narrowed` is one that gets a new range."""
    lines = text.splitlines(keepends=True)
    if narrowed is not None:
        old, versions = narrowed
        line = int(mod.where_in(old, "versions").rpartition(":")[2]) - 1
        lines[line] = re.sub(r"versions:.*", f'versions: "{versions}"', lines[line])
    first = int(mod.where("variants", 0).rpartition(":")[2]) - 1
    head = next(index for index, line in enumerate(lines) if line.startswith("variants:"))
    after = (index for index in range(head + 1, len(lines)) if re.match(r"[A-Za-z_]", lines[index]))
    end = next(after, len(lines))
    indent = re.match(r" *", lines[first])
    item = textwrap.indent(_dump([_plain(variant)]), indent[0] if indent else "", lambda _: True)
    return "".join([*lines[:end], *(["\n"] if lines[end - 1].strip() else []), item, *lines[end:]])


def with_not_needed(before: str, text: str, mod: Mod, entry: NotNeeded, ranges: Sequence[str]) -> str:
    """Give an entry of `not_needed` other ranges, or none; `before` is the text that the mod was read from."""
    lines = before.splitlines(keepends=True)
    index = mod.manifest.not_needed.index(entry)
    first = int(mod.where("not_needed", index).rpartition(":")[2]) - 1
    depth = _depth(lines[first])
    end = next((at for at in range(first + 1, len(lines)) if _depth(lines[at]) <= depth), len(lines))
    old = "".join(lines[first:end])
    new = "".join(re.sub("versions:.*", f'versions: "{versions}"', old, count=1) for versions in ranges)
    if not new and len(mod.manifest.not_needed) == 1:
        old = lines[first - 1] + old
    return text.replace(old, new, 1)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _plain(model: Manifest | Variant) -> object:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _dump(data: object) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110))
