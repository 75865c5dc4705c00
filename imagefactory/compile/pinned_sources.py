"""Takes over from a release which sources vLLM's CMake fetches, into images/compile.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from imagefactory.compile.settings import FILE, load_settings
from imagefactory.compile.source_tree import PARTS
from imagefactory.store.atomic import write_text

Read = Callable[[str], str | None]


def add_references(root: Path, release: str, previous: str, read: Read) -> list[str]:
    """Add the references of a release after those of the one before; return what has to be done by hand."""
    path = root / FILE
    text, by_hand = path.read_text("utf-8"), []
    sources = load_settings(root).sources
    main = read("CMakeLists.txt") or ""
    parts = set(re.findall(rf"{PARTS}/(\w+)\.cmake", main))
    for name, source in sources.items():
        if previous not in source.refs or (source.part and source.part not in parts):
            continue
        found = fetched((read(f"{PARTS}/{source.part}.cmake") or "") if source.part else main)
        if found is None:
            by_hand.append(f"`{FILE}`, sources.{name}: its commit for {release} cannot be read from vLLM's CMake.")
            continue
        repository, commit = found
        reference = commit if repository.lower() == source.git.lower() else f"{repository}@{commit}"
        # The entry before is in the block of this source, on a line of its own or in a list on one.
        entry = rf'(\n  {re.escape(name)}:\n(?:    .*\n)*?.*?)((?<=\n)      |, |{{)("{re.escape(previous)}": [^\s,}}]+)'
        if at := re.search(entry, text):
            between = f"\n{at[2]}" if at[2].isspace() else ", "
            text = f'{text[: at.end()]}{between}"{release}": {reference}{text[at.end() :]}'
    unknown = sorted(parts - {source.part for source in sources.values()})
    by_hand += [f"`{FILE}` does not know {part}, which vLLM {release} fetches to compile." for part in unknown]
    write_text(path, text)
    return by_hand


def fetched(cmake: str) -> tuple[str, str] | None:
    """Return the repository and the commit or tag that a CMake file fetches; of several the last one, for CUDA."""
    lines = "\n".join(line for line in cmake.splitlines() if not line.lstrip().startswith("#"))
    values: dict[str, str] = dict(re.findall(r'set\((\w+) +"?([^\s")]+)"?\)', lines))

    def last(key: str) -> str:
        word: str = ["", *re.findall(rf'{key} +"?([^\s")]+)', lines)][-1]
        return values.get(word.removeprefix("${").removesuffix("}"), word)

    repository = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?", last("GIT_REPOSITORY"))
    return (repository[1], last("GIT_TAG")) if repository and last("GIT_TAG") else None
