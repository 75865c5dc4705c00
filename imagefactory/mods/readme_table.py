"""Format the compatibility table as Markdown and keep it up to date in mods/README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagefactory.errors import NetworkError
from imagefactory.mods.compatibility import ModResult
from imagefactory.store.atomic import write_text

BEGIN = "<!-- table: made by `./inv mods.check --write` -->"
END = "<!-- end of table -->"


def markdown(results: Sequence[ModResult]) -> str:
    """Return the table, followed by the reasons why mods do not apply; a version that no mod is for has no column."""
    in_order = dict.fromkeys(result.version for result in results)
    results = [result for result in results if result.status != "other server"]
    versions = [version for version in in_order if any(result.version == version for result in results)]
    lines = [f"| mod | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    reasons: list[str] = []
    for name in dict.fromkeys(result.mod for result in results):
        row = {result.version: result for result in results if result.mod == name}
        lines.append(
            f"| [{name}]({name}/mod.yaml) | {' | '.join(str(row.get(version, '')) for version in versions)} |"
        )
        unapplied = [result for result in row.values() if result.status not in ("applies", "upstream")]
        for reason in dict.fromkeys(result.detail for result in unapplied):
            where = ", ".join(
                version for version in versions if version in row and row[version].detail == reason
            )
            reasons.append(f"- {name} on {where}: {reason}.")
    return "\n".join([*lines, "", *reasons])


def write_table(readme: Path, results: Sequence[ModResult]) -> bool:
    """Update the table in the README; return whether it changed."""
    missing = [result for result in results if result.status == "out of reach"]
    if missing:
        raise NetworkError(
            "source-missing",
            "The table cannot be written: some sources are missing.",
            where=", ".join(f"{result.mod} on {result.version}" for result in missing),
            why="; ".join(dict.fromkeys(result.detail for result in missing)),
            fix="Check out those sources and set the variable that `./inv mods.diff NAME` asks for.",
        )
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    fresh = f"{before}{BEGIN}\n{markdown(results)}\n{END}{after}"
    if fresh == text:
        return False
    write_text(readme, fresh)
    return True
