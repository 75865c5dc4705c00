"""Tables for the documentation, rendered from the schema and the matrix."""

from __future__ import annotations

from collections.abc import Mapping

from imagefactory.plan.serve.description import Description, image_environment

BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"
SHARED = ("MODEL", "HOST", "PORT", "WARMUP", "MODS_PATH", "CHECKS")


def defaults_by_model(descriptions: Mapping[str, Description]) -> str:
    """Write which default each model has, for the settings in which models differ."""
    columns = {name: image_environment(description) for name, description in descriptions.items()}
    names = [
        setting
        for setting in dict.fromkeys(key for column in columns.values() for key in column)
        if setting not in SHARED and len({column.get(setting) for column in columns.values()}) > 1
    ]
    lines = [
        "| Setting | " + " | ".join(f"`{name}`" for name in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for setting in names:
        cells = [column.get(setting, "") for column in columns.values()]
        lines.append(f"| `{setting}` | " + " | ".join(f"`{cell}`" if cell else "" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_between(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Put a table between two marks of a document; everything else stays."""
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document has no {begin} … {end}")
    return f"{head}{begin}\n{table.strip()}\n{end}{tail}"
